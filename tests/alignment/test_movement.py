"""Movement between two steps: closed forms, invariances, and a naive second implementation."""

import math

import numpy as np
import pytest
import torch

from tangentlens import InputError, Movement, Subspace, movement, share, tangent_test
from tangentlens.alignment.movement_result import Change, average_movement
from tangentlens.alignment.tangent_test import N_DRAWS
from tangentlens.proxies.covariance import covariance
from tangentlens.statistics.groups import sequence_groups

D, R = 12, 3
SEQUENCES = torch.arange(800) // 20
# Everything but the first half of the sequences, which fits.
TEST = SEQUENCES >= 20


def axes(rows, rank, seed):
    """A proxy that is known: the first coordinates."""
    return Subspace(torch.eye(rows.shape[1], dtype=torch.float64)[:, :rank])


def rows(seed=0, long=5.0, dtype=torch.float32):
    """Rows whose variance lies in the first coordinates, not around 0, the parts of a sequence alike."""
    make = torch.Generator().manual_seed(seed)
    common = torch.randn(40, D, generator=make, dtype=torch.float64).repeat_interleave(20, dim=0)
    x = torch.randn(800, D, generator=make, dtype=torch.float64) + common / 2
    x[:, :R] *= long
    return (x + torch.arange(D)).to(dtype)


def noise(seed=1, scale=1.0):
    return scale * torch.randn(800, D, generator=torch.Generator().manual_seed(seed))


def test_movement_inside_the_proxy_has_share_1_and_leaves_the_outside_alone():
    before, step = rows(), noise()
    step[:, R:] = 0
    found = movement(before, before + step, SEQUENCES, rank=R, proxy=axes, controls=["normal", "random", "tail"])
    for order in (1.0, 2.0):
        assert found.test.share(order=order).value == pytest.approx(1, abs=1e-6)
    assert found.test.share("tail").value < 0.01
    assert found.growth_outside().value == pytest.approx(1, rel=1e-5)
    assert found.growth_inside().value > 1.01
    assert found.test.token_share().value == pytest.approx(1, abs=1e-6)


def test_movement_outside_the_proxy_has_share_0():
    before, step = rows(), noise()
    step[:, :R] = 0
    found = movement(before, before + step, SEQUENCES, rank=R, proxy=axes, controls=["random"])
    assert found.test.share().value < 1e-9
    assert found.growth_inside().value == pytest.approx(1, rel=1e-5)
    assert found.growth_outside().value > 1.3
    assert found.growth_log_ratio().ci_high < 0


@pytest.mark.parametrize("factor", [1.5, 0.5, -2.0])
def test_pure_scaling_moves_where_the_variance_is_and_grows_alike_everywhere(factor):
    """The trap: a high share of the movement, which says nothing but that variance lies in the proxy."""
    before = rows()
    found = movement(before, factor * before, SEQUENCES, rank=R, controls=["pca", "covariance", "random"])
    tested = before[TEST] - before[TEST].mean(dim=0)
    for name in ("semi_nmf", "pca"):
        expected = share(tested, found.test.subspaces[name])
        assert found.test.share(name).value == pytest.approx(expected, rel=1e-5)
        assert expected > 0.8
        # What says so: the share of the variance itself.
        assert found.variance_share(name).value == pytest.approx(expected, rel=1e-5)
        assert found.growth_inside(name).value == pytest.approx(factor**2, rel=1e-4)
        assert found.growth_outside(name).value == pytest.approx(factor**2, rel=1e-4)
    assert found.test.log_ratio("random").ci_low > 1
    assert abs(found.test.log_ratio("pca").value) < 0.02
    assert found.growth_log_ratio().value == pytest.approx(0, abs=1e-4)
    assert found.distance().value == pytest.approx(abs(factor - 1), rel=1e-5)
    assert found.growth().value == pytest.approx(factor**2, rel=1e-5)


def test_movement_in_all_directions_alike_has_the_share_of_chance():
    shares, p_values = [], []
    for seed in range(20):
        before = rows(seed)
        found = movement(before, before + noise(seed + 100), SEQUENCES, rank=R, controls=["random"])
        shares.append(found.test.share().value)
        p_values.append(found.test.p_values["random", 1.0, "all"])
    assert sum(shares) / 20 == pytest.approx(R / D, abs=0.01)
    assert sum(p < 0.05 for p in p_values) <= 4
    # The same noise is more of a variance that was small, so the outside grows.
    assert found.growth_log_ratio().ci_high < 0


def test_a_rotation_of_the_space_changes_nothing():
    turn = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64)).Q
    before, after = rows(dtype=torch.float64), rows(dtype=torch.float64) + noise().double().cumsum(dim=1)
    settings = {"rank": R, "proxy": "pca", "controls": ["normal", "random", "tail"]}
    one, other = (
        movement(before @ q, after @ q, SEQUENCES, **settings) for q in (torch.eye(D, dtype=torch.float64), turn)
    )
    for column in ("value", "ci_low", "ci_high", "log_ratio"):
        left, right = (found.table[column].fill_null(0.0).to_list() for found in (one, other))
        assert left == pytest.approx(right, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_the_unit_changes_nothing(scale):
    before, after = rows(dtype=torch.float64), rows(dtype=torch.float64) + noise().double()
    settings = {"rank": R, "proxy": axes, "controls": ["random"]}
    one, other = (movement(factor * before, factor * after, SEQUENCES, **settings) for factor in (1.0, scale))
    assert other.table["value"].to_list() == pytest.approx(one.table["value"].to_list(), rel=1e-9)


def test_a_common_shift_is_no_movement_but_told_on_its_own():
    before, after, shift = rows(), rows() + noise(), torch.linspace(-30, 30, D)
    settings = {"rank": R, "controls": ["pca"]}
    one, other = (movement(before, later, SEQUENCES, **settings) for later in (after, after + shift))
    assert other.test.share().value == pytest.approx(one.test.share().value, rel=1e-4)
    for key in (key for key in one.changes if key.metric != "shift"):
        assert other.change(*key).value == pytest.approx(one.change(*key).value, rel=1e-4, abs=1e-5)
    length = float((before[TEST] - before[TEST].mean(dim=0)).square().sum(dim=1).mean().sqrt())
    mean = (after + shift - before)[TEST].mean(dim=0)
    assert other.shift().value == pytest.approx(float(mean.norm()) / length, rel=1e-4)
    assert one.shift().value < 0.05 < other.shift().ci_low


def test_shares_are_those_of_the_tangent_test_with_the_movement_in_place_of_gradients():
    before, after, tokens = rows(), rows() + noise(), torch.arange(800) % 50
    moved = (after - before) - (after - before)[TEST].mean(dim=0)
    found = movement(before, after, SEQUENCES, tokens, rank=R)
    expected = tangent_test(before, moved, SEQUENCES, tokens, rank=R, orders=(1.0, 2.0))
    shares = found.table.filter(found.table["order"].is_not_null()).select(expected.table.columns)
    assert {"all", "input.0", "input.3"} <= set(shares["freq_bin"])
    for column in ("value", "ci_low", "ci_high", "log_ratio", "p_value"):
        left, right = (table[column].fill_null(0.0).to_list() for table in (shares, expected.table))
        assert left == pytest.approx(right, rel=1e-3, abs=1e-4)


def naive(before, after, q, keep):
    """Every number by itself, from the definitions, over the rows that are kept."""
    old, new = before[keep].astype(np.float64), after[keep].astype(np.float64)
    covariances = [np.cov(x.T, bias=True) for x in (old, new, new - old)]
    inside = [np.trace(q.T @ c @ q) for c in covariances]
    whole = [np.trace(c) for c in covariances]
    outside = [w - i for w, i in zip(whole, inside, strict=True)]
    grown_in, grown_out = inside[1] / inside[0], outside[1] / outside[0]
    return {
        "distance": math.sqrt(whole[2] / whole[0]),
        "shift": float(np.linalg.norm((new - old).mean(axis=0))) / math.sqrt(whole[0]),
        "variance_share": inside[0] / whole[0],
        "growth": whole[1] / whole[0],
        "growth_inside": grown_in,
        "growth_outside": grown_out,
        "growth_log_ratio": math.log(grown_in / grown_out),
    }


def test_growth_and_distance_agree_with_a_naive_implementation_in_every_replicate():
    before, after = rows(), rows() * torch.linspace(0.5, 2, D) + noise() + 3
    found = movement(before, after, SEQUENCES, rank=R, controls=["pca"], n_groups=5)
    groups = sequence_groups(SEQUENCES[TEST], 5).numpy()
    old, new = before[TEST].numpy(), after[TEST].numpy()
    for name, subspace in found.test.subspaces.items():
        q = subspace.basis.numpy()
        kept = [groups >= 0, *(groups != group for group in range(5))]
        expected = [naive(old, new, q, keep) for keep in kept]
        for metric in expected[0]:
            variant = name if "_" in metric else ""
            logs = [one[metric] if metric == "growth_log_ratio" else math.log(one[metric]) for one in expected]
            replicates = found.changes[Change(metric, variant)].replicates
            assert replicates.tolist() == pytest.approx(logs, rel=1e-4, abs=1e-5)
            interval = found.change(metric, variant)
            assert interval.ci_low < interval.value < interval.ci_high
            assert interval.ci_over == "sequences"


def test_growth_in_a_drawn_control_is_that_of_the_mean_over_its_draws():
    before, after = rows(), rows() * torch.linspace(0.5, 2, D)
    found = movement(before, after, SEQUENCES, rank=R, controls=["covariance"])
    draws = [covariance(before[~TEST], R, seed).basis for seed in range(N_DRAWS)]
    inside = [sum(float(torch.trace(q.T @ x[TEST].double().T.cov() @ q)) for q in draws) for x in (before, after)]
    assert found.growth_inside("covariance").value == pytest.approx(inside[1] / inside[0], rel=1e-4)


@pytest.mark.parametrize("draws", [60, pytest.param(400, marks=pytest.mark.calibration)])
def test_intervals_of_growth_cover_the_truth(draws):
    """Sequences with a common part, whose variance grows 4 times inside and 2.25 times outside."""
    hits, grown = torch.zeros(3), torch.tensor([2.0] * R + [1.5] * (D - R))
    for seed in range(draws):
        before, other = rows(seed), rows(seed + 10_000)
        # One half of the later variance is that of other rows, so that growth is uncertain at all.
        after = (before * grown + other * grown) / math.sqrt(2)
        found = movement(before, after, SEQUENCES, rank=R, proxy=axes, controls=[])
        truths = {"growth_inside": 4.0, "growth_outside": 2.25, "growth_log_ratio": math.log(4 / 2.25)}
        intervals = [(getattr(found, name)(), truth) for name, truth in truths.items()]
        hits += torch.tensor([float(one.ci_low <= truth <= one.ci_high) for one, truth in intervals])
    # Two standard errors of a proportion of 0.95, and one per cent more.
    assert ((hits / draws - 0.95).abs() < 0.01 + 2 * math.sqrt(0.05 * 0.95 / draws)).all(), hits / draws


def test_where_there_is_no_variance_outside_growth_there_is_not_estimable():
    before = rows()
    before[:, R:] = 0
    after = before * 2
    found = movement(before, after, SEQUENCES, rank=R, proxy=axes, controls=[])
    assert math.isnan(found.growth_outside().value)
    assert math.isnan(found.growth_log_ratio().value)
    assert found.growth_inside().value == pytest.approx(4, rel=1e-5)
    assert "not estimable outside" in found.verdict()


def test_the_mean_over_sites_is_geometric_for_growth_and_plain_for_shares():
    one, other = (movement(rows(), factor * rows() + noise(), SEQUENCES, rank=R, controls=["pca"]) for factor in (2, 4))
    mean = average_movement([one, other])
    assert mean.test.of == "movement"
    assert mean.test.share().value == pytest.approx((one.test.share().value + other.test.share().value) / 2, rel=1e-2)
    variance = (one.variance_share().value + other.variance_share().value) / 2
    assert mean.variance_share().value == pytest.approx(variance, rel=1e-6)
    for name in ("distance", "growth", "growth_inside", "growth_outside"):
        expected = math.sqrt(getattr(one, name)().value * getattr(other, name)().value)
        assert getattr(mean, name)().value == pytest.approx(expected, rel=1e-6)
        assert getattr(mean, name)().ci_low < expected < getattr(mean, name)().ci_high


def test_what_is_said_follows_the_intervals():
    before = rows()
    later = before * torch.tensor([2.0] * R + [1.0] * (D - R)) + noise(scale=0.05)
    found = movement(before, later, SEQUENCES, rank=R, controls=["pca", "random"])
    assert isinstance(found, Movement)
    said = repr(found)
    assert said.startswith("Movement(rank=3, dim=12, rows=400)\nRows moved by ")
    assert "of the movement's energy" in said
    assert "gradient" not in said
    inside = f"{found.growth_inside()} inside the proxy, {found.growth_outside()} outside: "
    assert inside in said
    assert "times outside (significantly above)" in said.partition(inside)[2].splitlines()[0]


@pytest.mark.parametrize(
    ("before", "after", "sequences", "says"),
    [
        (rows(), rows()[:700], SEQUENCES, r"after must be \(800, 12\), a row for each row before, but is \(700, 12\)"),
        (rows(), rows(), SEQUENCES, "rows must have moved between the two steps, but they are the same"),
        (rows(), rows() + 1, SEQUENCES, "the same up to a common shift and rounding"),
        (rows(), rows() + noise(), SEQUENCES // 14, "at least 4 sequences are needed"),
        (rows(), rows() * math.nan, SEQUENCES, "every value must be finite, but 800 of 800 rows"),
    ],
)
def test_what_cannot_be_compared_is_an_error(before, after, sequences, says):
    with pytest.raises(InputError, match=says):
        movement(before, after, sequences, rank=R, controls=["pca"])
