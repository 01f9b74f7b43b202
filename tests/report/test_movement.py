"""What a report says of movement: by intervals, beside the controls, and nothing where there are no records."""

import math

import pytest

from cells import cell, shares
from tangentlens.report.contents import draw, find
from tangentlens.report.reading import without_massive
from tangentlens.report.sections.massive import with_and_without
from tangentlens.report.sections.movement import MOVED, growth_over_training, movement_over_training
from tangentlens.runs.records import as_frame
from tangentlens.studies import SECTIONS


def step_cells(step, share=0.4, pca=0.0, ratio=0.5, half=0.1, since=None):
    """The movement of one step, on average over sites."""
    about = {"quantity": "movement", "step": step}
    proxy = {"variant": "semi_nmf", "detail": "proxy"}
    inside = 2 * math.exp(ratio)
    return [
        cell("distance", 0.5, 0.4, 0.6, detail=f"since step {step // 2 if since is None else since}", **about),
        cell("share", share, share - 0.05, share + 0.05, order=1.0, **proxy, **about),
        cell("share", 0.125, 0.125, 0.125, order=1.0, variant="random", **about),
        cell("log_ratio", 1.2, 1.1, 1.3, order=1.0, variant="random", **about),
        cell("log_ratio", pca, pca - half, pca + half, order=1.0, variant="pca", **about),
        cell("variance_share", 0.6, 0.5, 0.7, **proxy, **about),
        cell("growth_inside", inside, inside - 0.1, inside + 0.1, **proxy, **about),
        cell("growth_outside", 2.0, 1.9, 2.1, **proxy, **about),
        cell("growth_log_ratio", ratio, ratio - half, ratio + half, **proxy, **about),
        cell("growth_log_ratio", 0.0, -0.1, 0.1, variant="pca", **about),
    ]


def frame(*steps):
    return as_frame("r", [record for step in steps for record in step])


def told(records):
    return " ".join(finding.text for finding in find([MOVED], records))


def test_the_last_step_is_told_with_its_distance_and_its_controls():
    said = told(frame(step_cells(4), step_cells(8, share=0.3)))
    assert "At step 8 the probe's activations have moved by 0.500 [0.400, 0.600] times" in said
    assert "length since step 4, in the geometric mean over sites." in said
    assert "captures 0.300 [0.250, 0.350] of the energy of this movement, averaged over sites (chance 0.125): " in said
    assert "3.32 [3.00, 3.67] times random (significantly above)" in said
    assert (
        "1.00 [0.905, 1.11] times pca (not significantly different). It has 0.600 [0.500, 0.700] of the variance"
        in said
    )


@pytest.mark.parametrize(
    ("ratios", "half", "says"),
    [
        ((0.3, 0.3, -0.2), 0.1, "significantly above that of pca at 2 of 3 steps and significantly below it at 1"),
        ((0.0, 0.02, 0.0), 0.01, "within 5% of that of pca at 3 of 3 steps"),
        ((0.0, 0.09, 0.0), 0.1, "not significantly different from that of pca at 3 of 3 steps"),
    ],
)
def test_more_than_variance_is_counted_by_intervals(ratios, half, says):
    records = frame(*(step_cells(2**place, pca=ratio, half=half) for place, ratio in enumerate(ratios)))
    assert f"The proxy's share of the movement is {says} (95%" in told(records)


def test_amplification_is_told_step_by_step_by_intervals():
    steps = {1: 0.5, 2: 0.5, 4: 0.0, 8: -0.5}
    said = told(frame(*(step_cells(step, ratio=ratio) for step, ratio in steps.items())))
    assert (
        "significantly above growth outside at steps 1, 2; not significantly different from growth outside at" in said
    )
    assert "at step 4; significantly below growth outside at step 8." in said
    assert "lies between 0.607 [0.549, 0.670] (step 8, pca 1) and 1.65 [1.49, 1.82] (step 2, pca 1)." in said


def test_both_figures_are_drawn_from_two_steps_on():
    records = frame(step_cells(4), step_cells(8, share=0.3, ratio=0.1))
    figures = draw([MOVED], records)
    assert [figure.plot.data[-1].type for figure in figures] == ["scatter", "scatter"]
    assert figures[0].title.endswith("m 0.30 (step 8) to 0.40 (step 4)")
    assert figures[1].title.endswith("m at most 3.30 times (step 4) inside the proxy, 2.00 times (step 8) outside")
    assert figures[1].plot.layout.yaxis.type == figures[1].plot.layout.yaxis2.type == "log"
    assert all("intervals over the test half" in figure.caption for figure in figures)
    assert draw([MOVED], frame(step_cells(4))) == []


def test_without_a_probe_nothing_is_said():
    records = frame(shares(4, 0.3, 0.7, 0.5), shares(8, 0.3, 0.7, 0.5))
    assert find([MOVED], records) == []
    assert movement_over_training(records) is growth_over_training(records) is None


def test_other_sections_are_about_gradients_only():
    gradients = [*shares(4, 0.3, 0.7, 0.5), *shares(8, 0.3, 0.7, 0.5)]
    others = [section for section in SECTIONS if section is not MOVED]
    alone, beside = frame(gradients), frame(gradients, step_cells(4), step_cells(8))
    assert [one.text for one in find(others, beside)] == [one.text for one in find(others, alone)]
    assert [one.title for one in draw(others, beside)] == [one.title for one in draw(others, alone)]


def both_readings(site, depth, quantity, value):
    about = {"site": site, "depth": depth, "order": 1.0, "variant": "semi_nmf", "detail": "proxy", "quantity": quantity}
    return [cell("share", value, value - 0.1, value + 0.1, rows=rows, **about) for rows in ("all", "without_massive")]


def test_massive_rows_of_the_probe_do_not_replace_those_of_the_step():
    about = {"site": "resid.1", "depth": 0.5, "order": 1.0, "variant": "semi_nmf", "detail": "proxy"}
    records = as_frame("r", [cell("share", 0.4, **about), *both_readings("resid.1", 0.5, "movement", 0.2)])
    kept = without_massive(records).select("quantity", "rows").rows()
    assert kept == [("gradient", "all"), ("movement", "without_massive")]
    assert with_and_without(records) is None


def test_the_figure_of_massive_rows_is_about_gradients():
    sites = {"resid.1": 0.5, "resid.2": 1.0}
    gradients = [one for site, depth in sites.items() for one in both_readings(site, depth, "gradient", 0.4)]
    spread = {"quantity": "activation", "rank": None}
    gradients += [
        cell("anisotropy", 0.3, site=site, depth=depth, rows=rows, **spread)
        for site, depth in sites.items()
        for rows in ("all", "without_massive")
    ]
    moved = [one for site, depth in sites.items() for one in both_readings(site, depth, "movement", 0.2)]
    figure = with_and_without(as_frame("r", gradients + moved))
    assert {value for trace in figure.plot.data for value in trace.y} == {0.3, 0.4}
