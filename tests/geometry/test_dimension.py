import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tangentlens import InputError, intrinsic_dimension


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


def test_the_interval_covers_the_truth_as_often_as_it_says(generator):
    """On a flat torus, which has no edges. The interval of independent Pareto ratios covers only 88% there."""
    angles = 2 * torch.pi * torch.rand(200, 500, 2, generator=generator, dtype=torch.float64)
    found = [intrinsic_dimension(torch.cat([angle.sin(), angle.cos()], dim=1)) for angle in angles]
    covered = sum(estimate.ci_low <= 2 <= estimate.ci_high for estimate in found)
    assert 184 <= covered <= 197


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


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.ones(9, 3), "at least 3 distinct rows, but 9 rows came, 8 of them duplicates"),
        (torch.arange(2.0)[:, None], "at least 3 distinct rows, but 2 rows came, 0 of them"),
        (torch.eye(4), "equally far for all 4 distinct rows"),
        (torch.full((4, 2), float("inf")), "4 of 4 rows hold NaN or Inf"),
    ],
)
def test_bad_input_says_what_to_do(x, says):
    with pytest.raises(InputError) as error:
        intrinsic_dimension(x)
    assert says in str(error.value)
