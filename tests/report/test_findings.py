import math

import pytest

from cells import cell, profile_cells, shares
from tangentlens.report.contents import find, tabulate
from tangentlens.report.reading import read_runs
from tangentlens.report.sections.geometry import dimension_card
from tangentlens.report.sections.shares import share_over_depth
from tangentlens.runs.records import Record, as_frame
from tangentlens.runs.run import create_run
from tangentlens.studies import SECTIONS
from tangentlens.studies.profile.section import profile_over_depth
from tangentlens.studies.visibility.plan import CORRELATION, RATIO


def texts(*records):
    return " ".join(finding.text for finding in find(SECTIONS, as_frame("r", records)))


def test_ratios_are_called_above_below_or_not_told_apart_by_their_intervals():
    said = texts(*shares(8, 0.3, 0.6931, 0.5))
    assert "At step 8 the rank-4 proxy captures 0.300 [0.250, 0.350] of the gradient's energy" in said
    assert "(chance 0.125)" in said
    assert "2.00 [1.65, 2.21] times normal (significantly above)" in said
    assert "1.00 [0.905, 1.11] times pca (not significantly different)" in said
    assert "times normal (significantly below)" in texts(*shares(8, 0.3, -0.7, -0.9))


def test_emergence_is_told_from_three_steps_on():
    steps = [record for step, low in ((0, -0.1), (1, 0.2), (2, 0.3)) for record in shares(step, 0.3, 0.5, low)]
    assert "stays significantly above the mean of the normal control from step 1 on" in texts(*steps)
    assert "the mean of the normal control" not in texts(*(step for step in steps if step.step < 2))


def test_what_has_not_emerged_is_not_called_absent():
    steps = [record for step, low in ((0, 0.2), (1, 0.2), (2, -0.1)) for record in shares(step, 0.3, 0.5, low)]
    said = texts(*steps)
    assert "is not significantly above the mean of the normal control at the last step" in said
    assert "at 0 of 1 sites at step 2 (5% level, Benjamini-Hochberg over sites); at the others this is not" in said


def test_of_sites_that_are_counted_the_undecided_ones_are_named_too():
    about = {"order": 1.0, "step": 8, "quantity": "gradient", "rank": 4}
    records = []
    for i, (value, half) in enumerate([(0.3, 0.05), (0.05, 0.01), (0.2, 0.1), (0.12, 0.1)]):
        place = {"site": f"resid.{i}", "depth": i / 3, **about}
        records += [
            cell("share", value, value - half, value + half, variant="semi_nmf", detail="proxy", **place),
            cell("share", 0.125, 0.125, 0.125, variant="random", **place),
        ]
    title = share_over_depth(as_frame("r", records)).title
    assert "significantly above r/d at 1 of 4 sites, significantly below it at 1 and not significantly" in title
    assert title.endswith("different from it at 2")


def test_sites_above_chance_are_corrected_for_their_number():
    p_values = {0: (0.04, 0.2, 0.5, 0.9), 5: (0.5,) * 4, 9: (0.001, 0.002, 0.003, 0.9), 12: (math.nan,) * 4}
    records = [record for step, p in p_values.items() for record in shares(step, 0.3, 0.5, 0.2, p)]
    assert "at 0 of 4 sites at step 0 and at 3 of 4 sites at step 9" in texts(*records)


@pytest.mark.parametrize(
    ("last", "says"),
    [
        ((0.5, 0.4, 0.6), "rises from 0.200 [0.100, 0.300] (step 0) to 0.500"),
        ((0.25, 0.15, 0.35), "is 0.250 [0.150, 0.350] (step 5), not significantly different from 0.200"),
    ],
)
def test_a_change_is_called_one_only_if_the_intervals_are_apart(last, says):
    about = {"quantity": "activation", "rank": None}
    assert says in texts(cell("anisotropy", 0.2, 0.1, 0.3, **about), cell("anisotropy", *last, step=5, **about))


def test_a_dimension_that_is_not_to_be_trusted_is_told_with_its_sites():
    def records(variant, *sites):
        about = {"quantity": "activation", "rank": None, "variant": variant}
        for place, (trouble, misfit) in enumerate(sites):
            yield cell("dimension_trouble", trouble, site=f"resid.{place}", **about)
            yield cell("dimension_misfit", misfit, site=f"resid.{place}", **about)

    said = texts(*records("", (0.0, 0.02), (1.0, 0.21), (0.6, 0.08), (0.4, 0.5)), *records("one_per_type", (0.0, 0.02)))
    assert "over all tokens is not to be trusted at 2 of 4 sites (resid.1, resid.2)" in said
    assert "(misfit 0.08 to 0.21; an error of the dimension by 20% makes 0.067)" in said
    assert "with one row per token type is not" not in said


@pytest.mark.parametrize(("trouble", "verdict"), [(0.0, "significantly above 5 at step 5"), (1.0, "not to be trusted")])
def test_a_dimension_that_is_not_to_be_trusted_has_no_verdict_on_its_card(trouble, verdict):
    about = {"quantity": "activation", "rank": None, "site": "resid.1", "depth": 0.5}
    rows = [cell("intrinsic_dimension", value, value - 1, value + 1, step=value, **about) for value in (5, 9)]
    rows += [cell("dimension_trouble", value, step=step, **about) for step, value in ((5, 1.0), (9, trouble))]
    (card,) = dimension_card(as_frame("r", rows))
    assert card.value == "9"
    assert card.verdict.startswith(verdict)


@pytest.mark.parametrize(("half", "word"), [(0.001, "within 5% of"), (0.02, "not significantly different from")])
def test_no_change_is_told_only_if_it_was_shown(half, word):
    about = {"quantity": "activation", "rank": None}
    values = [cell("anisotropy", 0.2, 0.2 - half, 0.2 + half, step=step, **about) for step in (0, 5)]
    assert f"(step 5), {word} 0.200" in texts(*values)


def test_a_turn_in_between_is_told():
    about = {"quantity": "activation", "rank": None}
    values = {0: (0.2, 0.1, 0.3), 5: (0.8, 0.7, 0.9), 9: (0.5, 0.4, 0.6)}
    said = texts(*(cell("anisotropy", *value, step=step, **about) for step, value in values.items()))
    assert (
        "goes from 0.200 [0.100, 0.300] (step 0) to a peak of 0.800 [0.700, 0.900] (step 5) and ends at 0.500" in said
    )


def test_a_few_percent_are_given_no_direction():
    close = cell("log_ratio", -0.007, -0.01, -0.004, variant="pca", order=1.0, step=8)
    said = texts(*(r for r in shares(8, 0.3, 0.7, 0.5) if r.variant != "pca"), close)
    assert "0.993 [0.990, 0.996] times pca (within 5%)" in said
    assert "nothing beyond it" in said
    assert "nothing beyond it" not in texts(*shares(8, 0.3, 0.7, 0.5)), (
        "an interval that reaches past 5% decides nothing"
    )


@pytest.mark.parametrize(
    ("low", "word"), [(0.1, "is significantly above"), (-0.1, "is not significantly different from")]
)
def test_frequent_tokens_are_called_above_by_the_interval(low, word):
    assert word in texts(
        cell("frequency_log_ratio", 0.3, low, 0.5, variant="semi_nmf", detail="proxy", order=1.0, freq_bin="target")
    )


def test_the_last_step_is_the_last_that_was_measured_and_the_others_are_named():
    missing = cell("unmeasured", 1.0, detail="too few sequences", step=9)
    said = texts(*shares(8, 0.3, 0.7, 0.5), missing)
    assert "At step 8 the rank-4 proxy" in said
    assert "Some sites could not be measured at steps 9. First reason: too few sequences." in said


def test_frequencies_hide_or_show_curvature_only_beyond_those_permuted_at_random():
    records = []
    for place, (ratio, p_value) in enumerate(
        [(0.8, 0.001), (1.09, 0.001), (0.7, 0.03), (0.9, 0.001), (1.0, 0.5), (math.nan, None)]
    ):
        about = {"site": f"resid.{place}", "depth": float(place), "quantity": "activation"}
        records += [
            cell(RATIO, ratio, ratio - 0.1, ratio + 0.1, variant="corpus", alpha=1.0, **about),
            *([] if p_value is None else [cell(f"p_value/{RATIO}", p_value, variant="corpus", alpha=1.0, **about)]),
            cell(f"null/{RATIO}", 0.98, 0.9, 1.1, variant="corpus", alpha=1.0, **about),
            cell(CORRELATION, -0.1, -0.2, -0.05, variant="corpus", **about),
            cell(f"null/{CORRELATION}", 0.0, -0.1, 0.1, variant="corpus", **about),
            cell(f"p_value/{CORRELATION}", 0.5 if place == 4 else 0.001, variant="corpus", **about),
            cell("resolved", 0.0, **about),
        ]
    said = texts(*records)
    # 0.03 times two is no longer below 0.05, and 0.9 is within 0.1 of what permuted ones give.
    assert (
        "hide curvature at resid.0 and reveal more of it at resid.1. They are not significantly different from" in said
    )
    assert "frequencies at 3 of 6 sites (Holm-corrected); at 1 all patches may be flat. Frequency" in said
    assert "at 5 of 6 sites and rises with it at 0; at 1 neither is shown. Tangent planes stand out from" in said


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path):
    runs = [create_run(tmp_path / place / "run", {}) for place in "ab"]
    for run in runs:
        run.write("x", shares(8, 0.3, 0.7, 0.5))
    assert read_runs(runs)["run"].unique().sort().to_list() == [str(tmp_path / place / "run") for place in "ab"]
    assert tabulate(SECTIONS, read_runs(runs))[0].frame.height == 4
    assert read_runs(runs[:1])["run"].unique().to_list() == ["run"]


def test_records_without_shares_give_no_findings():
    assert find(SECTIONS, as_frame("r", [Record(model="m", metric="loss", value=1.0)])) == []


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("bell", "Anisotropy over depth: a bell, 0.500 at resid.1, above the higher end by 0.300 [0.200, 0.400]"),
        ("valley", "Anisotropy over depth: a valley, 0.500 at resid.1"),
        ("irregular", "Anisotropy over depth: irregular, 0.500 at resid.1"),
        ("monotone", "Anisotropy over depth: monotone, the last site is off the first by 0.300"),
        ("flat", "Anisotropy over depth: flat, all differences between sites are within 0.027; the widest is 0.300"),
        ("undecided", "neither a shape nor that all differences between sites are within 0.027 could be shown; the"),
        ("undecided", "the widest difference is 0.300 [0.200, 0.400], and about 9 batches of this spread would decide"),
    ],
)
def test_the_shape_of_a_profile_is_told(kind, says):
    about = {"site": "resid.1", "quantity": "activation"}
    shape = cell("shape/anisotropy", 0.3, 0.2, 0.4, detail=kind, **about)
    margin, needed = cell("shape_margin/anisotropy", 0.0267), cell("shape_batches_needed/anisotropy", 9.0)
    assert says in texts(*profile_cells("anisotropy", [0.2, 0.5, 0.1]), shape, margin, needed)


def test_what_an_earlier_version_called_flat_is_undecided():
    """It called flat what had no significant difference, and had no margin."""
    shape = cell("shape/anisotropy", 0.3, -0.2, 0.4, site="resid.1", detail="flat", quantity="activation")
    records = [*profile_cells("anisotropy", [0.2, 0.5, 0.1]), shape]
    assert "Anisotropy over depth: undecided" in texts(*records)
    assert profile_over_depth(as_frame("r", records)).title.endswith("m 0.1 to 0.5 (undecided)")


def test_clusters_are_called_rounder_or_longer_by_their_intervals():
    inside = profile_cells("local_anisotropy", [0.1, 0.5, 0.3])
    random = profile_cells("local_anisotropy", [0.3, 0.3, 0.3], variant="matched")
    said = texts(*inside, *random)
    assert "is significantly above that of as many random rows at 1 of 3 sites, significantly below it at 1" in said
    assert "and not significantly different from it at 1 (means 0.300 and 0.300)" in said
