import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import betaln

from tangentlens import manifolds
from tangentlens.geometry.dimension.gride import gride
from tangentlens.geometry.neighbours import nearest


def log_likelihood(distances, inner, m):
    """Denti et al.'s density of the ratio of the distances to neighbours n2 and n1, summed over rows."""
    n1, n2 = inner, 2 * inner
    total = 0.0
    for row in distances.tolist():
        mu = row[n2 - 1] / row[n1 - 1]
        total += math.log(m) + (n2 - n1 - 1) * math.log(mu**m - 1) - ((n2 - 1) * m + 1) * math.log(mu)
        total -= betaln(n2 - n1, n1)
    return total


@pytest.mark.parametrize("inner", [1, 2, 4])
def test_it_maximises_the_likelihood(inner):
    distances = nearest(manifolds.cube(150, 3, 6).rows, 2 * inner).distances
    best = minimize_scalar(
        lambda m: -log_likelihood(distances, inner, m), bounds=(0.5, 12), method="bounded", options={"xatol": 1e-9}
    )
    assert gride(distances, inner) == pytest.approx(best.x, rel=1e-5)


def test_one_and_two_neighbours_are_twonn():
    distances = nearest(manifolds.cube(200, 2, 4).rows, 2).distances
    logs = (distances[:, 1] / distances[:, 0]).log()
    assert gride(distances, 1) == pytest.approx(200 / float(logs.sum()), rel=1e-9)


def test_tied_neighbours_are_fine():
    distances = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.2, 1.3, 1.9], [1.0, 1.5, 1.6, 2.0]])
    assert 0 < gride(distances, 2) < 10
