import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tangentlens import (
    InputError,
    Moments,
    anisotropy,
    effective_rank,
    entropy_rank,
    isoscore,
    participation_ratio,
    rankme,
    stable_rank,
)

ALL = [effective_rank, entropy_rank, participation_ratio, rankme, stable_rank]


def draw(n, d, seed):
    make = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=make, dtype=torch.float64) * torch.rand(d, generator=make) + 0.5


def naive(x):
    """Each count from singular values, by its definition, in plain Python."""
    sigma = torch.linalg.svdvals(x).tolist()
    p = [s / sum(sigma) for s in sigma if s > 0]
    q = [s**2 / sum(t**2 for t in sigma) for s in sigma if s > 0]
    return {
        "effective_rank": math.exp(-sum(v * math.log(v) for v in p)),
        "entropy_rank": math.exp(-sum(v * math.log(v) for v in q)),
        "participation_ratio": 1 / sum(v**2 for v in q),
        "stable_rank": 1 / max(q),
    }


@given(st.integers(9, 30), st.integers(1, 8), st.integers(0, 99))
def test_counts_equal_their_definitions_by_singular_values(n, d, seed):
    x = draw(n, d, seed)
    centred = naive(x - x.mean(dim=0))
    for count in (effective_rank, entropy_rank, participation_ratio, stable_rank):
        assert count(x) == pytest.approx(centred[count.__name__], rel=1e-6)
        assert count(Moments.of(x)) == pytest.approx(centred[count.__name__], rel=1e-6)
    assert rankme(x) == pytest.approx(naive(x)["effective_rank"], rel=1e-6)
    assert stable_rank(x) == pytest.approx(1 / anisotropy(x))


def reference_isoscore(x):
    """Rudman et al.'s steps as their paper lists them."""
    d = x.shape[1]
    values = torch.linalg.svdvals(torch.cov(x.T))
    normalised = values * math.sqrt(d) / values.norm()
    defect = float((normalised - 1).norm()) / math.sqrt(2 * (d - math.sqrt(d)))
    used = (d - defect**2 * (d - math.sqrt(d))) ** 2 / d
    return (used - 1) / (d - 1)


@given(st.integers(3, 30), st.integers(2, 8), st.integers(0, 99))
def test_isoscore_equals_its_authors_construction(n, d, seed):
    x = draw(n, d, seed)
    assert isoscore(x) == pytest.approx(reference_isoscore(x), abs=1e-9)


@pytest.mark.parametrize(
    ("n", "d", "seed", "value"),
    # Printed by IsoScore 2.0.1 (PyPI), IsoScore.IsoScore(draw(n, d, seed).numpy()), with torch 2.13.0.
    [(50, 10, 1, 0.4640301), (200, 64, 2, 0.4798442), (20, 40, 3, 0.2487237)],
)
def test_isoscore_equals_the_reference_implementation(n, d, seed, value):
    assert isoscore(draw(n, d, seed)) == pytest.approx(value, abs=1e-6)


def test_isotropic_rows_use_every_direction_and_a_line_one():
    cross = torch.cat([torch.eye(5), -torch.eye(5)])
    line = torch.outer(torch.arange(6.0), torch.ones(5))
    for count in ALL:
        assert count(cross) == pytest.approx(5)
        assert count(line) == pytest.approx(1, abs=1e-5)
    assert isoscore(cross) == pytest.approx(1)
    assert isoscore(line) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("measure", [*ALL, isoscore])
def test_all_equal_rows_have_none(measure):
    with pytest.raises(InputError, match="all are equal"):
        measure(torch.zeros(4, 3))


def test_isoscore_of_one_feature_is_refused():
    with pytest.raises(InputError, match="at least 2 features, but 1 came"):
        isoscore(torch.randn(5, 1))
