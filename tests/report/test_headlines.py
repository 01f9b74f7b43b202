"""What a headline says of borderline numbers: no more than the interval allows, and by the same rule everywhere."""

import math
from dataclasses import replace

import pytest

from cells import cell, profile_cells, shares
from tangentlens.report.contents import draw, find, key_figures
from tangentlens.report.sections.active import own_concepts, own_over_depth
from tangentlens.report.sections.comparison import difference_table
from tangentlens.report.sections.frequency import share_by_frequency
from tangentlens.report.sections.geometry import change
from tangentlens.report.sections.shares import emerges, share_over_depth
from tangentlens.runs.records import as_frame
from tangentlens.studies import SECTIONS
from tangentlens.studies.audit import verdicts
from tangentlens.studies.visibility.plan import RATIO

# A ratio with its interval, what may be said of it, and the sign of its card.
BORDERLINE = [
    ((1.0, 1.0001, 1.01), "within 5% of", "equal"),
    ((1.02, 1.001, 1.04), "within 5% of", "equal"),
    ((1.2, 0.9, 1.6), "not significantly different from", "open"),
    ((1.3, 1.2, 1.4), "significantly above", "more"),
    ((0.7, 0.6, 0.8), "significantly below", "less"),
]


def log_cell(metric, ratio, **about):
    return cell(metric, *map(math.log, ratio), **about)


def told(say, *records):
    return " ".join(say(as_frame("r", records)))


@pytest.mark.parametrize(("ratio", "word", "_"), BORDERLINE)
def test_charts_of_an_audit(ratio, word, _):
    about = {"metric": "audit/charts", "site": "resid.1", "depth": 0.5}
    assert f"of their own chart is {word} that in other charts' planes at 1 of 1 sites" in told(
        verdicts, log_cell(**about, ratio=ratio, variant="log_ratio")
    )


def test_of_six_charts_three_are_not_all():
    ratios = [(1.3, 1.2, 1.4)] * 3 + [(1.2, 0.9, 1.6)] + [(1.0, 1.0001, 1.01)] * 2
    charts = [
        log_cell("audit/charts", ratio, site="resid.1", depth=0.5, variant=f"log_ratio of chart {number}")
        for number, ratio in enumerate(ratios)
    ]
    mean = log_cell("audit/charts", (1.1, 1.02, 1.2), site="resid.1", depth=0.5, variant="log_ratio")
    said = told(verdicts, mean, *charts)
    assert "On average over charts, " in said
    assert (
        "Chart by chart, it is significantly above that in other charts' planes in 3 of 6 charts, within 5% of it in 2 "
        "and not significantly different from it in 1." in said
    )


@pytest.mark.parametrize(("ratio", "word", "_"), BORDERLINE)
def test_concepts_of_the_own_token(ratio, word, _):
    about = {"site": "resid.1", "depth": 0.5}
    records = [
        log_cell(metric, ratio, variant="concepts", **about)
        for metric in ("active_token_log_ratio", "active_log_ratio")
    ]
    records += [log_cell(metric, ratio, **about) for metric in ("active_token_advantage", "active_advantage")]
    said = told(own_concepts, *records)
    assert said.count(f"is {word} that in the concepts of other tokens at 1 of 1 sites") == 2
    assert said.count(f"is {word} that of principal components at 1 of 1 sites") == 2


def test_the_heading_of_a_figure_claims_nothing_where_its_numbers_do_not_fit():
    """What stands before the colon of a long title is the heading; the counts of many networks follow as a caption."""
    records = [
        log_cell("active_token_log_ratio", ratio, variant="concepts", site=f"resid.{place}", depth=place / 5)
        for place, ratio in enumerate([(1.3, 1.2, 1.4)] * 3 + [(1.0, 1.0001, 1.01)] * 3)
    ]
    title = own_over_depth(as_frame("r", records)).title
    assert title.endswith(
        "m significantly above that in those of other tokens at 3 of 6 sites and within 5% of it at 3"
    )
    assert "prefer" not in title.partition(":")[0]


@pytest.mark.parametrize(("ratio", "word", "_"), BORDERLINE)
def test_shares_over_chance(ratio, word, _):
    about = {"order": 1.0, "quantity": "gradient"}
    records = []
    for site in range(2):
        place = {"site": f"resid.{site}", "depth": float(site), **about}
        value, low, high = (0.125 * end for end in ratio)
        records += [
            cell("share", value, low, high, variant="semi_nmf", detail="proxy", **place),
            cell("share", 0.125, 0.125, 0.125, variant="random", **place),
        ]
    title = share_over_depth(as_frame("r", records)).title
    assert title == f"The proxy's energy share at the last step: {word} r/d at 2 of 2 sites"


@pytest.mark.parametrize(("ratio", "word", "sign"), BORDERLINE)
def test_cards_over_training(ratio, word, sign):
    records = [
        cell("anisotropy", 0.4, 0.4, 0.4, step=0, quantity="activation"),
        cell("anisotropy", *(0.4 * end for end in ratio), step=5, quantity="activation"),
        cell("share", 0.125, 0.125, 0.125, variant="random", order=1.0, step=5),
        cell("share", 0.2, 0.1, 0.3, variant="semi_nmf", detail="proxy", order=1.0, step=5),
        *(log_cell("log_ratio", ratio, variant=variant, order=1.0, step=5) for variant in ("random", "pca")),
    ]
    (model,) = key_figures(SECTIONS, as_frame("r", records))
    assert [card.sign for card in model.cards] == [sign] * 3
    assert all(card.verdict.startswith(word) for card in model.cards)


@pytest.mark.parametrize(
    ("ratio", "says"),
    [
        ((1.02, 1.01, 1.03), "(step 5), within 5% of 0.400"),
        ((1.2, 0.9, 1.6), "(step 5), not significantly different from 0.400"),
        ((1.3, 1.2, 1.4), "rises from 0.400"),
        ((0.7, 0.6, 0.8), "falls from 0.400"),
    ],
)
def test_a_change_over_training_that_is_surely_small_is_no_rise(ratio, says):
    first = cell("anisotropy", 0.4, 0.4, 0.4, step=0, quantity="activation")
    last = cell("anisotropy", *(0.4 * end for end in ratio), step=5, quantity="activation")
    assert says in told(change, first, last)


def test_what_is_surely_within_five_percent_does_not_emerge():
    steps = [record for step in (0, 1, 2) for record in shares(step, 0.3, 0.02, 0.01)]
    small = [log_cell("log_ratio", (1.02, 1.01, 1.03), variant="normal", order=1.0, step=step) for step in (0, 1, 2)]
    kept = [record for record in steps if record.variant != "normal"]
    assert "is not significantly above the mean of the normal control" in told(emerges, *kept, *small)
    alone = [replace(record, ci_low=None, ci_high=None) for record in small]
    assert "has no interval at the last step, so that it is not compared" in told(emerges, *kept, *alone)


@pytest.mark.parametrize(("ratio", "word", "_"), BORDERLINE)
def test_clusters(ratio, word, _):
    inside = profile_cells("local_anisotropy", [0.2, 0.2])
    random = profile_cells("local_anisotropy", [0.2, 0.2], variant="matched", half=0.0)
    inside = [
        cell("local_anisotropy", *(0.2 * end for end in ratio), site=one.site, depth=one.depth, quantity="activation")
        if one.metric == "local_anisotropy"
        else one
        for one in inside
    ]
    said = " ".join(finding.text for finding in find(SECTIONS, as_frame("r", [*inside, *random])))
    assert f"Inside clusters, the anisotropy is {word} that of as many random rows at 2 of 2 sites" in said


def test_runs_that_differ_by_a_percent_do_not_differ():
    def run(name, value):
        steps = [
            cell("anisotropy", value, value - 0.0005, value + 0.0005, step=step, quantity="activation", rank=None)
            for step in (0, 1)
        ]
        return as_frame(name, steps)

    def verdict(value):
        (table,) = difference_table(run("a", 0.4).vstack(run("b", value)))
        return table.frame["verdict"].item()

    assert verdict(0.404) == "within 5%"
    assert verdict(0.5) == "significantly above"


def test_frequencies_that_change_curvature_by_a_percent_hide_none():
    about = {"quantity": "activation", "variant": "corpus", "alpha": 1.0}
    records = [
        record
        for place, ratio in enumerate([(0.97, 0.96, 0.98), (0.7, 0.6, 0.8)])
        for record in (
            cell(RATIO, *ratio, site=f"resid.{place}", depth=float(place), **about),
            cell(f"p_value/{RATIO}", 0.001, site=f"resid.{place}", depth=float(place), **about),
            cell(f"null/{RATIO}", 1.0, 0.99, 1.01, site=f"resid.{place}", depth=float(place), **about),
        )
    ]
    said = " ".join(finding.text for finding in find(SECTIONS, as_frame("r", records)))
    assert "those frequencies hide curvature at resid.1 and reveal more of it at no site" in said


def test_the_title_of_frequencies_has_the_interval():
    about = {"order": 1.0, "variant": "semi_nmf", "detail": "proxy"}
    bins = [cell("share", 0.3, 0.2, 0.4, freq_bin=f"target.{number}", **about) for number in (0, 1)]
    contrast = log_cell("frequency_log_ratio", (1.2, 0.9, 1.6), freq_bin="target", **about)
    assert share_by_frequency(as_frame("r", [*bins, contrast])).title.endswith("m 1.20 [0.900, 1.60] times")


def test_no_title_says_prefer_or_more():
    records = [
        *shares(4, 0.3, 0.02, 0.01),
        *shares(8, 0.3, 0.02, 0.01),
        *(cell("anisotropy", 0.4, 0.39, 0.41, step=step, quantity="activation", rank=None) for step in (4, 8)),
    ]
    titles = " ".join(figure.title for figure in draw(SECTIONS, as_frame("r", records)))
    assert titles
    assert "prefer" not in titles
    assert " more" not in titles
