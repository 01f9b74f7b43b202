import math

import pytest

from tangentlens.statistics.interval import Interval
from tangentlens.statistics.words import compare, relation


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
