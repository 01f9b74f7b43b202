import pytest
import torch
from scipy import stats

from tangentlens import InputError
from tangentlens.statistics.shape import profile_shape

DEPTH = torch.linspace(0, 1, 7, dtype=torch.float64)


def batches(profile, noise, n=6, seed=0):
    make = torch.Generator().manual_seed(seed)
    return profile + noise * torch.randn(n, len(profile), generator=make, dtype=torch.float64)


@pytest.mark.parametrize(
    ("kind", "profile", "place"),
    [
        ("bell", -((DEPTH - 0.5) ** 2), 3),
        ("valley", (DEPTH - 0.4) ** 2, 2),
        ("monotone", DEPTH, 6),
        ("monotone", -(DEPTH**3), 6),
        ("irregular", torch.tensor([0.0, 0.9, 0.1, 0.1, 0.1, 0.1, 0.8], dtype=torch.float64), 1),
    ],
)
def test_a_clear_shape_is_found(kind, profile, place):
    found = profile_shape(batches(profile, 0.01), DEPTH)
    assert (found.kind, found.place) == (kind, place)
    assert found.ci_low < found.value < found.ci_high


def test_the_height_of_a_bell_is_over_the_higher_end():
    profile = torch.tensor([0.2, 0.9, 0.5])
    found = profile_shape(batches(profile, 0.001), torch.tensor([0.0, 0.5, 1.0]))
    assert found.value == pytest.approx(0.4, abs=0.01)
    mirrored = profile_shape(-batches(profile, 0.001), torch.tensor([0.0, 0.5, 1.0]))
    assert (mirrored.kind, mirrored.value) == ("valley", pytest.approx(-0.4, abs=0.01))


def test_a_step_between_ends_that_differ_is_students_interval():
    values = batches(DEPTH, 0.3, n=5)
    found = profile_shape(values, DEPTH)
    expected = stats.ttest_1samp((values[:, -1] - values[:, 0]).numpy(), 0).confidence_interval(0.95)
    assert (found.ci_low, found.ci_high) == (pytest.approx(expected.low), pytest.approx(expected.high))


@pytest.mark.parametrize("n", [3, 5, 10])
def test_noise_is_seldom_called_a_shape(n):
    """A flat profile: each kind of shape has a chance of 5% at most."""
    kinds = [profile_shape(batches(torch.zeros(7), 1.0, n, seed), DEPTH).kind for seed in range(400)]
    assert kinds.count("bell") + kinds.count("valley") + kinds.count("irregular") < 0.05 * 400
    assert kinds.count("flat") > 0.9 * 400


def test_a_site_that_was_picked_has_to_stand_out_more_than_one_that_was_not():
    """Of 30 interior sites of a bent profile without a bump, the highest is above both ends by chance."""
    depth = torch.linspace(0, 1, 32, dtype=torch.float64)
    bent = -((depth - 0.5) ** 2) * 1e-6
    kinds = [profile_shape(batches(bent, 1.0, 8, seed), depth).kind for seed in range(300)]
    assert kinds.count("bell") + kinds.count("valley") + kinds.count("irregular") < 0.05 * 300


def test_too_little_to_decide_is_refused():
    with pytest.raises(InputError, match="at least 2 batches and 2 sites, but 1 and 7 came"):
        profile_shape(torch.zeros(1, 7), DEPTH)
