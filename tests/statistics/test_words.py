import math

import pytest

from tangentlens.statistics.interval import Interval
from tangentlens.statistics.words import compare, relation, tally


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (0.2, 0.4, "above"),
        (-0.4, -0.2, "below"),
        (-0.04, 0.04, "equivalent"),
        # A difference that is sure, but surely too small to matter.
        (0.01, 0.04, "equivalent"),
        (-0.04, 0.06, "undecided"),
        (-math.inf, math.inf, "undecided"),
        (math.nan, math.nan, "no interval"),
    ],
)
def test_no_difference_shown_is_not_equivalence_shown(low, high, says):
    assert relation(Interval((low + high) / 2, low, high)) == says


def test_a_random_control_is_judged_by_its_p_value_as_well():
    ratio = Interval(0.7, 0.6, 0.8)
    assert "significantly above, p = 0.001" in compare("random", ratio, 0.001)
    assert "not significantly above a single draw, p = 0.3" in compare("random", ratio, 0.3)
    assert "p =" not in compare("random", Interval(-0.7, -0.8, -0.6), 0.9)


def test_without_an_interval_nothing_is_claimed():
    words = compare("random", Interval(0.7, math.nan, math.nan), 0.001)
    assert words == "2.01 (no interval) times random (without an interval, and so not compared)"
    assert repr(Interval(math.nan, math.nan, math.nan)) == "not estimable"
    assert Interval(0.7, math.nan, math.nan).columns()["ci_low"] is None


@pytest.mark.parametrize(
    ("ratio", "says"),
    [
        (Interval(1.0, 1.0001, 1.01), "equivalent"),
        (Interval(1.2, 0.9, 1.6), "undecided"),
        (Interval(1.3, 1.2, 1.4), "above"),
        (Interval(0.1, -0.1, 0.3), "below"),
        (Interval(0.1, math.nan, math.nan), "no interval"),
    ],
)
def test_a_ratio_is_judged_by_its_logarithm(ratio, says):
    assert relation(ratio.log()) == says


def test_two_numbers_with_intervals_of_their_own_are_judged_by_the_widest_ratio():
    small, large = Interval(0.1, -0.05, 0.2), Interval(0.5, 0.4, 0.6)
    assert relation(small.log_over(large)) == "below"
    assert relation(large.log_over(small)) == "above"
    assert relation(Interval(0.5, 0.499, 0.501).log_over(Interval(0.505, 0.504, 0.506))) == "equivalent"
    assert relation(large.log_over(Interval(0.5, math.nan, math.nan))) == "no interval"


def test_places_that_disagree_are_counted():
    kinds = ["above"] * 3 + ["below", "undecided", "equivalent"]
    assert tally(kinds, "r/d", "charts", "in") == (
        "significantly above r/d in 3 of 6 charts, significantly below it in 1, within 5% of it in 1 and not "
        "significantly different from it in 1"
    )
    assert tally(["undecided"] * 2, "r/d") == "not significantly different from r/d at 2 of 2 sites"
    assert tally([], "r/d") == "compared with r/d at no sites"
