"""Rank correlations against scipy, a regression, and planted networks."""

import math

import numpy as np
import pytest
from scipy import stats

from tangentlens.statistics.correlation import partial_spearman, spearman, with_interval


@pytest.fixture
def numbers():
    return np.random.default_rng(0).integers(0, 9, size=(3, 60)).astype(float)


def test_it_is_the_one_of_scipy_with_ties(numbers):
    assert spearman(numbers[0], numbers[1]) == pytest.approx(stats.spearmanr(numbers[0], numbers[1]).statistic)


def test_given_a_third_it_is_the_correlation_of_what_a_regression_leaves(numbers):
    x, y, z = (stats.rankdata(one) for one in numbers)
    left = [one - np.polyval(np.polyfit(z, one, 1), z) for one in (x, y)]
    assert partial_spearman(*numbers) == pytest.approx(np.corrcoef(*left)[0, 1])


def test_what_never_changes_has_no_correlation(numbers):
    assert math.isnan(spearman(numbers[0], np.ones(60)))
    assert math.isnan(partial_spearman(numbers[0], numbers[1], np.ones(60)))
    assert math.isnan(partial_spearman(numbers[0], numbers[1], numbers[0]))


def test_what_a_third_number_makes_is_gone_given_that():
    make = np.random.default_rng(1)
    cause = make.normal(size=400)
    x, y = (cause + 0.3 * make.normal(size=400) for _ in range(2))
    assert spearman(x, y) > 0.8
    assert abs(partial_spearman(x, y, cause)) < 0.1


@pytest.mark.parametrize("n", [8, 24])
@pytest.mark.parametrize("strength", [0.0, 0.6])
def test_an_interval_covers_the_truth(n, strength):
    make = np.random.default_rng(3)
    # The rank correlation of two normal numbers with this correlation.
    truth = 6 / math.pi * math.asin(strength / 2)
    covered = 0
    for _ in range(300):
        x = make.normal(size=n)
        found = with_interval(x, strength * x + math.sqrt(1 - strength**2) * make.normal(size=n))
        covered += found.ci_low <= truth <= found.ci_high
    assert 0.92 * 300 <= covered <= 0.985 * 300


def test_an_interval_given_a_third_number_covers_0_if_that_explains_all():
    make = np.random.default_rng(4)
    covered = 0
    for _ in range(300):
        cause = make.normal(size=16)
        x, y = (cause + make.normal(size=16) for _ in range(2))
        found = with_interval(x, y, cause)
        covered += found.ci_low <= 0 <= found.ci_high
    assert 0.9 * 300 <= covered <= 0.985 * 300


@pytest.mark.parametrize("sign", [1, -1])
def test_a_perfect_correlation_has_an_interval(sign):
    order = np.arange(7.0)
    found = with_interval(order, sign * order)
    assert found.value == pytest.approx(sign)
    # It counts as 1 - 1e-9. Close to 1, z is half the logarithm of 2 / (1 - r).
    stretch = math.exp(2 * stats.norm.ppf(0.975) * math.sqrt(1.06 / 4))
    low, high = sorted((sign * found.ci_low, sign * found.ci_high))
    assert (1 - low, 1 - high) == pytest.approx((1e-9 * stretch, 1e-9 / stretch), rel=1e-3)


def test_few_observations_have_no_interval():
    assert with_interval([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]) is None
    assert with_interval([1.0, 2.0, 3.0, 4.0, 6.0], [1.0, 2.0, 3.0, 4.0, 0.0], [0.0, 4.0, 2.0, 1.0, 1.0]) is None
    assert with_interval([1.0] * 9, [1.0] * 9) is None
