"""Differences between runs, from their own intervals."""

import math

import polars as pl
import pytest

from cells import cell, shares
from tangentlens.report.sections.comparison import difference_over_training, difference_table, differences
from tangentlens.runs.records import as_frame


def run_of(name, proxy, model="m", steps=(0, 8)):
    records = [record for step in steps for record in shares(step, proxy, 0.5, 0.4)]
    records += [
        cell("anisotropy", 0.2, 0.15, 0.25, quantity="activation", rank=None, step=step, ci_over="sequences")
        for step in steps
    ]
    return as_frame(name, records).with_columns(model=pl.lit(model))


def test_a_difference_has_the_interval_of_two_independent_estimates():
    records = pl.concat([run_of("a", 0.3), run_of("b", 0.5)])
    (share,) = differences(records).filter(what="energy share of the proxy", step=8).iter_rows(named=True)
    reach = math.hypot(0.05, 0.05)
    assert share["model_label"] == "b minus a"
    assert (share["value"], share["ci_low"], share["ci_high"]) == pytest.approx((0.2, 0.2 - reach, 0.2 + reach))


def test_what_is_shown_to_differ_and_what_is_not_is_said_by_the_interval():
    (table,) = difference_table(pl.concat([run_of("a", 0.3), run_of("b", 0.5), run_of("c", 0.29)]))
    told = {(what, between): verdict for what, between, _, _, verdict in table.frame.iter_rows()}
    assert told["energy share of the proxy", "b minus a"] == "significantly above"
    assert told["energy share of the proxy", "c minus a"] == "not significantly different"
    assert told["anisotropy", "b minus a"] == "not significantly different"


def test_models_are_compared_by_name_and_a_single_one_with_a_single_one():
    both = pl.concat([run_of("a", 0.3, "x"), run_of("a", 0.3, "y")])
    other = pl.concat([run_of("b", 0.5, "y"), run_of("b", 0.5, "z")])
    assert differences(pl.concat([both, other]))["model_label"].unique().to_list() == ["b minus a, y"]
    assert differences(pl.concat([run_of("a", 0.3, "x"), run_of("b", 0.5, "y")])).height == 4


def test_only_steps_that_both_have_are_compared():
    records = pl.concat([run_of("a", 0.3, steps=(0, 4, 8)), run_of("b", 0.5, steps=(0, 8, 16))])
    assert differences(records)["step"].unique().sort().to_list() == [0, 8]
    assert "b minus a: 0.200 [0.129, 0.271]" in difference_over_training(records).title
    assert difference_over_training(run_of("a", 0.3)) is None
