"""Rows whose dimension is known, and rows that have none: what an estimate says of itself."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tangentlens import intrinsic_dimension, manifold_entropy, manifolds


def cube(n, m, seed=0):
    return torch.rand(n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_near_duplicates(rows, share, apart, seed=1):
    """The rows, and a copy of a share of them that differs from its original by about `apart` in every coordinate."""
    some = rows[: round(share * len(rows))]
    noise = torch.randn(some.shape, generator=torch.Generator().manual_seed(seed), dtype=rows.dtype)
    return torch.cat([rows, some + apart * noise])


def mixture(n, low, high, seed=0):
    """Half of the rows from a cube of dimension `low`, half from one of dimension `high`, far apart."""
    rows = torch.zeros(n, high, dtype=torch.float64)
    rows[: n // 2, :low] = cube(n // 2, low, seed)
    rows[n // 2 :] = 10 + cube(n - n // 2, high, seed + 1)
    return rows


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
def test_near_duplicates_do_not_change_dimension_and_entropy(share):
    rows = cube(2000, 5)
    alone, among = intrinsic_dimension(rows), intrinsic_dimension(with_near_duplicates(rows, share, 1e-6))
    assert among.value == pytest.approx(alone.value, rel=1e-4)
    assert (among.n_used, among.n_near_duplicates, among.n_duplicates) == (2000, share * 2000, 0)
    assert f"n_near_duplicates={share * 2000:.0f}" in repr(among)
    assert "near" not in repr(alone)
    entropy = manifold_entropy(with_near_duplicates(rows, share, 1e-6))
    assert entropy.value == pytest.approx(manifold_entropy(rows).value, abs=1e-3)
    assert entropy.ci_low < 0 < entropy.ci_high
    assert not entropy.trouble
    assert f"n_near_duplicates={share * 2000:.0f}" in repr(entropy)


def test_near_duplicates_are_dropped_where_the_dimension_is_given():
    rows = cube(2000, 5)
    found = manifold_entropy(with_near_duplicates(rows, 0.1, 1e-6), dimension=5)
    assert found.value == pytest.approx(manifold_entropy(rows, dimension=5).value, abs=1e-3)
    assert (found.n_used, found.n_near_duplicates, found.trouble) == (2000, 200, "")


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_duplicates_that_are_less_near_are_told(share):
    """Most are not a hundred times nearer than others, so that they stay; they change the law of the ratios."""
    rows = with_near_duplicates(cube(2000, 5), share, 1e-3)
    found = intrinsic_dimension(rows)
    assert found.value < 4
    assert found.misfit > 0.067
    assert "one dimension does not describe all rows" in found.trouble
    entropy = manifold_entropy(rows)
    assert entropy.trouble == found.trouble
    assert "NOT TO BE TRUSTED: " in repr(entropy)


@pytest.mark.parametrize("near", [40, 400])
def test_no_row_of_few_is_called_a_near_duplicate(near):
    """On a line, one distance in a hundred is a hundred times shorter than the next: that is chance."""
    for seed in range(20):
        assert intrinsic_dimension(cube(near, 1, seed)).n_near_duplicates == 0


def test_a_mixture_of_dimensions_is_told():
    found = intrinsic_dimension(mixture(2000, 2, 10))
    assert found.stable
    assert "one dimension does not describe all rows" in found.trouble
    assert "NOT TO BE TRUSTED: one dimension" in repr(found)
    # Mean and median of log mu at rates 2 and 10: of an exponential law, one determines the other.
    assert found.misfit == pytest.approx(kolmogorov(lambda t: 1 - (np.exp(-2 * t) + np.exp(-10 * t)) / 2), abs=0.02)


def kolmogorov(law):
    """The distance between a law of log mu and the exponential law of the same mean, on a fine grid."""
    t = np.linspace(0, 20, 400_001)
    mean = float((1 - law(t)).sum() * (t[1] - t[0]))
    return float(np.abs(law(t) - (1 - np.exp(-t / mean))).max())


@pytest.mark.parametrize(("low", "high", "told"), [(1, 3, True), (2, 4, False), (5, 6, False)])
def test_how_different_dimensions_have_to_be_to_be_told(low, high, told):
    """An even mixture of 2 and 4 has a misfit of 0.026, less than an error of 20% makes: it is more than chance."""
    found = intrinsic_dimension(mixture(8000, low, high))
    assert bool(found.trouble) == told
    if (low, high) == (2, 4):
        assert 1.5 / math.sqrt(8000) < found.misfit < 0.067


def test_the_misfit_is_that_of_kolmogorov_and_smirnov():
    rows = manifolds.torus(400, 3, 8).rows
    distances = torch.cdist(rows, rows).sort(dim=1).values[:, 1:21]

    def distance(near, far, shape, method):
        found = intrinsic_dimension(rows, method=method)
        powers = (distances[:, near - 1] / distances[:, far - 1]).pow(found.value).numpy()
        return found.misfit, stats.kstest(powers, stats.beta(shape, shape).cdf).statistic

    for case in ((1, 2, 1, "twonn"), (1, 2, 1, "twonn-censored"), (2, 4, 2, "gride"), (10, 20, 10, "mle")):
        found, expected = distance(*case)
        assert found == pytest.approx(expected, rel=1e-6)


CLEAN = [
    *((manifolds.cube, m, m + 2) for m in (1, 2, 5, 10, 20)),
    *((manifolds.linear, m, m + 2) for m in (1, 5, 20)),
    *((manifolds.sphere, m, m + 2) for m in (1, 2, 5, 10)),
    *((manifolds.torus, m, 2 * m + 2) for m in (2, 5)),
]


def test_clean_rows_are_seldom_doubted():
    doubted = [intrinsic_dimension(make(400, m, d, seed=m).rows).trouble for make, m, d in CLEAN]
    assert sum(map(bool, doubted)) <= 2, doubted


@pytest.mark.parametrize("method", ["twonn-linear", "twonn-censored", "gride", "mle"])
def test_clean_rows_fit_the_law_of_every_method(method):
    found = [intrinsic_dimension(make(400, m, d, seed=m).rows, method=method).trouble for make, m, d in CLEAN]
    assert sum("one dimension" in trouble for trouble in found) <= 1, found


@pytest.mark.calibration
@pytest.mark.parametrize("n", [200, 1000, 4000])
def test_clean_rows_are_doubted_in_at_most_one_of_twenty_cases(n):
    reps = 8000 // n
    made = [make(n, m, d, seed=seed).rows for make, m, d in CLEAN for seed in range(reps)]
    made += [manifolds.swiss_roll(n, 5, seed=seed).rows for seed in range(reps)]
    doubted = sum(bool(intrinsic_dimension(rows).trouble) for rows in made)
    assert doubted <= stats.binom.ppf(0.999, len(made), 0.05)


@pytest.mark.parametrize("ratio", [10.0, 1000.0])
def test_clusters_of_different_density_and_heavy_tails_fit_the_law(ratio, generator):
    """The law of the ratios needs a density that is constant locally, not one that is everywhere the same."""
    cluster = torch.randint(10, (2000,), generator=generator)
    places = 100 * torch.randn(10, 2, generator=generator, dtype=torch.float64)
    rows = torch.randn(2000, 2, generator=generator, dtype=torch.float64)
    clusters = rows * (ratio ** (cluster / 9))[:, None] + places[cluster]
    tails = rows / torch.rand(2000, 1, generator=generator, dtype=torch.float64)
    for some in (clusters, tails):
        found = intrinsic_dimension(some)
        assert not found.trouble
        assert found.n_near_duplicates == 0
        assert found.ci_low < 2 < found.ci_high


@pytest.mark.parametrize("cast", [lambda x: x, lambda x: x.float(), lambda x: x.double()])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_that_changes_the_dimension_is_told(cast, dtype):
    square = cube(8000, 2)
    # 3 more bits, 8 times finer: the same rounding 8 times farther from 0.
    rows = square if dtype == torch.bfloat16 else square + 8
    found = intrinsic_dimension(cast(rows.to(dtype)))
    assert found.value > 2.1
    assert f"{str(dtype)[6:]} moves" in found.trouble
    assert "moves" not in intrinsic_dimension(rows).trouble


def test_rounding_below_the_distances_is_not_told(generator):
    rows = torch.randn(2000, 8, generator=generator)
    for dtype in (torch.bfloat16, torch.float16):
        found = intrinsic_dimension(rows.to(dtype))
        assert not found.trouble
        assert found.value == pytest.approx(intrinsic_dimension(rows).value, rel=0.01)


def test_rounding_to_fp32_far_from_0_is_told():
    square = cube(4000, 2)
    assert "rounding to float32 moves" in intrinsic_dimension((square + 1e5).float()).trouble
    assert not intrinsic_dimension(square + 1e5).trouble
