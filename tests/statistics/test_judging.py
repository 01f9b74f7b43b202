"""Verdicts over networks: against scipy's tests, Holm's correction, and simulated families of claims."""

import math

import numpy as np
import pytest
from scipy import stats

from tangentlens import InputError
from tangentlens.statistics.corrections import holm
from tangentlens.statistics.judging import Effect, judge


def test_one_stratum_is_students_test():
    values = [0.3, 0.5, 0.2, 0.6]
    effect = Effect.of([values])
    assert effect.p_value(0.1) == pytest.approx(stats.ttest_1samp(values, 0.1).pvalue)
    low, high = stats.t.interval(0.99, 3, np.mean(values), stats.sem(values))
    assert (effect.interval(0.99).ci_low, effect.interval(0.99).ci_high) == pytest.approx((low, high))


def test_two_strata_are_welchs_test():
    """The mean of one stratum and of the negative of the other is half of Welch's difference."""
    one, other = [1.0, 1.4, 0.9, 1.3], [0.2, 0.9, 0.1]
    effect = Effect.of([one, [-value for value in other]])
    welch = stats.ttest_ind(one, other, equal_var=False)
    assert effect.p_value(0.0) == pytest.approx(welch.pvalue)
    assert effect.degrees == pytest.approx(welch.df)
    assert effect.value == pytest.approx((np.mean(one) - np.mean(other)) / 2)


def test_a_family_is_decided_as_by_holm():
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = {str(i): rng.normal(rng.choice([0, 0.5, 2]), 1, size=4).tolist() for i in range(5)}
        judged = judge({name: Effect.of([v]) for name, v in values.items()}, dict.fromkeys(values, 0.0), frozenset())
        corrected = holm([stats.ttest_1samp(v, 0.0).pvalue for v in values.values()])
        for name, p in zip(values, corrected, strict=True):
            assert (judged[name].verdict != "inconclusive") == (p < 0.05)
            if judged[name].verdict != "inconclusive":
                assert (judged[name].verdict == "supported") == (np.mean(values[name]) > 0)


@pytest.mark.parametrize("strata", [[3], [3, 3], [2, 5]])
def test_a_family_on_the_margin_is_seldom_decided(strata):
    rng, n_families = np.random.default_rng(1), 300
    wrong = 0
    for _ in range(n_families):
        effects = {
            str(i): Effect.of([rng.normal(0.2, s, size=n).tolist() for s, n in enumerate(strata, 1)]) for i in range(8)
        }
        judged = judge(effects, dict.fromkeys(effects, 0.2), frozenset())
        wrong += any(one.verdict != "inconclusive" for one in judged.values())
    assert wrong / n_families < 0.05 + 3 * math.sqrt(0.05 * 0.95 / n_families)


def test_the_claimed_side_decides_the_word():
    effect = Effect.of([[0.9, 1.0, 1.1]])
    for margin, word, below in [(0.5, "supported", "refuted"), (1.5, "refuted", "supported")]:
        assert judge({"a": effect}, {"a": margin}, frozenset())["a"].verdict == word
        assert judge({"a": effect}, {"a": margin}, frozenset({"a"}))["a"].verdict == below


def test_as_many_networks_as_are_needed_decide_and_one_less_does_not():
    effect = Effect.of([[0.0, 0.4, 0.1], [0.3, 0.9, 0.2]])
    needed = effect.needed(0.05, 0.99)
    assert needed is not None
    assert needed > 3
    again = Effect._with(effect.value, (needed, needed), effect.spread)
    less = Effect._with(effect.value, (needed - 1, needed - 1), effect.spread)
    assert again.interval(0.99).ci_low > 0.05 > less.interval(0.99).ci_low
    assert Effect.of([[0.0, 1.0]]).needed(0.5, 0.95) is None


def test_values_that_agree_to_their_resolution_are_not_certain():
    alike = [[1.0, 1.0, 1.0]]
    assert judge({"a": Effect.of(alike)}, {"a": 0.9}, frozenset())["a"].verdict == "supported"
    assert judge({"a": Effect.of(alike, resolution=0.5)}, {"a": 0.9}, frozenset())["a"].verdict == "inconclusive"


def test_a_stratum_of_one_has_no_spread():
    with pytest.raises(InputError, match="at least 2 networks"):
        Effect.of([[1.0, 2.0], [1.0]])
