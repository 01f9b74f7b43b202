import pytest
import torch

from tangentlens.errors import InputError
from tangentlens.proxies.principal import Principal


def rows(n=500, d=6, dtype=torch.float32):
    make = torch.Generator().manual_seed(0)
    return (torch.randn(n, d, generator=make, dtype=torch.float64) * torch.arange(1, d + 1)).to(dtype)


@pytest.mark.parametrize("center", [True, False])
def test_points_are_rows_around_the_mean_at_a_length_of_one(center):
    x = rows() + 3
    found = Principal.of(x, center)
    mean = x.double().mean(dim=0) if center else torch.zeros(6, dtype=torch.float64)
    scale = float((x.double() - mean).square().sum(dim=1).mean().sqrt())
    assert found.scale == pytest.approx(scale)
    torch.testing.assert_close(found.mean.double(), mean, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found.points.double(), (x - mean) / scale, atol=1e-6, rtol=1e-5)


def test_eigenvalues_are_shares_of_the_variance():
    x = rows(dtype=torch.float64)
    found = Principal.of(x)
    truth = torch.linalg.eigvalsh(x.T.cov(correction=0)).flip(0)
    torch.testing.assert_close(found.values, truth / truth.sum())
    torch.testing.assert_close(
        found.vectors.T @ x.T.cov() @ found.vectors,
        (found.vectors.T @ x.T.cov() @ found.vectors).diag().diag(),
        atol=1e-9,
        rtol=0,
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_a_span_is_that_of_eigenvectors_of_the_covariance_by_falling_variance(dtype, tolerance):
    x = rows(dtype=dtype)
    expected = torch.linalg.eigh(x.double().T.cov()).eigenvectors.flip(1)
    for place in (slice(2), slice(1, 4), slice(-2, None)):
        basis = Principal.of(x).span(place).basis
        torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1]).double(), atol=1e-14, rtol=0)
        torch.testing.assert_close(basis.abs(), expected[:, place].abs(), atol=tolerance, rtol=0)


@pytest.mark.parametrize("offset", [1e3, 1e5])
def test_a_large_offset_costs_no_more_digits_than_the_rows_have_lost(offset):
    x = rows() + offset
    truth = x.double() - x.double().mean(dim=0)
    found = Principal.of(x)
    torch.testing.assert_close(found.points.double() * found.scale, truth, atol=1e-6 * offset, rtol=0)
    assert float(found.points.mean(dim=0).abs().amax()) < 1e-6


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_squares_neither_vanish_nor_overflow(scale):
    assert Principal.of(rows() * scale).scale == pytest.approx(scale * Principal.of(rows()).scale, rel=1e-5)


@pytest.mark.parametrize("x", [torch.zeros(5, 3), torch.full((5, 3), 0.1), torch.full((5, 3), 1e20)])
def test_equal_rows_are_refused(x):
    with pytest.raises(InputError, match="rows must differ for concepts to exist, but all are equal"):
        Principal.of(x)
