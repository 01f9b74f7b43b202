import itertools

import pytest
import torch

from tangentlens import tangent_test
from tangentlens.alignment.permuted import (
    N_PERMUTATIONS,
    PairSums,
    Permutations,
    ones,
    permuted_mean,
    permuted_variance,
)
from tangentlens.alignment.tangent_result import Cell
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.random import random


def matrix_of(dim, seed=0, mean=0.5):
    rows = torch.randn(3 * dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + mean
    rows[:, 1] *= 3
    return rows.T @ rows / rows.square().sum()


@pytest.mark.parametrize("dim", [2, 3, 4, 6])
def test_mean_and_variance_are_those_of_all_permutations(dim):
    matrix, rank = matrix_of(dim), dim // 2
    q = Subspace.span(torch.randn(rank, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.3)
    shares = torch.tensor(
        [
            float((q.basis[list(order)].T @ matrix @ q.basis[list(order)]).trace())
            for order in itertools.permutations(range(dim))
        ],
        dtype=torch.float64,
    )
    axis = ones(q).basis
    assert float(permuted_mean((axis.T @ matrix @ axis)[0, 0], q)) == pytest.approx(float(shares.mean()))
    assert permuted_variance(PairSums.of_projection(q), PairSums.of(matrix)) == pytest.approx(
        float(shares.var(correction=0)), abs=1e-12
    )


def test_draws_have_the_quantiles_of_real_permutations():
    """One axis that the proxy prefers and three that the gradients prefer: a distribution of two humps."""
    make = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 20, generator=make, dtype=torch.float64)
    rows[:, :3] *= 4
    matrix = rows.T @ rows / rows.square().sum()
    q = Subspace.span(torch.randn(2, 20, generator=make, dtype=torch.float64) + 9 * torch.eye(2, 20))
    orders = torch.rand(4000, 20, generator=make).argsort(dim=1)
    real = torch.stack([(q.basis[order].T @ matrix @ q.basis[order]).trace() for order in orders])
    (found,) = Permutations(q, seed=0).chances([PairSums.of(matrix)])
    for level in (0.5, 0.9, 0.99):
        share = float(real.quantile(level))
        # Three standard errors of a rate over 1,999 permutations, and as much for those it is compared with.
        error = 4 * (level * (1 - level) / N_PERMUTATIONS) ** 0.5
        assert found.p_value(share) == pytest.approx(1 - level, abs=error + 1e-3)
    interval = found.interval()
    assert interval.ci_low <= found.mean <= interval.ci_high
    assert interval.ci_over == "control draws"


def outliers(make, related=False, d=48, n_sequences=40, length=10):
    """Activations and gradients that prefer six axes each, unrelated or the same ones."""
    axes = torch.randperm(d, generator=make)[:6]
    other = axes if related else torch.randperm(d, generator=make)[:6]
    activations, gradients = torch.randn(2, n_sequences * length, d, generator=make)
    activations[:, axes] *= 4
    gradients[:, other] *= 4 if related else 4 * torch.rand(6, generator=make)
    return activations, gradients, torch.arange(n_sequences * length) // length


def p_values(n_replicates):
    """Return the p-values of unrelated axes against random and against permuted, at orders 1 and 2."""
    make = torch.Generator().manual_seed(0)
    found = {(control, order): [] for control in ("random", "permuted") for order in (1.0, 2.0)}
    for _ in range(n_replicates):
        test = tangent_test(*outliers(make), rank=6, proxy="pca", controls=["random", "permuted"], orders=(1.0, 2.0))
        for (control, order), values in found.items():
            values.append(test.p_values[Cell(control, order, "all")])
    return {key: torch.tensor(values) for key, values in found.items()}


def test_unrelated_outlier_axes_are_significant_against_any_directions_but_not_against_other_axes():
    found = p_values(40)
    for order in (1.0, 2.0):
        assert int((found["random", order] < 0.001).sum()) >= 4
        assert int((found["permuted", order] < 0.01).sum()) <= 2


@pytest.mark.calibration
def test_permuted_rejects_unrelated_axes_at_the_nominal_rate():
    found = p_values(500)
    for order in (1.0, 2.0):
        assert int((found["random", order] < 0.001).sum()) > 50
        # What 500 draws at these rates give in all but one of a thousand cases.
        for level, most in ((0.05, 41), (0.01, 13), (0.001, 4)):
            assert int((found["permuted", order] < level).sum()) <= most


def test_related_axes_are_significant_against_permuted_too():
    make = torch.Generator().manual_seed(0)
    for _ in range(5):
        test = tangent_test(*outliers(make, related=True), rank=6, proxy="pca", controls=["permuted"])
        assert test.p_values[Cell("permuted", 1.0, "all")] < 0.01


def test_a_planted_tangent_without_preferred_axes_keeps_its_power():
    make = torch.Generator().manual_seed(0)
    turn = random(48, 48).basis.float()
    activations, gradients, sequences = outliers(make, related=True)
    test = tangent_test(activations @ turn, gradients @ turn, sequences, rank=6, controls=["random", "permuted"])
    for control in ("random", "permuted"):
        assert test.p_values[Cell(control, 1.0, "all")] < 0.001


def test_the_control_is_reported_like_the_others():
    make = torch.Generator().manual_seed(0)
    test = tangent_test(*outliers(make), rank=6, controls=["permuted", "random"])
    assert test.variants == ["semi_nmf", "permuted", "random"]
    assert "all ones" not in test.subspaces
    assert test.share("permuted").ci_over == "control draws"
    # Without a direction of all ones in gradients or proxy, the mean is about r / d.
    assert test.share("permuted").value == pytest.approx(6 / 48, rel=0.05)
    assert "times permuted (" in test.verdict()
    again = tangent_test(*outliers(torch.Generator().manual_seed(0)), rank=6, controls=["permuted", "random"])
    assert again.table.equals(test.table)
