import math

import pytest
import torch

from tangentlens import share, tangent_test
from tangentlens.alignment.chance import chance_beside
from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.group_moments import GroupMoments
from tangentlens.alignment.share import moment_shares
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.random import random
from tangentlens.statistics.jackknife import share_jackknife

DIM, RANK, LENGTH = 48, 6, 16
LEADING = Subspace(torch.eye(DIM, RANK, dtype=torch.float64))


def drawn(n_sequences, make, loud=0.0):
    """Gradients of a known second moment: half of their variance is common to a sequence, token norms log-normal.

    The first six axes hold 0.394 of the energy and 0.747 of the anisotropy.
    """
    spectrum = torch.ones(DIM, dtype=torch.float64)
    spectrum[:RANK] = 4.55
    own = torch.randn(n_sequences, LENGTH, DIM, generator=make, dtype=torch.float64)
    common = torch.randn(n_sequences, 1, DIM, generator=make, dtype=torch.float64)
    norms = (loud * torch.randn(n_sequences, LENGTH, 1, generator=make, dtype=torch.float64)).exp()
    rows = ((own + common) * norms * spectrum.sqrt()).flatten(0, 1)
    return rows, torch.arange(n_sequences).repeat_interleave(LENGTH), torch.diag(spectrum)


def estimates(n_sequences, loud, n_replicates, seed=0):
    make = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(n_replicates):
        rows, sequences, moment = drawn(n_sequences, make, loud)
        test = tangent_test(
            rows, rows, sequences, rank=RANK, controls=[], orders=(1.0, 2.0), fit_on=rows, proxy=lambda *_: LEADING
        )
        found.append([test.share(order=order) for order in (1.0, 2.0)])
    truth = moment_shares(moment, {"q": LEADING}, (1.0, 2.0))[0].tolist()
    return found, truth


@pytest.mark.parametrize("loud", [0.0, 1.0])
def test_order_2_is_not_drawn_towards_chance_by_noise(loud):
    found, (_, truth) = estimates(8, loud, 60)
    values = torch.tensor([order_2.value for _, order_2 in found])
    assert float(values.mean()) == pytest.approx(truth, abs=0.05)
    covered = sum(order_2.ci_low <= truth <= order_2.ci_high for _, order_2 in found)
    assert covered >= 52


@pytest.mark.calibration
@pytest.mark.parametrize("loud", [0.0, 1.0])
@pytest.mark.parametrize("n_sequences", [8, 16, 64])
def test_intervals_of_both_orders_cover(n_sequences, loud):
    found, truths = estimates(n_sequences, loud, 200, seed=n_sequences)
    for order, truth in enumerate(truths):
        covered = sum(one[order].ci_low <= truth <= one[order].ci_high for one in found)
        assert covered >= 178, (order, covered)


def test_it_agrees_with_a_loop_over_pairs_of_groups_and_without_each():
    make = torch.Generator().manual_seed(0)
    rows, groups = torch.randn(60, 7, generator=make, dtype=torch.float64), torch.arange(60) % 5
    q = random(7, 2)
    moments = GroupMoments.of(rows, groups, 5)
    found = moments.shares({"q": q}, (1.0, 2.0, math.inf))["q"]
    for place, left_out in enumerate([None, *range(5)]):
        parts = [rows[groups == group].T @ rows[groups == group] for group in range(5) if group != left_out]
        between = sum(one @ other for one in parts for other in parts if one is not other)
        expected = float((q.basis.T @ between @ q.basis).trace() / between.trace())
        kept = rows[groups != left_out] if left_out is not None else rows
        assert found[place].tolist() == pytest.approx([share(kept, q), expected, share(kept, q, math.inf)])


@pytest.mark.parametrize("n_rows", [60, 12])
@pytest.mark.parametrize("order", [1.0, 2.0])
def test_the_matrix_behind_chance_gives_the_share_and_the_spread_of_random_subspaces(order, n_rows):
    make = torch.Generator().manual_seed(0)
    rows, groups = torch.randn(n_rows, 12, generator=make) * torch.arange(1, 13) ** -1.0, torch.arange(n_rows) % 4
    moments = GroupMoments.of(rows, groups, 4)
    draws = {str(seed): random(12, 3, seed) for seed in range(1500)}
    shares = torch.stack([one[0, 0] for one in moments.shares(draws, (order,)).values()])
    matrix = moments.power(order)
    for name in ("0", "1"):
        basis = draws[name].basis
        assert float((basis.T @ matrix @ basis).trace()) == pytest.approx(float(shares[int(name)]), rel=1e-4)
    chance, _ = chance_beside(matrix, draws["0"])
    assert (float(shares.mean()), float(shares.std())) == pytest.approx((chance.mean, chance.std), rel=0.06)


def test_groups_without_a_direction_in_common_have_no_order_2():
    rows = torch.eye(6, dtype=torch.float64)
    found = GroupMoments.of(rows, torch.arange(6) // 2, 3).shares({"q": random(6, 2)}, (1.0, 2.0))["q"][0]
    assert math.isfinite(float(found[0]))
    assert math.isnan(float(found[1]))


def test_a_share_that_noise_swamps_is_not_estimable_rather_than_a_number():
    make = torch.Generator().manual_seed(0)
    spectrum = torch.tensor([1.0] + [1e-4] * 19, dtype=torch.float64)
    rows = torch.randn(64, 20, generator=make, dtype=torch.float64) * spectrum.sqrt()
    sequences, axes = torch.arange(64) // 8, torch.eye(20, dtype=torch.float64)
    values = []
    for axis in range(1, 20):
        test = tangent_test(
            rows,
            rows,
            sequences,
            rank=1,
            controls=["pca"],
            fit_on=rows,
            proxy=lambda *_, a=axis: Subspace(axes[:, [a]]),
        )
        values.append(test.share(order=2.0).value)
        negative = float(test.shares[(test.proxy, 2.0, "all")][0]) < 0
        assert math.isnan(test.share(order=2.0).value) == negative
        assert math.isnan(test.log_ratio("pca", 2.0).ci_low) or not negative
        assert not negative or "takes not estimable of the gradient's anisotropy" in test.verdict()
    assert any(map(math.isnan, values))


def false_contrasts(n_replicates, order=2.0):
    """Bins of very different size whose gradients have the same second moment: there is no contrast."""
    make = torch.Generator().manual_seed(1)
    bins = FrequencyBins.of(torch.tensor([50, 100]), n_bins=2)
    wrong = 0
    for _ in range(n_replicates):
        rows, sequences, _ = drawn(32, make)
        tokens = (torch.rand(len(rows), generator=make) > 0.1).long()
        test = tangent_test(
            rows,
            rows,
            sequences,
            tokens,
            rank=RANK,
            controls=[],
            orders=(order,),
            fit_on=rows,
            bins=bins,
            proxy=lambda *_: LEADING,
        )
        ratio = test.frequency_log_ratio("input", order)
        wrong += ratio.ci_low > 0 or ratio.ci_high < 0
    return wrong


def test_bins_of_different_size_do_not_differ_at_order_2():
    assert false_contrasts(25) <= 4


@pytest.mark.calibration
def test_bins_of_different_size_differ_in_5_percent():
    assert false_contrasts(400) <= 36


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_lengths_and_anisotropy_are_those_of_the_rows_with_and_without_each_group(scale, generator):
    rows = torch.randn(300, 100, generator=generator, dtype=torch.float64) * torch.arange(1, 101) ** -0.5 * scale
    groups = torch.arange(300) * 5 // 300
    moments = GroupMoments.of(rows, groups, 5)
    kept = [rows, *(rows[groups != group] for group in range(5))]
    lengths = torch.stack([one.square().sum(dim=1).mean().sqrt() for one in kept])
    torch.testing.assert_close(moments.rms(), lengths, rtol=1e-12, atol=0)
    spectra = torch.stack([torch.linalg.svdvals(one).square() for one in kept])
    torch.testing.assert_close(moments.anisotropy(), spectra[:, 0] / spectra.sum(dim=1), rtol=1e-3, atol=0)
    assert float(moments.anisotropy()[0]) == pytest.approx(float(spectra[0, 0] / spectra[0].sum()), rel=1e-9)


def test_an_interval_of_lengths_in_a_bin_covers_the_truth():
    """Target 0 has gradients of length 3, target 1 of length 1, times noise that is common to a sequence."""
    covered, make = 0, torch.Generator().manual_seed(0)
    for _ in range(40):
        noise = (0.5 * torch.randn(32, 1, generator=make, dtype=torch.float64)).exp().expand(-1, 8).flatten()
        targets = torch.randint(2, (256,), generator=make)
        rows = torch.nn.functional.normalize(torch.randn(256, 12, generator=make, dtype=torch.float64), dim=1)
        grads = rows * (noise * (3 - 2 * targets))[:, None]
        bins = FrequencyBins.of([60, 40], n_bins=2)
        settings = {"rank": 2, "controls": [], "orders": [1.0], "bins": bins, "fit_on": rows}
        test = tangent_test(rows, grads, torch.arange(256) // 8, targets=targets, **settings)
        for freq_bin, length in (("target.1", 3), ("target.0", 1)):
            found = test.rms_of_bin(freq_bin)
            covered += found.ci_low <= length * math.exp(0.25) <= found.ci_high
        assert float(test.anisotropy["target.0"][0]) == pytest.approx(
            float(torch.linalg.matrix_norm(grads[targets == 1], 2) ** 2 / grads[targets == 1].square().sum())
        )
    assert covered >= 70


@pytest.mark.parametrize("n", [300, 1000])
def test_an_interval_of_anisotropy_is_not_too_narrow_where_the_spectrum_is_flat(n, generator):
    """Without a group, the leading direction of such rows turns far away from that of all rows."""
    narrowed = []
    for _ in range(5):
        rows, groups = torch.randn(n, 400, generator=generator, dtype=torch.float64), torch.arange(n) * 16 // n
        kept = [rows, *(rows[groups != group] for group in range(16))]
        exact = torch.stack([torch.linalg.matrix_norm(one, 2).square() / one.square().sum() for one in kept])
        found = GroupMoments.of(rows, groups, 16).anisotropy()
        narrow, wide = share_jackknife(found), share_jackknife(exact)
        narrowed.append((narrow.ci_high - narrow.ci_low) / (wide.ci_high - wide.ci_low))
    assert sum(narrowed) / 5 > 0.9
