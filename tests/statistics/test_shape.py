import pytest
import torch

from tangentlens.statistics.shape import profile_shape

DEPTH = torch.linspace(0, 1, 7, dtype=torch.float64)


def batches(profile, noise, n=6, seed=0):
    make = torch.Generator().manual_seed(seed)
    profile = torch.as_tensor(profile, dtype=torch.float64)
    return profile + noise * torch.randn(n, len(profile), generator=make, dtype=torch.float64)


def kinds(profile, noise, n, replicates=100):
    depth = torch.linspace(0, 1, len(profile), dtype=torch.float64)
    return [profile_shape(batches(profile, noise, n, seed), depth).kind for seed in range(replicates)]


def bell(n_sites, height=0.65, base=0.3):
    depth = torch.linspace(0, 1, n_sites, dtype=torch.float64)
    return base + height * (1 - (2 * depth - 1) ** 2)


@pytest.mark.parametrize(
    ("kind", "profile", "place"),
    [
        ("bell", -((DEPTH - 0.5) ** 2), 3),
        ("valley", (DEPTH - 0.4) ** 2, 2),
        ("monotone", DEPTH, 6),
        ("monotone", -(DEPTH**3), 6),
        ("irregular", [0.0, 0.9, 0.1, 0.1, 0.1, 0.1, 0.8], 1),
    ],
)
def test_a_clear_shape_is_found(kind, profile, place):
    found = profile_shape(batches(profile, 0.002), DEPTH)
    assert (found.kind, found.place, found.batches_needed) == (kind, place, None)
    assert found.ci_low < found.value < found.ci_high


def test_nothing_significant_is_not_flat():
    """Two batches of a profile from 0.28 over 0.99 to 0.37, which used to be called flat."""
    values = torch.tensor([[0.25, 0.6, 0.97, 0.99, 0.9, 0.6, 0.40], [0.31, 0.7, 0.98, 0.99, 0.8, 0.5, 0.34]])
    found = profile_shape(values, DEPTH)
    assert found.kind != "flat"
    assert found.kind == "bell" or found.batches_needed > 2


@pytest.mark.parametrize("n_sites", [7, 13, 31])
@pytest.mark.parametrize("n", [2, 3])
def test_no_bell_is_flat(n_sites, n):
    assert set(kinds(bell(n_sites), 0.02, n, 50)) <= {"bell", "undecided"}


@pytest.mark.parametrize("n", [2, 3, 6])
def test_a_zigzag_is_not_monotone(n):
    assert set(kinds([0, 0.9, 0.1, 0.9, 0.1, 0.9, 1], 0.02, n, 50)) <= {"irregular", "undecided"}


@pytest.mark.parametrize("n", [2, 3, 6])
def test_two_humps_are_no_bell(n):
    assert set(kinds([0, 0.8, 0.9, 0.3, 0.9, 0.8, 0], 0.02, n, 50)) <= {"irregular", "undecided"}


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param([0.2, 1.0, 0.61, 0.37, 0.22, 0.14, 0.08], id="a first site below, a peak at the next, a decay"),
        pytest.param([0.94, 1.0, 0.93, 0.8, 0.6, 0.3, 0.05], id="a small dip at the first site"),
    ],
)
@pytest.mark.parametrize("n", [2, 3, 6])
def test_a_peak_beside_the_first_site_that_decays_is_no_bell(profile, n):
    assert "bell" not in kinds(profile, 0.01, n, 50)
