import math

import pytest
import torch

from tangentlens import InputError, chance, share, tangent_test
from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.tangent_result import Cell, average
from tangentlens.alignment.tangent_test import N_DRAWS
from tangentlens.proxies.covariance import covariance
from tangentlens.statistics.emergence import emergence
from tangentlens.statistics.groups import sequence_groups
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.words import compare, relation


def planted(where, n_sequences=40, length=20, d=24, r=4, seed=0):
    """Activations spread in the first r directions; gradients in those, in others, or everywhere."""
    make = torch.Generator().manual_seed(seed)
    scale = torch.ones(d)
    scale[:r] = 6
    activations = torch.randn(n_sequences * length, d, generator=make) * scale
    lean = torch.randn(n_sequences, 1, d, generator=make).expand(-1, length, -1).flatten(0, 1)
    gradients = lean + torch.randn(n_sequences * length, d, generator=make)
    gradients *= {"tangent": scale, "normal": scale.flip(0), "anywhere": torch.ones(d)}[where]
    return activations, gradients, torch.arange(n_sequences * length) // length


@pytest.mark.parametrize(("where", "word"), [("tangent", "significantly above"), ("normal", "significantly below")])
def test_says_what_was_planted(where, word):
    test = tangent_test(*planted(where), rank=4)
    verdict = test.verdict().splitlines()
    # At three orders and token by token.
    for control in ("normal", "random"):
        lines = [line for line in verdict if f" times {control} (" in line]
        assert len(lines) == 4, verdict
        assert all(f"({word}" in line for line in lines), lines


def test_gradients_without_relation_are_rarely_called_tangent():
    p = torch.tensor(
        [
            list(tangent_test(*planted("anywhere", seed=seed), rank=4, controls=["random"]).p_values.values())
            for seed in range(40)
        ]
    )
    assert ((p < 0.05).float().mean(dim=0) < 0.15).all()
    assert (p.mean(dim=0) - 0.5).abs().max() < 0.15


def test_shares_are_those_of_the_second_half_in_the_subspace_of_the_first():
    activations, gradients, sequences = planted("tangent")
    test = tangent_test(activations, gradients, sequences, rank=4)
    held_out = gradients[sequences >= 20]
    for variant in ("semi_nmf", "pca"):
        for order in (1.0, math.inf):
            expected = share(held_out, test.subspaces[variant], order)
            assert test.share(variant, order).value == pytest.approx(expected, rel=1e-5)


def test_the_proxy_never_sees_the_sequences_or_gradients_it_is_tested_on():
    activations, gradients, sequences = planted("tangent")
    expected = tangent_test(activations, gradients, sequences, rank=4)
    activations[sequences >= 20] = 77.0
    gradients[sequences < 20] = -5.0
    changed = tangent_test(activations, gradients, sequences, rank=4)
    assert torch.equal(changed.subspaces["semi_nmf"].basis, expected.subspaces["semi_nmf"].basis)
    assert changed.table.equals(expected.table)


def test_every_row_of_the_table_says_what_its_interval_is_over():
    activations, gradients, sequences = planted("tangent")
    make = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 50, (800,), generator=make)
    targets = tokens.roll(-1).index_fill(0, torch.arange(0, 800, 7), -100)
    table = tangent_test(activations, gradients, sequences, tokens, targets, rank=4).table
    over = {"random": "control draws", "normal": "control draws", "permuted": "control draws"}
    for row in table.filter(metric="share").iter_rows(named=True):
        assert row["ci_over"] == over.get(row["variant"], "sequences")
    assert set(table.filter(metric="token_share")["ci_over"]) == {"sequences"}
    controls = table.filter(table["variant"] != "semi_nmf")
    assert set(controls["log_ratio_over"]) == {"sequences"}
    assert (table["ci_low"] <= table["value"] + 1e-12).all()
    assert (table["value"] <= table["ci_high"] + 1e-12).all()
    assert set(table["freq_bin"]) == {"all", *(f"{kind}.{i}" for kind in ("input", "target") for i in range(4))}
    by_input = table.filter(metric="share", variant="pca", order=1.0)
    assert by_input.filter(by_input["freq_bin"].str.starts_with("input"))["n"].sum() == 400
    assert by_input.filter(by_input["freq_bin"].str.starts_with("target"))["n"].sum() == int((targets[400:] >= 0).sum())


def test_frequency_contrast_sees_a_share_that_depends_on_frequency():
    activations, gradients, sequences = planted("anywhere")
    tokens = torch.arange(800) % 2
    gradients[tokens == 0, :4] *= 5
    bins = FrequencyBins.of(torch.tensor([900, 100]), n_bins=2)
    test = tangent_test(activations, gradients, sequences, tokens, rank=4, bins=bins)
    assert test.frequency_log_ratio("input").ci_low > 0
    assert test.frequency_log_ratio("target") is None


def test_a_bin_without_gradients_is_left_out_and_the_rest_stays():
    activations, gradients, sequences = planted("tangent")
    tokens = torch.arange(800) % 2
    gradients[tokens == 0] = 0
    bins = FrequencyBins.of(torch.tensor([100, 100]), n_bins=2)
    table = tangent_test(activations, gradients, sequences, tokens, rank=4, bins=bins).table
    assert set(table["freq_bin"]) == {"all", "input.1"}


def test_average_over_equal_sites_is_one_sites_result():
    test = tangent_test(*planted("tangent"), rank=4)
    mean = average([test, test, test])
    assert mean.share().ci_low == pytest.approx(test.share().ci_low)
    assert mean.share().value == pytest.approx(test.share().value)
    assert mean.log_ratio("normal", 2.0).ci_low == pytest.approx(test.log_ratio("normal", 2.0).ci_low)


def test_bad_input_says_what_to_do():
    activations, gradients, sequences = planted("tangent")
    with pytest.raises(InputError, match="at least 4 sequences are needed, 2 to fit and 2 to test, but 2 came"):
        tangent_test(activations, gradients, sequences // 20, rank=4)
    with pytest.raises(
        InputError, match=r"gradients must be \(800, 24\), a row for each activation, but came as \(799, 24\)"
    ):
        tangent_test(activations, gradients[1:], sequences, rank=4)
    with pytest.raises(InputError, match="rank must be between 1 and 12 at width 24 with these controls, but is 13"):
        tangent_test(activations, gradients, sequences, rank=13)
    with pytest.raises(InputError, match=r"targets must be \(800,\), a row for each activation, but came as \(3,\)"):
        tangent_test(activations, gradients, sequences, targets=[1, 2, 3], rank=4)
    with pytest.raises(InputError, match="n_groups must be at least 2"):
        tangent_test(activations, gradients, sequences, rank=4, n_groups=1)
    with pytest.raises(InputError, match=r"sequences must be whole numbers, one for each row, but are torch.float32"):
        tangent_test(activations, gradients, sequences / 2, rank=4)
    with pytest.raises(InputError, match="sequences must be numbers in a tensor, or convertible to one"):
        tangent_test(activations, gradients, ["a"] * 800, rank=4)
    with pytest.raises(InputError, match="must not be zero"):
        tangent_test(activations, torch.zeros_like(gradients), sequences, rank=4)
    with pytest.raises(
        InputError, match="among normal, random, permuted, semi_nmf, pca, covariance, tail, kmeans, ica, shuffled, but"
    ):
        tangent_test(activations, gradients, sequences, rank=4, controls=["magic"])


def test_the_contrast_is_between_the_outermost_bins_or_there_is_none():
    activations, gradients, sequences = planted("anywhere")
    tokens = torch.arange(800) % 2 + 1
    bins = FrequencyBins.of(torch.tensor([100, 200, 300, 400]), n_bins=4)
    test = tangent_test(activations, gradients, sequences, tokens, rank=4, bins=bins)
    assert len({cell.freq_bin for cell in test.shares}) == 3
    assert test.frequency_log_ratio("input") is None


def test_targets_that_are_not_known_have_no_bins():
    activations, gradients, sequences = planted("tangent")
    table = tangent_test(activations, gradients, sequences, targets=torch.full((800,), -100), rank=4).table
    assert set(table["freq_bin"]) == {"all"}


def test_the_token_share_is_the_mean_over_tokens_and_no_gradient_outweighs_another():
    activations, gradients, sequences = planted("tangent")
    gradients[sequences == 30] = 0
    test = tangent_test(activations, gradients, sequences, rank=4)
    held_out = gradients[(sequences >= 20) & (sequences != 30)]
    for variant in ("semi_nmf", "ica"):
        basis = test.subspaces[variant].basis.float()
        expected = ((held_out @ basis).square().sum(dim=1) / held_out.square().sum(dim=1)).mean()
        assert test.token_share(variant).value == pytest.approx(float(expected), rel=1e-5)
    gradients[sequences == 25] *= 1e6
    louder = tangent_test(activations, gradients, sequences, rank=4)
    assert louder.token_share().value == pytest.approx(test.token_share().value, rel=1e-5)
    assert louder.share().value != pytest.approx(test.share().value, rel=1e-3)


def test_every_order_is_that_of_the_plain_share():
    activations, gradients, sequences = planted("tangent", d=80)
    test = tangent_test(activations, gradients, sequences, rank=4)
    held_out = gradients[sequences >= 20]
    for order in (1.0, math.inf):
        for variant in ("pca", "kmeans", "shuffled"):
            expected = share(held_out, test.subspaces[variant], order)
            assert test.share(variant, order).value == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_chance_beside_the_proxy_is_chance_within_its_complement():
    activations, gradients, sequences = planted("tangent")
    test = tangent_test(activations, gradients, sequences, rank=4)
    held_out, proxy = gradients[sequences >= 20], test.subspaces["semi_nmf"]
    for order in (1.0, math.inf):
        for control, within in (("random", None), ("normal", proxy.complement())):
            expected = chance(held_out, 4, order, within)
            found = test.chances[Cell(control, order, "all")]
            assert (found.mean, found.std) == pytest.approx((expected.mean, expected.std), rel=1e-4, abs=1e-7)


def test_drawn_controls_are_means_over_draws_of_the_proxys_rank():
    activations, gradients, sequences = planted("tangent")
    test = tangent_test(activations, gradients, sequences, rank=4)
    fit, held_out = activations[sequences < 20], gradients[sequences >= 20]
    draws = torch.tensor([share(held_out, covariance(fit, 4, seed)) for seed in range(N_DRAWS)])
    assert test.share("covariance").value == pytest.approx(float(draws.mean()), rel=1e-5)
    assert test.share().value > float(draws.max())
    assert test.p_values[Cell("covariance", 1.0, "all")] < 0.05


def test_a_share_that_many_random_subspaces_take_is_not_called_more():
    words = compare("random", Interval(0.1, 0.05, 0.15), p_value=0.3)
    assert words.endswith("(above its mean, but not significantly above a single draw, p = 0.3)")
    words = compare("random", Interval(0.1, 0.05, 0.15), p_value=0.01)
    assert words.endswith("(significantly above, p = 0.01)")


def test_token_ids_may_be_any_numbers():
    activations, gradients, sequences = planted("tangent")
    tokens = torch.arange(800) % 7
    small, huge = (
        tangent_test(activations, gradients, sequences, ids, rank=4, controls=["pca"])
        for ids in (tokens, tokens + 2**45)
    )
    assert small.table.equals(huge.table)


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_shares_do_not_depend_on_the_scale_of_gradients(scale):
    activations, gradients, sequences = planted("tangent")
    plain = tangent_test(activations, gradients.double(), sequences, rank=4).table
    scaled = tangent_test(activations, gradients.double() * scale, sequences, rank=4).table
    assert scaled["value"].to_list() == pytest.approx(plain["value"].to_list())


def test_only_tokens_with_a_gradient_are_counted():
    activations, gradients, sequences = planted("tangent")
    tokens = torch.arange(800) % 2
    gradients[torch.arange(800) % 20 > 2] = 0
    test = tangent_test(activations, gradients, sequences, tokens, rank=4, controls=["pca"])
    assert test.n_tokens["all"] == int((gradients[400:].abs().amax(dim=1) > 0).sum()) == 60
    assert test.n_tokens["input.0"] + test.n_tokens["input.3"] <= 60
    assert set(test.table.filter(freq_bin="all")["n"]) == {60}


def test_effective_numbers_are_those_of_the_energies():
    activations, gradients, sequences = planted("tangent")
    gradients[sequences == 25] *= 10
    test = tangent_test(activations, gradients, sequences, rank=4, controls=["pca"])
    energy = gradients[400:].double().square().sum(dim=1)
    by_sequence = torch.stack([energy[sequences[400:] == s].sum() for s in range(20, 40)])
    for found, weights in ((test.effective_tokens, energy), (test.effective_sequences, by_sequence)):
        assert found["all"] == pytest.approx(float(weights.sum() ** 2 / weights.square().sum()), rel=1e-5)
    assert test.table["effective_sequences"][0] == test.effective_sequences["all"]


def test_energy_in_one_sequence_gives_no_interval_and_no_claim():
    activations, gradients, sequences = planted("tangent")
    gradients[sequences == 25] *= 30
    test = tangent_test(activations, gradients, sequences, rank=4)
    assert test.effective_sequences["all"] < 1.2
    for order in (1.0, 2.0, math.inf):
        assert math.isnan(test.share(order=order).ci_low)
        for control in test.variants[1:]:
            assert relation(test.log_ratio(control, order)) == "no interval"
    shares, _, by_token = test.verdict().partition("Token by token")
    assert shares.startswith("Shares have no interval: 1.0 effective sequences hold the energy.")
    assert "significantly above" not in shares.replace("not significantly above", "")
    assert "(no interval) times normal (without an interval, and so not compared)" in shares
    # Every token has the same weight in the token share, whose intervals stay.
    assert "significantly above" in by_token
    assert test.table.filter(metric="share", variant="pca")["ci_low"].is_null().all()
    assert math.isnan(average([test, test]).log_ratio("normal").ci_low)
    assert emergence([0, 1], [test.log_ratio("normal").ci_low, 0.1]).step == 1


def test_what_the_top_tokens_hold_agrees_with_naive_sums():
    activations, gradients, sequences = planted("tangent")
    gradients *= torch.randn(800, 1, generator=torch.Generator().manual_seed(2)).exp()
    test = tangent_test(activations, gradients, sequences, rank=4, controls=["pca"])
    held_out, basis = gradients[400:].double(), test.subspaces["semi_nmf"].basis
    moment = held_out.T @ held_out
    leader = torch.linalg.eigh(moment).eigenvectors[:, -1]
    # At order 2, every token with the tokens of the other groups of sequences.
    groups = sequence_groups(sequences[400:], 16)
    apart = (groups[:, None] != groups[None, :]).double()
    pairs = (held_out @ held_out.T) * (held_out @ basis @ (held_out @ basis).T) * apart
    contributions = {
        1.0: (held_out @ basis).square().sum(dim=1),
        2.0: pairs.sum(dim=1),
        math.inf: (held_out @ leader).square(),
    }
    for order, parts in contributions.items():
        largest = parts.clamp_min(0).sort(descending=True).values
        assert test.held_by_top[order] == pytest.approx(float(largest[:4].sum() / largest.sum()), rel=1e-4)
    # The numerators, too: contributions add up to those of the shares.
    assert float(contributions[1.0].sum() / moment.trace()) == pytest.approx(test.share().value, rel=1e-5)
    whole = float(((held_out @ held_out.T).square() * apart).sum())
    assert float(pairs.sum()) / whole == pytest.approx(test.share(order=2.0).value, rel=1e-5)


def test_a_few_loud_tokens_are_named():
    """32 of 4,096 tokens have rows 100 times as long, and gradients that hold most of the energy, along one axis."""
    make = torch.Generator().manual_seed(0)
    activations, gradients = torch.randn(2, 4096, 32, generator=make)
    sink = torch.arange(32) * 128
    activations[sink, 5] *= 100
    gradients[sink, 5] = 300 * gradients[sink, 5].sign()
    test = tangent_test(activations, gradients, torch.arange(4096) // 128, rank=4, controls=["random"])
    # Each of the 16 test sequences has one sink: they are reliable over sequences, and decided by 1% of the tokens.
    assert test.effective_tokens["all"] == pytest.approx(17.5, abs=0.5)
    assert test.effective_sequences["all"] > 15
    assert all(held > 0.9 for held in test.held_by_top.values())
    assert repr(test).count("Warning: 1% of the tokens hold ") == 3
    calm = tangent_test(activations, torch.randn(4096, 32, generator=make), torch.arange(4096) // 128, rank=4)
    assert max(calm.held_by_top.values()) < 0.1
    assert "Warning" not in repr(calm)
