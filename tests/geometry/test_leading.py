import pytest
import torch

from tangentlens.geometry.leading import krylov_basis, leading_directions, leading_vectors


@pytest.mark.parametrize(
    "spectrum", [torch.arange(1, 601) ** -1.0, torch.ones(600), torch.eye(600)[0], torch.arange(600.0)]
)
@pytest.mark.parametrize("count", [1, 5])
def test_spans_the_leading_eigenvectors(spectrum, count, generator):
    axes = torch.linalg.qr(torch.randn(600, 600, generator=generator, dtype=torch.float64)).Q
    matrix = axes * spectrum.double() @ axes.T
    found = leading_vectors(matrix, count)
    torch.testing.assert_close(found.T @ found, torch.eye(count, dtype=torch.float64))
    taken = (found * (matrix @ found)).sum()
    assert float(taken) == pytest.approx(float(spectrum.double().sort().values[-count:].sum()), rel=1e-6)


def test_a_start_nearby_gives_the_same(generator):
    x = torch.randn(900, 600, generator=generator, dtype=torch.float64) * torch.arange(1, 601) ** -0.5
    matrix, near = x.T @ x, x[:880].T @ x[:880]
    start = torch.linalg.eigh(near).eigenvectors[:, -8:].flip(1)
    exact = torch.linalg.eigh(matrix).eigenvectors[:, -1:]
    assert float((leading_vectors(matrix, 1, start).T @ exact).abs()) == pytest.approx(1, abs=1e-9)


def test_a_start_that_the_matrix_annihilates_does_not_mislead(generator):
    x = torch.zeros(400, 600, dtype=torch.float64)
    x[:, 20:] = torch.randn(400, 580, generator=generator, dtype=torch.float64) * torch.arange(1, 581) ** -0.5
    start = torch.eye(600, dtype=torch.float64)[:, :8]
    exact = torch.linalg.eigh(x.T @ x).eigenvectors[:, -1:]
    assert float((leading_vectors(x.T @ x, 1, start).T @ exact).abs()) == pytest.approx(1, abs=1e-9)


def test_a_start_that_holds_all_but_the_leader_does_not_mislead(generator):
    axes = torch.linalg.qr(torch.randn(600, 600, generator=generator, dtype=torch.float64)).Q
    matrix = axes * torch.arange(1, 601, dtype=torch.float64).flip(0) ** 2 @ axes.T
    found = leading_vectors(matrix, 1, start=axes[:, 1:9])
    assert float((found.T @ axes[:, :1]).abs()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("n", "d"), [(2000, 300), (40, 300), (2000, 60)])
def test_leading_directions_hold_nearly_what_eigenvectors_hold(n, d):
    """In the wide cases from a random block, in the narrow one from all eigenvectors."""
    make = torch.Generator().manual_seed(0)
    rows = torch.randn(n, d, generator=make, dtype=torch.float64) * torch.arange(1, d + 1) ** -0.8
    directions, along = leading_directions(rows, 20)
    torch.testing.assert_close(directions.T @ directions, torch.eye(20, dtype=torch.float64))
    torch.testing.assert_close(along, rows @ directions)
    held, best = along.square().sum(dim=0), torch.linalg.svdvals(rows)[:20] ** 2
    assert 0.99 * float(best.sum()) < float(held.sum()) <= float(best.sum()) * (1 + 1e-9)
    assert (held.diff() <= 0).all()
    mixed = along.T @ along - held.diag()
    assert float(mixed.abs().amax()) < 1e-9 * float(held[0])


def test_leading_directions_of_low_rank_rows_hold_all_of_them():
    make = torch.Generator().manual_seed(0)
    rows = torch.randn(500, 3, generator=make) @ torch.randn(3, 400, generator=make)
    directions, along = leading_directions(rows, 8)
    torch.testing.assert_close(along @ directions.T, rows, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "spectrum", [torch.arange(1, 601) ** -1.0, torch.ones(600), torch.eye(600)[0], torch.arange(600.0)]
)
def test_a_small_basis_holds_the_largest_eigenvalue(spectrum, generator):
    axes = torch.linalg.qr(torch.randn(600, 600, generator=generator, dtype=torch.float64)).Q
    matrix = axes * spectrum.double() @ axes.T
    basis = krylov_basis(matrix)
    torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1], dtype=torch.float64))
    assert basis.shape[1] < 50
    largest = torch.linalg.eigvalsh(basis.T @ matrix @ basis)[-1]
    assert float(largest) == pytest.approx(float(spectrum.double().max()), rel=1e-3)
