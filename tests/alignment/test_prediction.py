"""Prediction of later gradients: planted directions, the ceiling, and a plain computation."""

import math

import pytest
import torch

from tangentlens import Subspace
from tangentlens.alignment.prediction import GRADIENTS_NOW, leading_gradients, prediction_test
from tangentlens.alignment.rows import TokenRows


def rows_with(gradients, length=16):
    n = len(gradients)
    return TokenRows.of(torch.zeros_like(gradients), gradients, torch.arange(n) // length, torch.arange(n) % 7)


def planted(generator, n=1600, d=24, r=3, noise=0.5):
    """Gradients in the first r axes, with noise in all."""
    gradients = noise * torch.randn(n, d, generator=generator, dtype=torch.float64)
    gradients[:, :r] += 3 * torch.randn(n, r, generator=generator, dtype=torch.float64)
    return gradients


def axes(d, *which):
    return Subspace.span(torch.eye(d, dtype=torch.float64)[list(which)])


def test_the_right_directions_reach_the_ceiling_and_wrong_ones_do_not(generator):
    gradients = planted(generator)
    then = {"right": axes(24, 0, 1, 2), "wrong": axes(24, 7, 8, 9), "half": axes(24, 0, 8, 9)}
    test = prediction_test(then, rows_with(gradients))
    assert test.log_ratio(GRADIENTS_NOW).value == pytest.approx(0, abs=0.01)
    assert test.log_ratio("wrong").ci_low > 1
    assert test.log_ratio("half").value == pytest.approx(math.log(3), abs=0.25)
    assert test.share("random").value == pytest.approx(3 / 24)


def test_shares_are_those_of_the_second_half_of_the_sequences(generator):
    gradients = planted(generator)
    test = prediction_test({"proxy": axes(24, 0, 5, 6)}, rows_with(gradients))
    later = gradients[800:]
    assert test.share("proxy").value == pytest.approx(float(later[:, [0, 5, 6]].square().sum() / later.square().sum()))
    now = torch.linalg.svd(gradients[:800], full_matrices=False).Vh[:3]
    ceiling = float((later @ now.T).square().sum() / later.square().sum())
    assert test.share(GRADIENTS_NOW).value == pytest.approx(ceiling, rel=1e-6)
    assert {cell.freq_bin for cell in test.shares} == {"all"}


def test_the_ceiling_is_not_fitted_to_what_it_is_tested_on(generator):
    """Of gradients without any common direction, the directions of one half take no more of the other than chance."""
    test = prediction_test({"proxy": axes(24, 0, 1, 2)}, rows_with(torch.randn(1600, 24, generator=generator)))
    assert test.share(GRADIENTS_NOW).value == pytest.approx(3 / 24, rel=0.15)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_directions_do_not_depend_on_the_scale(generator, scale):
    gradients = planted(generator)
    found = leading_gradients(scale * gradients, 3)
    assert found.overlap(axes(24, 0, 1, 2)) > 0.99
