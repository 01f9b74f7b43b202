import math

import pytest
import torch

from tangentlens.errors import InputError
from tangentlens.statistics.influence import DECIDES, TOP, effective_number, held_by_top


def test_equal_contributions_hold_their_own_fraction():
    assert held_by_top(torch.ones(1000)) == pytest.approx(TOP)
    assert held_by_top(torch.ones(100), fraction=0.07) == pytest.approx(0.07)


def test_a_naive_sum_over_the_sorted_contributions_agrees():
    contributions = torch.randn(950, generator=torch.Generator().manual_seed(0)).exp()
    largest = sorted(contributions.double().tolist(), reverse=True)
    # 9.5 observations are 1% of 950: the tenth counts.
    assert held_by_top(contributions) == pytest.approx(sum(largest[:10]) / sum(largest))


def test_one_loud_observation_decides_even_if_it_is_more_than_the_fraction():
    held = held_by_top(torch.tensor([8.0, 1.0, 1.0]))
    assert held == pytest.approx(0.8)
    assert held > DECIDES


def test_negative_contributions_count_as_nothing():
    assert held_by_top(torch.tensor([3.0, 1.0, -2.0]), fraction=0.3) == pytest.approx(0.75)


def test_nothing_is_held_of_nothing():
    assert math.isnan(held_by_top(torch.zeros(5)))
    assert math.isnan(held_by_top(torch.zeros(0)))


def test_a_fraction_is_above_0_and_at_most_1():
    for fraction in (0.0, -0.1, 1.5, math.nan):
        with pytest.raises(InputError, match="fraction must be above 0"):
            held_by_top(torch.ones(5), fraction)


def test_the_effective_number_of_equal_weights_is_their_number_at_any_scale():
    for scale in (1e-200, 1.0, 1e200):
        assert effective_number(scale * torch.ones(7, dtype=torch.float64)) == pytest.approx(7)
    assert effective_number(torch.tensor([9.0, 3.0, 0.0])) == pytest.approx(144 / 90)
    assert math.isnan(effective_number(torch.zeros(3)))
