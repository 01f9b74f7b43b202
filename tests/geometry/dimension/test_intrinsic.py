import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tangentlens import InputError, intrinsic_dimension, manifolds


def naive(x):
    """TwoNN as one would write it by hand: for each point, all distances, the two smallest."""
    logs = []
    for i, point in enumerate(x.tolist()):
        distances = sorted(math.dist(point, other) for j, other in enumerate(x.tolist()) if j != i)
        logs.append(math.log(distances[1] / distances[0]))
    return (len(logs) - 1) / sum(logs)


@given(st.integers(4, 40), st.integers(1, 6), st.integers(0, 99))
def test_equals_a_naive_twin(n, d, seed):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert intrinsic_dimension(x).value == pytest.approx(naive(x), rel=1e-9)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_finds_the_dimension_of_a_cube_rotated_into_more(m, generator):
    cube = torch.rand(3000, m, generator=generator, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(20, m, generator=generator, dtype=torch.float64)).Q
    found = intrinsic_dimension(cube @ rotation.T)
    # The edges of a cube pull the estimate down a little in more dimensions.
    assert found.value == pytest.approx(m, rel=0.08)
    assert found.ci_low < found.value < found.ci_high


def covers(m, made, method="twonn"):
    found = intrinsic_dimension(made.rows, method=method)
    return found.ci_low <= m <= found.ci_high


def test_the_interval_covers_the_dimension_of_a_cube():
    """Faces pull the estimate down, to 4.7 at dimension 5: an interval over rows alone covers 5 in 40% of cases.

    What 40 cubes of each dimension, and 160 in all, allow to be told of 95% is checked at one in a thousand.
    """
    covered = [sum(covers(m, manifolds.cube(500, m, m, seed=seed)) for seed in range(40)) for m in (2, 3, 4, 5)]
    assert min(covered) >= stats.binom.ppf(0.001, 40, 0.95), covered
    assert sum(covered) <= stats.binom.ppf(0.999, 160, 0.95), covered


@pytest.mark.calibration
@pytest.mark.parametrize("m", [2, 3, 4, 5])
def test_the_interval_covers_the_dimension_of_a_cube_as_often_as_it_says(m):
    assert 180 <= sum(covers(m, manifolds.cube(500, m, m, seed=seed)) for seed in range(200)) <= 196


METHODS = ["twonn", "twonn-linear", "twonn-censored", "gride", "mle"]
SHAPES = [manifolds.torus, manifolds.cube, manifolds.sphere]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_covers_the_dimension(method):
    made = [SHAPES[seed % 3](1000, 3, 8, seed=seed) for seed in range(40)]
    assert sum(covers(3, one, method) for one in made) >= 34


@pytest.mark.calibration
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", SHAPES)
def test_every_method_covers_the_dimension_of_every_shape(method, make):
    assert sum(covers(3, make(1000, 3, 8, seed=seed), method) for seed in range(40)) >= 34


def test_what_is_far_from_a_small_bias_is_not_extrapolated(generator):
    """Round clouds strung on a line: a subsample sees the line, all rows see the clouds, and neither is a limit."""
    clouds = torch.randn(720, 20, generator=generator, dtype=torch.float64)
    clouds[:, 0] += 1000 * torch.arange(30).repeat_interleave(24)
    found = intrinsic_dimension(clouds)
    assert not found.stable
    assert found.scales[0].value < 0.3 * found.value
    assert found.ci_high < 3 * found.value


@pytest.mark.parametrize(("method", "n"), [("twonn", 12), ("gride", 40), ("mle", 200)])
def test_the_interval_of_few_rows_is_as_wide_as_it_has_to_be(method, n):
    found = [intrinsic_dimension(manifolds.torus(n, 2, 4, seed=seed).rows, method=method) for seed in range(60)]
    assert sum(estimate.ci_low <= 2 <= estimate.ci_high for estimate in found) >= 53


@pytest.mark.parametrize(
    ("n", "d", "seed", "linear", "censored", "mle"),
    # Printed by scikit-dimension 0.5.0 (PyPI) on the same rows: TwoNN(method="linear"), TwoNN(method="mle"), and
    # MLE().fit(rows, n_neighbors=20, comb="mle").
    [
        (300, 4, 1, 4.0838132604274495, 4.095437079899917, 3.8164733458491336),
        (500, 10, 2, 7.931837009327686, 7.9529503859461705, 7.298272252505004),
        (1000, 40, 3, 19.558476002700765, 19.37038519414921, 16.23453191486654),
    ],
)
def test_equals_scikit_dimension(n, d, seed, linear, censored, mle):
    make = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=make, dtype=torch.float64) * torch.rand(d, generator=make) + 0.5
    assert intrinsic_dimension(x, method="twonn-linear").value == pytest.approx(linear, rel=1e-6)
    assert intrinsic_dimension(x, method="twonn-censored").value == pytest.approx(censored, rel=1e-6)
    assert intrinsic_dimension(x, method="mle").value == pytest.approx(mle, rel=1e-6)


def test_noise_below_a_scale_is_seen_as_not_stable():
    """A plane with noise in 20 dimensions: many, near and noisy neighbours read more than few, far ones."""
    noisy = intrinsic_dimension(manifolds.cube(4000, 2, 20, noise=0.01).rows, method="gride")
    assert not noisy.stable
    values = [scale.value for scale in noisy.scales if scale.n == 4000]
    assert values == sorted(values, reverse=True)
    assert values[0] > 1.3 * values[-1]
    assert "NOT TO BE TRUSTED: not stable over scales" in repr(noisy)
    clean = intrinsic_dimension(manifolds.torus(4000, 2, 20).rows, method="gride")
    assert clean.stable
    assert "NOT" not in repr(clean)
    assert [scale.k for scale in clean.scales[1:]] == [2, 4, 8, 16, 32]


def test_subsamples_show_that_occurrences_hide_the_dimension(generator):
    """Tight pairs of rows, as occurrences of a token are: only a subsample parts them."""
    x = torch.randn(1000, 8, generator=generator)
    pairs = torch.cat([x, x + 1e-4 * torch.randn(1000, 8, generator=generator)])
    found = intrinsic_dimension(pairs)
    assert not found.stable
    assert found.scales[0].n < 100
    assert found.scales[0].value > 3 * found.value


def test_too_few_rows_for_an_interval_have_an_unbounded_one():
    found = intrinsic_dimension([[0.0], [1.0], [3.0]])
    assert (found.ci_low, found.ci_high) == (0, math.inf)


def test_duplicates_are_dropped_counted_and_change_nothing(generator):
    x = torch.randn(300, 4, generator=generator)
    repeated = torch.cat([x, x[:100], x[:50]])[torch.randperm(450, generator=generator)]
    alone, among = intrinsic_dimension(x), intrinsic_dimension(repeated)
    assert among.value == pytest.approx(alone.value, rel=1e-9)
    assert (among.n_used, among.n_duplicates) == (300, 150)
    with pytest.raises(InputError, match="150 of 450 repeat"):
        intrinsic_dimension(repeated, duplicates="raise")


@pytest.mark.parametrize("change", [lambda x: x + 1e4 * x.std(), lambda x: x.half(), lambda x: 1e-6 * x])
def test_offset_scale_and_half_precision_change_it_by_less_than_a_percent(change, generator):
    x = torch.randn(2000, 8, generator=generator)
    expected = intrinsic_dimension(x).value
    assert intrinsic_dimension(change(x)).value == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("method", ["twonn", "gride", "mle"])
def test_rows_on_a_grid_but_for_a_few_have_a_value_and_an_unbounded_interval(method):
    """Without the few, all neighbours are equally far, and nothing bounds the dimension."""
    grid = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0), torch.arange(4.0))
    mixed = torch.cat([grid, torch.tensor([[90.0, 0, 0], [91.1, 0, 0], [93.7, 0.3, 0.0]])])
    found = intrinsic_dimension(mixed, method=method)
    assert found.ci_low <= found.value <= found.ci_high
    with pytest.raises(InputError, match="or hardly any do"):
        intrinsic_dimension(mixed, method="twonn-linear")


def test_leaving_out_the_only_rows_that_bound_it_leaves_the_interval_unbounded():
    found = intrinsic_dimension([[0.0, 0], [0, 1], [1, 0], [1, 1], [50, 0], [51, 0]])
    assert found.value < found.ci_high == math.inf


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.ones(9, 3), "needs at least 3 distinct rows, but 9 rows came, 8 of them duplicates"),
        (torch.arange(2.0)[:, None], "at least 3 distinct rows, but 2 rows came, 0 of them"),
        (torch.eye(4), "must differ in distance, but those of 4 distinct rows do not"),
        (torch.full((4, 2), float("inf")), "4 of 4 rows hold NaN or Inf"),
    ],
)
def test_bad_input_says_what_to_do(x, says):
    with pytest.raises(InputError) as error:
        intrinsic_dimension(x)
    assert says in str(error.value)
