import math

import pytest
import torch
from scipy.spatial import cKDTree
from scipy.special import digamma

from tangentlens import InputError, manifold_entropy, manifolds

KNOWN = {
    "square": lambda seed: manifolds.cube(1500, 2, 8, seed=seed),
    "cube": lambda seed: manifolds.cube(1500, 3, 8, seed=seed),
    "sphere": lambda seed: manifolds.sphere(1500, 2, 8, seed=seed, radius=3.0),
    "torus": lambda seed: manifolds.torus(1500, 3, 8, seed=seed),
    "Gaussian": lambda seed: manifolds.linear(1500, 2, 8, seed=seed),
    "ball": lambda seed: manifolds.ball(1500, 3, 8, seed=seed, radius=0.5),
    "swiss roll": lambda seed: manifolds.swiss_roll(1500, 8, seed=seed),
}


@pytest.mark.parametrize(
    ("name", "dimension_known"),
    [
        *((name, True) for name in KNOWN),
        *((name, False) for name in ("cube", "sphere", "swiss roll")),
        *(pytest.param(name, False, marks=pytest.mark.calibration) for name in ("square", "torus", "Gaussian", "ball")),
    ],
)
def test_analytic_entropies_are_within_the_interval(name, dimension_known):
    covered = 0
    for seed in range(20):
        made = KNOWN[name](seed)
        found = manifold_entropy(made.rows, made.dimension if dimension_known else None)
        covered += found.ci_low <= made.entropy <= found.ci_high
    assert covered >= 17


def test_the_interval_is_not_idle():
    found = manifold_entropy(manifolds.sphere(4000, 2, 8).rows, dimension=2)
    assert found.ci_high - found.ci_low < 0.15


def test_equals_the_formula_on_a_kd_tree():
    x = manifolds.torus(500, 2, 5).rows
    radius = cKDTree(x.numpy()).query(x.numpy(), k=4)[0][:, 3]
    expected = digamma(500) - digamma(3) + math.log(math.pi) + 2 * sum(math.log(r) for r in radius) / 500
    assert manifold_entropy(x, dimension=2).value == pytest.approx(expected, rel=1e-9)


def test_stretching_by_c_adds_m_log_c():
    x = manifolds.cube(500, 2, 5).rows
    shift = manifold_entropy(10 * x, dimension=2).value - manifold_entropy(x, dimension=2).value
    assert shift == pytest.approx(2 * math.log(10))


def test_duplicates_are_dropped_and_counted():
    x = manifolds.cube(300, 2, 5).rows
    found = manifold_entropy(torch.cat([x, x[:100]]), dimension=2)
    assert found.value == pytest.approx(manifold_entropy(x, dimension=2).value)
    assert (found.n_used, found.n_duplicates) == (300, 100)
    assert "nats" in repr(found)


def test_bad_input_says_what_to_do():
    with pytest.raises(InputError, match="at least 4 distinct rows, but 9 rows came, 8 of them duplicates"):
        manifold_entropy(torch.ones(9, 2))
    with pytest.raises(InputError, match="dimension must be positive"):
        manifold_entropy(torch.randn(9, 2), dimension=-1)
