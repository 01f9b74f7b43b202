import pytest
import torch
from scipy import stats

from tangentlens import InputError
from tangentlens.statistics.selection import student_of_selected
from tangentlens.statistics.shape import default_margin, profile_shape, shape_of

DEPTH = torch.linspace(0, 1, 7, dtype=torch.float64)


def batches(profile, noise, n=6, seed=0):
    make = torch.Generator().manual_seed(seed)
    profile = torch.as_tensor(profile, dtype=torch.float64)
    return profile + noise * torch.randn(n, len(profile), generator=make, dtype=torch.float64)


def kinds(profile, noise, n, replicates=100):
    depth = torch.linspace(0, 1, len(profile), dtype=torch.float64)
    drawn = [batches(profile, noise, n, seed) for seed in range(replicates)]
    # Without the batches that would decide, which take most of the time.
    return [shape_of(values, depth, default_margin(values), n).kind for values in drawn]


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


def test_the_height_of_a_bell_is_over_the_higher_end():
    profile = torch.tensor([0.2, 0.9, 0.5])
    found = profile_shape(batches(profile, 0.001), torch.tensor([0.0, 0.5, 1.0]))
    assert (found.value, found.base) == (pytest.approx(0.4, abs=0.01), 2)
    mirrored = profile_shape(-batches(profile, 0.001), torch.tensor([0.0, 0.5, 1.0]))
    assert (mirrored.kind, mirrored.value) == ("valley", pytest.approx(-0.4, abs=0.01))
    assert mirrored.ci_low < mirrored.value < mirrored.ci_high < 0


@pytest.mark.parametrize("sign", [1, -1])
def test_of_a_peak_and_a_dip_the_larger_is_told_with_an_interval_for_all_pairs_of_sites(sign):
    values = sign * batches([0.0, 0.9, 0.1, 0.1, 0.1, 0.1, 0.8], 0.002, n=4)
    found = profile_shape(values, DEPTH)
    assert (found.kind, found.place) == ("irregular", 1)
    assert found.value == pytest.approx(sign * 0.8, abs=0.01)
    height = values[:, 1] - values[:, found.base]
    # A peak and a site beside it are chosen among the 21 pairs of seven sites.
    reach = student_of_selected(0.95, 3, 21) * float(height.std()) / 4**0.5
    assert (found.ci_low, found.ci_high) == pytest.approx((float(height.mean()) - reach, float(height.mean()) + reach))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_step_between_ends_that_differ_is_students_interval(sign):
    values = sign * batches(DEPTH, 0.01, n=5)
    found = profile_shape(values, DEPTH)
    expected = stats.ttest_1samp((values[:, -1] - values[:, 0]).numpy(), 0).confidence_interval(0.95)
    assert (found.kind, found.base) == ("monotone", 0)
    assert (found.ci_low, found.ci_high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_flat_is_every_pair_with_students_interval_inside_the_margin():
    """Against the definition, pair by pair, with the margin just above and just below what the widest pair needs."""
    values = batches(torch.full((7,), 0.6), 0.005, n=4)
    reaches = {}
    for first in range(7):
        for last in range(first + 1, 7):
            interval = stats.ttest_1samp((values[:, last] - values[:, first]).numpy(), 0).confidence_interval(0.95)
            reaches[last, first] = max(abs(interval.low), abs(interval.high))
    widest = max(reaches, key=reaches.get)
    flat = profile_shape(values, DEPTH, margin=1.001 * reaches[widest])
    assert (flat.kind, (flat.place, flat.base)) == ("flat", widest)
    assert max(abs(flat.ci_low), abs(flat.ci_high)) == pytest.approx(reaches[widest])
    assert profile_shape(values, DEPTH, margin=0.999 * reaches[widest]).kind == "undecided"


def test_the_margin_is_a_tenth_of_the_mean_level_unless_given():
    values = batches(torch.full((7,), -0.6), 0.001)
    assert profile_shape(values, DEPTH).margin == pytest.approx(0.06, rel=0.01)
    assert profile_shape(values, DEPTH, margin=0.5).margin == 0.5
    with pytest.raises(InputError, match="margin must be 0 or more, but is -1"):
        profile_shape(values, DEPTH, margin=-1.0)


def test_a_shape_within_the_margin_is_flat():
    slight = 0.6 + 0.01 * (1 - (2 * DEPTH - 1) ** 2)
    assert profile_shape(batches(slight, 0.0002), DEPTH).kind == "flat"
    assert profile_shape(batches(slight, 0.0002), DEPTH, margin=0.0).kind == "bell"


def test_reversals_within_the_margin_do_not_count():
    """A jump to a plateau that sinks slowly, as the anisotropy of decoders does: a bell whose top is level."""
    profile = [0.1, 0.99, 0.98, 0.975, 0.97, 0.965, 0.3]
    found = profile_shape(batches(profile, 0.0005), DEPTH)
    assert (found.kind, found.place) == ("bell", 2)
    assert profile_shape(batches(profile, 0.0005), DEPTH, margin=0.0).kind == "irregular"


@pytest.mark.parametrize("unit", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(("noise", "kind"), [(0.01, "monotone"), (0.15, "undecided")])
def test_a_rise_with_a_level_stretch_is_monotone_if_noise_hides_no_fall_of_a_quarter_of_it(unit, noise, kind):
    # Without a margin, what is small depends on the rise alone, and so not on the unit.
    values = unit * batches([0.0, 0.5, 0.5, 0.5, 1.0], noise)
    assert profile_shape(values, torch.linspace(0, 1, 5), margin=0.0).kind == kind


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_difference_as_large_as_the_margin_is_seldom_called_flat_although_sites_are_unequally_noisy(n):
    """The edge of the test. A variance pooled over sites, which looks better for few batches, fails there."""
    profile, noise = torch.full((7,), 0.6, dtype=torch.float64), torch.full((7,), 0.002, dtype=torch.float64)
    profile[3], noise[3] = 0.7, 0.04
    told = pooled = 0
    for seed in range(200):
        values = profile + noise * batches(torch.zeros(7), 1.0, n, seed)
        told += shape_of(values, DEPTH, 0.1, n).kind == "flat"
        spread = (2 * values.var(dim=0).mean() / n).sqrt() * stats.t.ppf(0.975, 7 * (n - 1))
        mean = values.mean(dim=0)
        pooled += bool(mean.max() - mean.min() + spread <= 0.1)
    assert told <= 0.05 * 200
    assert pooled > 0.08 * 200


@pytest.mark.parametrize("n", [3, 5, 10])
def test_noise_is_seldom_called_a_shape(n):
    """A level profile: a shape has a chance of 5% at most, and flat needs little noise."""
    loud = kinds(torch.full((7,), 0.6), 0.3, n, 150)
    assert 150 - loud.count("undecided") <= 0.05 * 150
    quiet = kinds(torch.full((7,), 0.6), 0.006, n, 50)
    assert quiet.count("flat") > 0.9 * 50


def test_an_undecided_profile_says_how_many_batches_would_decide():
    """As many fresh batches do decide, mostly; and fewer would not have been asked for."""
    decided = asked = 0
    for seed in range(30):
        found = profile_shape(batches(torch.full((7,), 0.6), 0.02, 4, seed), DEPTH)
        if found.kind == "undecided":
            asked += 1
            assert found.batches_needed > 4
            fresh = batches(torch.full((7,), 0.6), 0.02, found.batches_needed, 1000 + seed)
            decided += profile_shape(fresh, DEPTH).kind == "flat"
    assert asked > 10
    assert decided > 0.6 * asked


def test_no_number_of_batches_decides_what_lies_on_the_margin():
    values = torch.tensor([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]) + 5
    assert profile_shape(values, torch.tensor([0.0, 0.5, 1.0]), margin=0.0).batches_needed is None


def test_too_little_to_decide_is_refused():
    with pytest.raises(InputError, match="at least 2 batches and 2 sites, but 1 and 7 came"):
        profile_shape(torch.zeros(1, 7), DEPTH)
