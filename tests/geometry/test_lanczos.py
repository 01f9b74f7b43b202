import pytest
import torch

from tangentlens.geometry.lanczos import largest

DIM = 200


def matrix_of(spectrum):
    turn = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    return turn * spectrum @ turn.T


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("falls", [0.0, 0.01, 1.0])
def test_the_largest_are_those_of_a_full_decomposition(falls, scale):
    spectrum = scale * torch.arange(1, DIM + 1, dtype=torch.float64) ** -falls
    matrix = matrix_of(spectrum)
    values, vectors = largest(matrix, 4)
    torch.testing.assert_close(values, spectrum[:4], rtol=1e-9, atol=0)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(matrix @ vectors, vectors * values, rtol=0, atol=1e-8 * scale)


def test_vectors_are_orthonormal_even_where_fewer_eigenvalues_differ_from_0():
    spectrum = torch.zeros(DIM, dtype=torch.float64)
    spectrum[:2] = torch.tensor([3.0, 2.0])
    values, vectors = largest(matrix_of(spectrum), 8)
    torch.testing.assert_close(values, spectrum[:8], rtol=0, atol=1e-12)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(8, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("count", [1, 3])
def test_a_small_matrix_and_one_that_is_0_have_them_too(count):
    for matrix in (torch.diag(torch.tensor([1.0, 3.0, 2.0])).double(), torch.zeros(3, 3, dtype=torch.float64)):
        values, vectors = largest(matrix, count)
        torch.testing.assert_close(values, matrix.diagonal().sort(descending=True).values[:count])
        torch.testing.assert_close(vectors.T @ vectors, torch.eye(count, dtype=torch.float64))


def test_it_is_the_same_each_time():
    matrix = matrix_of(torch.arange(1, DIM + 1, dtype=torch.float64) ** -0.5)
    assert all(torch.equal(one, other) for one, other in zip(largest(matrix, 3), largest(matrix, 3), strict=True))


@pytest.mark.parametrize("gap", [0.5, 1e-3, 1e-6])
def test_a_vector_whose_eigenvalue_hardly_stands_out(gap, generator):
    axes = torch.linalg.qr(torch.randn(300, 300, generator=generator, dtype=torch.float64)).Q
    values = torch.linspace(0, 1, 300, dtype=torch.float64)
    values[-2] = 1 - gap
    found = largest((axes * values) @ axes.T, 1)[1][:, 0]
    # Vectors of nearly equal eigenvalues are told apart as well as rounding allows.
    assert float((found @ axes[:, -1]).abs()) == pytest.approx(1, abs=1e-9 / gap)


def test_equal_rows_have_some_leading_direction():
    assert float(largest(torch.zeros(40, 40, dtype=torch.float64), 1)[1].norm()) == pytest.approx(1)
