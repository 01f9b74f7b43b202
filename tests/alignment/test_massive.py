"""Sinks with small, equal and loud gradients: what they make of a test, and what is left without them."""

import pytest
import torch

from tangentlens import massive_rows, tangent_test
from tangentlens.alignment.rows import TokenRows

N, D, RANK, SINKS, LENGTH = 4096, 128, 16, 32, 100.0
CONTROLS = ("normal", "random", "pca")


def planted(loudness, seed=0):
    """Isotropic rows and gradients; some rows are long along one direction, and their gradients loud along it."""
    make = torch.Generator().manual_seed(seed)
    rows, gradients = (torch.randn(N, D, generator=make) for _ in range(2))
    direction = torch.nn.functional.normalize(torch.randn(D, generator=make), dim=0)
    sinks = torch.arange(N) % (N // SINKS) == 0
    signs = torch.randint(0, 2, (SINKS, 1), generator=make).mul(2).sub(1)
    rows[sinks] += signs * LENGTH * rows.norm(dim=1).median() * direction
    gradients[sinks] = loudness * gradients.norm(dim=1).median() * signs * direction
    return rows, gradients, torch.arange(N) // (N // SINKS), sinks


@pytest.mark.parametrize("loudness", [0.1, 1.0, 3.0])
def test_without_them_nothing_is_significant(loudness):
    rows, gradients, sequences, sinks = planted(loudness)
    found = massive_rows(rows)
    assert torch.equal(found.mask, sinks)
    keep = ~found.mask
    test = tangent_test(rows[keep], gradients[keep], sequences[keep], rank=RANK, controls=CONTROLS)
    chance = RANK / D
    for order in (1.0, 2.0):
        share = test.share(order=order)
        assert share.ci_low < chance < share.ci_high or abs(share.value - chance) < 0.01
    assert 0.01 < test.p_values[next(cell for cell in test.p_values if cell.variant == "random")] < 0.99


def test_loud_sinks_make_significance_out_of_nothing_and_that_is_told():
    rows, gradients, sequences, _ = planted(loudness=3.0)
    test = tangent_test(rows, gradients, sequences, rank=RANK, controls=CONTROLS)
    assert test.share().ci_low > 1.3 * RANK / D
    assert test.share(order=2.0).value > 0.4
    assert test.p_values[next(cell for cell in test.p_values if cell.variant == "random")] < 1e-6
    # What gives it away: hardly anything is left of it token by token, and 1% of the tokens hold order 2.
    assert test.token_share().value == pytest.approx(RANK / D, rel=0.1)
    assert test.held_by_top[2.0] > 0.5
    assert "hold" in test.verdict()


def test_quiet_sinks_leave_the_test_as_it_is():
    rows, gradients, sequences, _ = planted(loudness=0.1)
    whole = tangent_test(rows, gradients, sequences, rank=RANK, controls=CONTROLS)
    assert whole.share().value == pytest.approx(RANK / D, rel=0.1)
    assert max(whole.held_by_top.values()) < 0.2


def test_rows_without_massive_ones_keep_all_that_belongs_to_them():
    rows, gradients, sequences, sinks = planted(loudness=1.0)
    tokens = torch.arange(N)
    kept = TokenRows.of(rows, gradients, sequences, tokens, tokens).without_massive()
    assert kept.tokens.tolist() == tokens[~sinks].tolist()
    assert torch.equal(kept.gradients, gradients[~sinks])
    assert kept.sequences.tolist() == sequences[~sinks].tolist()
