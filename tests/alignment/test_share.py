import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tangentlens import InputError, Moments, Subspace, share


def naive(g, q, order):
    """The definition, eigenvector by eigenvector."""
    values, vectors = torch.linalg.eigh(g.T @ g)
    if order == math.inf:
        return float((q.basis.T @ vectors[:, -1]).square().sum())
    weights = [float(value) ** order for value in values.clamp_min(0)]
    inside = [float((q.basis.T @ vectors[:, k]).square().sum()) for k in range(len(values))]
    return sum(w * i for w, i in zip(weights, inside, strict=True)) / sum(weights)


@given(st.integers(2, 30), st.integers(1, 5), st.sampled_from([1, 2, 3, 1.5, math.inf]), st.integers(0, 99))
def test_equals_the_definition(n, r, order, seed):
    make = torch.Generator().manual_seed(seed)
    g = torch.randn(n, 6, generator=make, dtype=torch.float64) * torch.arange(1, 7)
    q = Subspace.span(torch.randn(r, 6, generator=make, dtype=torch.float64))
    expected = pytest.approx(naive(g, q, order), abs=1e-9)
    assert share(g, q, order) == expected
    assert share(Moments.of(g), q, order) == expected


def test_energy_share_is_the_ratio_of_norms(generator):
    g = torch.randn(50, 6, generator=generator)
    q = Subspace.span(torch.randn(2, 6, generator=generator))
    assert share(g, q) == pytest.approx(float((g @ q.basis.float()).square().sum() / g.square().sum()), rel=1e-5)


def test_shares_of_a_subspace_and_its_complement_add_up(generator):
    g = torch.randn(50, 6, generator=generator)
    q = Subspace.span(torch.randn(2, 6, generator=generator))
    for order in (1, 2, 5, math.inf):
        assert share(g, q, order) + share(g, q.complement(), order) == pytest.approx(1)


def test_scale_does_not_matter_even_when_tiny(generator):
    g = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    q = Subspace.span(torch.randn(2, 6, generator=generator))
    for order in (1, 2, 4):
        assert share(1e-30 * g, q, order) == pytest.approx(share(g, q, order))


def test_bad_input_says_what_to_do():
    q = Subspace.span(torch.eye(3)[:2])
    with pytest.raises(InputError, match="must not all be zero"):
        share(torch.zeros(4, 3), q)
    with pytest.raises(InputError, match="the space of the gradients, R\\^5, but lies in R\\^3"):
        share(torch.ones(4, 5), q)
    with pytest.raises(InputError, match="order must be above 0"):
        share(torch.ones(4, 3), q, order=0)
