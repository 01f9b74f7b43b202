import pytest
import torch

from tangentlens.geometry.leading import leading_vectors


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
