"""Which numbers are marked as decided by few rows, and which records stand for rows that are not massive."""

import math

import pytest

from tangentlens.report.contents import draw, find
from tangentlens.report.reading import marked, without_massive
from tangentlens.report.sections import SECTIONS
from tangentlens.runs.records import Record, as_frame


def frame(*records):
    return as_frame("run", [Record(model="m", **record) for record in records])


def held(value, **about):
    return {"metric": "held_by_top", "value": value, **about}


ACTIVATION = {"quantity": "activation", "site": "resid.1"}
GRADIENT = {"quantity": "gradient", "site": "resid.1", "order": 1.0, "variant": "semi_nmf"}


@pytest.mark.parametrize(("value", "expected"), [(0.9, True), (0.5, False), (0.1, False), (math.nan, False)])
def test_a_number_is_marked_if_the_top_hold_more_than_half_of_it(value, expected):
    records = frame(
        {"metric": "anisotropy", "value": 0.9, **ACTIVATION},
        held(value, variant="anisotropy", **ACTIVATION),
        {"metric": "mean_cosine", "value": 0.5, **ACTIVATION},
    )
    decided = dict(marked(records).select("metric", "decided").iter_rows())
    assert decided == {"anisotropy": expected, "held_by_top": False, "mean_cosine": False}


def test_a_share_of_a_frequency_bin_is_not_marked_for_that_of_all_tokens():
    share = {"metric": "share", "value": 0.4, "detail": "proxy", **GRADIENT}
    records = frame(share, {**share, "freq_bin": "input.0"}, {**share, "order": 2.0}, held(0.8, **GRADIENT))
    assert marked(records)["decided"].to_list() == [True, False, False, False]


def test_a_mean_over_sites_is_marked_if_one_of_them_is():
    anisotropy = {"metric": "anisotropy", "value": 0.9, "quantity": "activation"}
    records = frame(
        {**anisotropy, "site": "resid.0"},
        {**anisotropy, "site": "mean"},
        held(0.8, variant="anisotropy", quantity="activation", site="resid.1"),
    )
    assert marked(records)["decided"].to_list() == [False, True, False]
    assert marked(records).height == records.height


def test_without_massive_rows_means_the_second_reading_wherever_there_is_one():
    share = {"metric": "share", "value": 0.4, "detail": "proxy", **GRADIENT}
    records = frame(
        {**share, "rank": 15},
        {**share, "rank": 16, "rows": "without_massive"},
        {**share, "site": "resid.2"},
        {**share, "site": "resid.3"},
        {"metric": "unmeasured", "value": 1.0, "site": "resid.3", "rows": "without_massive", "detail": "too few rows"},
        {"metric": "shape/anisotropy", "value": 1.0, "site": "resid.2", "rows": "without_massive", "detail": "flat"},
    )
    shares = without_massive(records).filter(metric="share")
    assert shares.select("site", "rows").rows() == [("resid.1", "without_massive"), ("resid.2", "all")]


def test_a_second_reading_that_failed_is_told():
    records = frame(
        {"metric": "unmeasured", "value": 1.0, "site": "resid.3", "rows": "without_massive", "detail": "too few rows"}
    )
    (found,) = find(SECTIONS, records)
    assert found.text == "Some sites could not be measured without massive rows. First reason: too few rows."


def test_massive_rows_only_among_those_that_fit_the_proxy_leave_nothing_to_tell():
    anisotropy = {"metric": "anisotropy", "value": 0.3, "ci_low": 0.2, "ci_high": 0.4, **ACTIVATION, "depth": 0.5}
    records = frame(
        anisotropy,
        {**anisotropy, "rows": "without_massive"},
        {"metric": "massive_rows", "value": 0.0, **ACTIVATION},
    )
    assert not any("assive" in finding.text for finding in find(SECTIONS, records))
    assert not draw(SECTIONS, records)


def test_numbers_without_an_interval_are_not_compared_over_training():
    about = {"metric": "anisotropy", "quantity": "activation", "site": "mean"}
    records = frame(*({**about, "value": 0.3, "step": step} for step in (0, 5)))
    (found,) = [finding.text for finding in find(SECTIONS, records) if "nisotropy" in finding.text]
    assert "without an interval, and so not compared with" in found
