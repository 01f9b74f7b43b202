import math

import pytest
import torch
from torch.nn.functional import normalize

from tangentlens import InputError, active_concepts
from tangentlens.alignment.active_check import active_concepts_of, own_and_swapped_concepts
from tangentlens.alignment.active_concepts import Usage, own_and_swapped, usages
from tangentlens.alignment.audit_data import AuditData
from tangentlens.alignment.rows import TokenRows
from tangentlens.proxies.principal import Principal

K, D, LENGTH = 12, 32, 20


def planted(n=1600, seed=0, on=0.2):
    """Rows that mix concepts with sparse codes; each sequence prefers some of the concepts, so its tokens depend."""
    make = torch.Generator().manual_seed(seed)
    concepts = torch.randn(K, D, generator=make, dtype=torch.float64)
    likely = on * 2 * torch.rand(n // LENGTH, K, generator=make, dtype=torch.float64).repeat_interleave(LENGTH, dim=0)
    codes = torch.rand(n, K, generator=make, dtype=torch.float64) * (torch.rand(n, K, generator=make) < likely)
    rows = codes @ concepts + 0.05 * torch.randn(n, D, generator=make, dtype=torch.float64)
    return rows, codes, concepts, torch.arange(n) // LENGTH, make


def normal(make, *shape):
    return torch.randn(*shape, generator=make, dtype=torch.float64)


def test_gradients_in_a_tokens_own_concepts_prefer_them_and_not_as_much_its_components():
    rows, codes, concepts, sequences, make = planted()
    gradients = (codes * normal(make, *codes.shape)) @ concepts
    found = active_concepts(rows, gradients, sequences, n_concepts=K, n_active=3)
    for ratio, advantage in (
        (found.log_ratio(), found.advantage()),
        (found.token_log_ratio(), found.token_advantage()),
    ):
        assert ratio.ci_low > math.log(2)
        assert advantage.ci_low > 0
    assert found.share().ci_low > 0.4 > found.share("concepts_swapped").ci_high
    assert "significantly above" in found.verdict()


def test_gradients_in_one_global_subspace_prefer_nothing_even_if_some_concepts_are_loud():
    """Tokens of the first concept have long gradients, and it lies in the subspace: a swap must not lose its usage."""
    rows, codes, concepts, sequences, make = planted(4000)
    subspace = torch.cat([concepts[:1], normal(make, 2, D)])
    gradients = normal(make, len(rows), 3) @ subspace
    loud = 1 + 9 * (codes[:, :1] > 0)
    for scale in (1.0, loud):
        found = active_concepts(rows, gradients * scale, sequences, n_concepts=K, n_active=3)
        for ratio in (found.log_ratio(), found.token_log_ratio(), found.log_ratio("components"), found.advantage()):
            assert abs(ratio.value) < 0.06
            assert ratio.ci_low < 0.02
            assert ratio.ci_high > -0.02


def covered(replicates, loud=0.0):
    """How often the intervals of isotropic gradients hold 0, for each of the six log-ratios."""
    rows, _, _, sequences, make = planted(800)
    used = usages(Principal.of(rows[:400]), rows[400:], K)
    held = torch.zeros(6)
    for number in range(replicates):
        # Tokens of a sequence have a part of their gradient in common.
        gradients = normal(make, 400, D) + normal(make, 20, D).repeat_interleave(LENGTH, dim=0)
        gradients *= (loud * normal(make, 400, 1)).exp()
        found = own_and_swapped(used, gradients, sequences[400:], n_active=3, seed=number)
        ratios = [*(found.log_ratio(name) for name in used), *(found.token_log_ratio(name) for name in used)]
        ratios += [found.advantage(), found.token_advantage()]
        held += torch.tensor([ratio.ci_low <= 0 <= ratio.ci_high for ratio in ratios])
    return held / replicates


@pytest.mark.parametrize("replicates", [100, pytest.param(1000, marks=pytest.mark.calibration)])
def test_intervals_of_isotropic_gradients_cover_one(replicates):
    spread = 3 * math.sqrt(0.95 * 0.05 / replicates)
    held = covered(replicates)
    assert (held > 0.92 - spread).all(), held
    assert (held < 0.985 + spread).all(), held


def test_a_few_loud_tokens_decide_by_energy_and_not_token_by_token():
    rows, codes, concepts, sequences, make = planted()
    gradients = normal(make, len(rows), D)
    loud = torch.randperm(len(rows), generator=make)[:40]
    gradients[loud] = 30 * ((codes * normal(make, *codes.shape)) @ concepts)[loud]
    found = active_concepts(rows, gradients, sequences, n_concepts=K, n_active=3)
    assert found.log_ratio().ci_low > math.log(1.5)
    assert 0 < found.token_log_ratio().value < math.log(1.2)


def active(usage, token, m):
    """The directions that contribute most to a token, and the dimension of their span."""
    contributions = usage.contributions[token]
    order = sorted(range(len(contributions)), key=lambda k: -float(contributions[k]))[:m]
    chosen = [k for k in order if contributions[k] > 0]
    return chosen, int(torch.linalg.matrix_rank(usage.directions[chosen])) if chosen else 0


def naive(used, gradients, sequences, ms, energy):
    """Token by token and pair by pair, with projections by least squares."""
    weights = gradients.square().sum(dim=1) if energy else gradients.square().sum(dim=1).gt(0).double()
    spans = [active(used, token, m)[0] for token, m in enumerate(ms)]

    def share(i, j):
        if not spans[j]:
            return 0.0
        span = used.directions[spans[j]].T
        fitted = span @ torch.linalg.lstsq(span, gradients[i][:, None], driver="gelsd").solution
        return float(fitted.square().sum() / gradients[i].square().sum())

    tokens = [i for i in range(len(gradients)) if weights[i] > 0]
    own = sum(weights[i] * share(i, i) for i in tokens) / weights.sum()
    pairs = [(i, j) for i in tokens for j in tokens if sequences[i] != sequences[j]]
    total = sum(weights[i] * weights[j] for i, j in pairs)
    return float(own), float(sum(weights[i] * weights[j] * share(i, j) for i, j in pairs) / total)


def small():
    """Twelve tokens in four sequences of unequal length: one without code, one with one, two concepts alike."""
    make = torch.Generator().manual_seed(3)
    directions = normalize(normal(make, 6, 9), dim=1)
    directions[4] = directions[1]
    contributions = normal(make, 12, 6).clamp_min(0)
    contributions[0], contributions[1, 1:] = 0, 0
    contributions[2, [1, 4]] = 9.0
    gradients = normal(make, 12, 9) * torch.arange(1, 13)[:, None]
    gradients[5] = 0
    used = {"concepts": Usage(directions, contributions), "components": Usage(torch.eye(9).double()[:6], contributions)}
    return used, gradients, torch.tensor([3, 3, 7, 7, 7, 7, 8, 8, 9, 7, 8, 3])


@pytest.mark.parametrize("m", [1, 3])
def test_shares_are_those_of_least_squares_over_all_pairs_of_tokens(m):
    used, gradients, sequences = small()
    found = own_and_swapped(used, gradients, sequences, n_active=m)
    ranks = [active(used["concepts"], token, m)[1] for token in range(12)]
    assert set(ranks) == {0, 1} if m == 1 else set(ranks) > {0, 1, 3}
    for variant, usage, ms in (("concepts", used["concepts"], [m] * 12), ("components", used["components"], ranks)):
        for energy, shares in ((True, found.shares), (False, found.token_shares)):
            own, swapped = naive(usage, gradients, sequences, ms, energy)
            assert float(shares[variant][0]) == pytest.approx(own, rel=1e-9)
            assert float(shares[f"{variant}_swapped"][0]) == pytest.approx(swapped, rel=1e-9)
    assert found.n_tokens == 11


def test_the_rank_counts_what_a_tokens_concepts_span():
    used, gradients, sequences = small()
    spans = [active(used["concepts"], token, 3)[1] for token in range(12) if token != 5]
    found = own_and_swapped(used, gradients, sequences, n_active=3)
    assert found.rank == pytest.approx(sum(spans) / len(spans))
    assert found.chance == pytest.approx(found.rank / 9)


def test_chunks_and_groups_change_nothing(monkeypatch):
    used, gradients, sequences = small()
    whole = own_and_swapped(used, gradients, sequences, n_active=3)
    monkeypatch.setattr("tangentlens.alignment.active_concepts._CHUNK", 2)
    parts = own_and_swapped(used, gradients, sequences, n_active=3)
    for name, share in whole.shares.items():
        torch.testing.assert_close(parts.shares[name], share)
    monkeypatch.setattr("tangentlens.alignment.active_concepts._MOST_GROUPS", 2)
    assert own_and_swapped(used, gradients, sequences, n_active=3).n_sequences == 2


def test_neither_a_rotation_nor_a_scale_changes_anything():
    rows, codes, concepts, sequences, make = planted(800)
    gradients = (codes * normal(make, *codes.shape)) @ concepts + normal(make, 800, D)
    turn = torch.linalg.qr(normal(make, D, D)).Q
    plain = active_concepts(rows, gradients, sequences, n_concepts=K, n_active=3)
    for other in (
        active_concepts(rows @ turn, gradients @ turn, sequences, n_concepts=K, n_active=3),
        active_concepts((rows * 2.0**-60).float(), (gradients * 2.0**50).float(), sequences, n_concepts=K, n_active=3),
    ):
        for (metric, variant), estimate in plain.estimates().items():
            again = other.estimates()[metric, variant]
            assert again.value == pytest.approx(estimate.value, rel=0.02, abs=0.02), (metric, variant)
            assert again.ci_low == pytest.approx(estimate.ci_low, rel=0.03, abs=0.03)


def test_sparse_codes_lower_the_rank_and_keep_the_comparison_fair():
    rows, _, _, sequences, make = planted(1600)
    gradients = normal(make, len(rows), D) * (rows.norm(dim=1, keepdim=True))
    found = active_concepts(rows, gradients, sequences, n_concepts=K, n_active=4, sparsity=0.3)
    dense = active_concepts(rows, gradients, sequences, n_concepts=K, n_active=4)
    assert found.rank < 3 < dense.rank == 4.0
    assert found.codes_per_token < 3 < dense.codes_per_token
    for ratio in (found.log_ratio(), found.token_log_ratio()):
        assert ratio.ci_low - 0.02 < 0 < ratio.ci_high + 0.02
    assert found.token_share("concepts_swapped").value == pytest.approx(found.chance, rel=0.1)


def test_same_seed_same_numbers_and_the_table_has_them_all():
    rows, _, _, sequences, make = planted(800)
    gradients = normal(make, 800, D)
    state = torch.random.get_rng_state()
    a, b = (active_concepts(rows, gradients, sequences, n_concepts=K, n_active=3, seed=2) for _ in range(2))
    assert a.table.equals(b.table)
    assert torch.equal(state, torch.random.get_rng_state())
    assert repr(a) == repr(b)
    assert a.table.height == 4 + 4 + 2 + 2 + 1 + 1
    assert (a.table["ci_low"] <= a.table["value"]).all()
    assert (a.table["value"] <= a.table["ci_high"]).all()
    assert set(a.table["ci_over"]) == {"sequences"}


def test_nothing_to_compare_is_not_called_equal():
    used, gradients, sequences = small()
    outside = torch.cat([torch.zeros(12, 8), torch.ones(12, 1)], dim=1).double()
    inside = {name: Usage(torch.eye(9).double()[:6], usage.contributions) for name, usage in used.items()}
    unused = used | {"concepts": Usage(used["concepts"].directions, torch.zeros(12, 6).double())}
    for usage, rows in ((inside, outside), (unused, gradients)):
        with pytest.raises(InputError, match="gradients must lie in the active concepts of other tokens"):
            own_and_swapped(usage, rows, sequences, n_active=3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_concepts": 200}, "n_concepts must be between 2 and 32, the smaller side of the (80, 32) rows"),
        ({"n_concepts": 1}, "n_concepts must be between 2 and 32"),
        ({"n_active": 12}, "n_active must be between 1 and 11, below the number of concepts, but is 12"),
        ({"n_active": 0}, "n_active must be between 1 and 11"),
        ({"sparsity": -1.0}, "sparsity must be a number from 0 on"),
        ({"sparsity": 99.0}, "at least one concept must be used, but none is with sparsity=99.0"),
        ({"activations": torch.ones(160, D)}, "rows must differ"),
        (
            {"gradients": torch.zeros(160, D)},
            "the gradients of at least 4 test sequences must not be zero, but only those of 0",
        ),
        ({"gradients": torch.full((160, D), float("nan"))}, "NaN or Inf"),
        ({"sequences": torch.arange(160) // 40}, "the gradients of at least 4 test sequences"),
        ({"sequences": torch.arange(160) // 80}, "at least 4 sequences are needed"),
    ],
)
def test_bad_input_says_what_to_do(change, says):
    rows, _, _, sequences, make = planted(160)
    given = {"activations": rows, "gradients": normal(make, 160, D), "sequences": sequences, "n_concepts": K}
    with pytest.raises(InputError) as error:
        active_concepts(**(given | {"n_active": 3} | change))
    assert says in str(error.value)


def test_the_audits_check_tells_its_gradients_from_permuted_ones_and_from_those_of_other_conditions():
    rows, codes, concepts, sequences, make = planted()
    gradients = (codes * normal(make, *codes.shape)) @ concepts
    given = TokenRows.of(rows, gradients, sequences)
    on = AuditData(*given.halves(), rank=4, dimension=None, seed=0)
    check = own_and_swapped_concepts(on)
    assert check.estimates["log_ratio"].ci_low > math.log(1.5)
    assert check.estimates["token log_ratio"].ci_low > math.log(1.5)
    for name in ("log_ratio", "token log_ratio"):
        permuted = check.estimates[f"{name} of permuted gradients"]
        assert abs(permuted.value) < 0.1
        assert permuted.ci_low < 0.02
        assert permuted.ci_high > -0.02
    assert "concepts of its own token is significantly above that in those of other tokens" in check.means
    noise = active_concepts_of(on, "noise", TokenRows.of(rows, normal(make, *rows.shape), sequences))
    assert noise.name == "active concepts of noise"
    assert abs(noise.estimates["token log_ratio"].value) < 0.1
    assert noise.estimates.keys() < check.estimates.keys()
