import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st

from tangentlens import InputError, Subspace


def draw(d, r, seed):
    return Subspace.span(torch.randn(r, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 99))
def test_principal_angles_are_scipys(r, s, seed):
    a, b = draw(7, r, seed), draw(7, s, seed + 1)
    expected = np.sort(scipy.linalg.subspace_angles(a.basis.numpy(), b.basis.numpy()))
    np.testing.assert_allclose(a.principal_angles(b), expected, atol=1e-7)
    np.testing.assert_allclose(a.overlap(b), np.mean(np.cos(expected) ** 2), atol=1e-9)


def test_tiny_angles_are_not_rounded_to_zero():
    a = Subspace.span([[1.0, 0.0, 0.0]])
    tilted = torch.tensor([[1.0, 1e-9, 0.0]], dtype=torch.float64)
    assert float(a.principal_angles(Subspace.span(tilted))) == pytest.approx(1e-9, rel=1e-6)


@given(st.integers(1, 6), st.integers(0, 99))
def test_complement_is_orthogonal_and_fills_the_space(r, seed):
    q = draw(7, r, seed)
    both = torch.cat([q.basis, q.complement().basis], dim=1)
    torch.testing.assert_close(both.T @ both, torch.eye(7, dtype=torch.float64))


def test_span_holds_its_vectors_whatever_their_scale():
    vectors = torch.tensor([[1e-8, 0.0, 0.0], [1e-8, 1e-8, 0.0]])
    q = Subspace.span(vectors)
    assert q.rank == 2
    torch.testing.assert_close(q.project(vectors).norm(dim=1), vectors.norm(dim=1))


def test_span_of_a_rank_takes_the_leading_directions():
    q = Subspace.span([[5.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 3.0]], rank=2)
    torch.testing.assert_close(q.basis[1], torch.zeros(2, dtype=torch.float64))


def test_bad_input_says_what_to_do():
    with pytest.raises(InputError, match="must span 2 dimensions, but 2 vectors in R\\^3 span 1"):
        Subspace.span([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]], rank=2)
    with pytest.raises(InputError, match="must span 1 dimensions"):
        Subspace.span(torch.zeros(2, 3))
    with pytest.raises(InputError, match="orthonormal"):
        Subspace(torch.ones(3, 2))
