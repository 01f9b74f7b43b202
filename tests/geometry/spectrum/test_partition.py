import math

import numpy as np
import pytest
import torch

from tangentlens import partition_isotropy


def naive(x):
    """Mu and Viswanath's definition in numpy, over eigenvectors of both signs."""
    _, vectors = np.linalg.eigh(x.T @ x)
    sums = [sum(math.exp(sign * float(v @ row)) for row in x) for v in vectors.T for sign in (1, -1)]
    return min(sums) / max(sums)


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_definition(seed):
    x = np.random.default_rng(seed).normal(size=(50, 6)) * [3, 1, 1, 0.5, 0.5, 0.1] + 0.3
    assert partition_isotropy(x) == pytest.approx(naive(x), rel=1e-9)


def test_it_is_eigenvectors_that_count_not_rows_of_their_matrix():
    """Columns of the matrix of eigenvectors; its rows, a known mistake, give another number here."""
    x = np.random.default_rng(0).normal(size=(80, 4)) @ np.random.default_rng(1).normal(size=(4, 4)) + 1
    _, vectors = np.linalg.eigh(x.T @ x)
    sums = [sum(math.exp(sign * float(v @ row)) for row in x) for v in vectors for sign in (1, -1)]
    assert partition_isotropy(x) != pytest.approx(min(sums) / max(sums), rel=0.1)


def test_long_rows_do_not_overflow(generator):
    x = 1e4 * torch.randn(100, 5, generator=generator)
    assert 0 <= partition_isotropy(x) < 1e-100


def test_many_rows_are_summed_in_blocks(generator):
    x = 0.1 * torch.randn(9000, 4, generator=generator, dtype=torch.float64)
    assert partition_isotropy(x) == pytest.approx(naive(x.numpy()), rel=1e-9)
    assert partition_isotropy(x) > 0.9
