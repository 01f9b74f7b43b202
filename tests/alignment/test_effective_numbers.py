"""Which effective number predicts what intervals cover, and whether degrees of freedom from it mend them."""

from itertools import product

import pytest
import torch

from tangentlens.alignment.group_moments import GroupMoments
from tangentlens.alignment.share import moment_shares
from tangentlens.proxies.random import random
from tangentlens.statistics.groups import sequence_groups
from tangentlens.statistics.influence import effective_number
from tangentlens.statistics.jackknife import LEAST_EFFECTIVE, share_jackknife

DIM, LENGTH, ORDERS = 32, 8, (1.0, 2.0)


def samples(n_replicates, sizes, loudness):
    """Yield effective numbers of groups, sequences and tokens, and which intervals cover: plain, then mended."""
    make = torch.Generator().manual_seed(0)
    spectrum = torch.arange(1, DIM + 1, dtype=torch.float64) ** -1.0
    q = random(DIM, 8)
    truth = moment_shares(torch.diag(spectrum), {"q": q}, ORDERS)[0].tolist()
    for size, (tokens, sequences), _ in product(sizes, loudness, range(n_replicates)):
        shapes = ((size, LENGTH, DIM), (size, 1, DIM), (size, LENGTH, 1), (size, 1, 1))
        own, common, loud, louder = (torch.randn(shape, generator=make, dtype=torch.float64) for shape in shapes)
        rows = ((own + common) * spectrum.sqrt() * (tokens * loud + sequences * louder).exp()).flatten(0, 1)
        ids = torch.arange(size).repeat_interleave(LENGTH)
        groups = sequence_groups(ids, 16)
        moments = GroupMoments.of(rows, groups, int(groups.max()) + 1)
        shares, energy = moments.shares({"q": q}, ORDERS)["q"].unbind(dim=1), rows.square().sum(dim=1)
        # The law with as many degrees as groups, whatever their energy; then that with the groups in effect.
        laws = ((), (moments.energy,))
        intervals = [[share_jackknife(share, *law) for share in shares] for law in laws]
        yield (
            effective_number(moments.energy),
            effective_number(energy.unflatten(0, (size, LENGTH)).sum(dim=1)),
            effective_number(energy),
            *(one.ci_low <= true <= one.ci_high for of in intervals for one, true in zip(of, truth, strict=True)),
        )


LOUDNESS = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 2.0), (1.0, 1.0))


@pytest.mark.parametrize("n", [4, pytest.param(100, marks=pytest.mark.calibration)])
def test_intervals_cover_wherever_they_are_given_although_few_sequences_hold_the_energy(n):
    found = torch.tensor([list(map(float, one)) for one in samples(n, (4, 8, 16, 64), LOUDNESS)])
    given = found[found[:, 0] >= LEAST_EFFECTIVE]
    plain, mended = given[:, 3:5].mean(dim=0), given[:, 5:7].mean(dim=0)
    # Three standard errors below 95%, or 92% if those are small.
    least = min(0.92, 0.95 - 3 * (0.05 / len(given)) ** 0.5)
    assert (mended >= least).all(), (plain, mended, len(given))
    assert (mended >= plain).all()
    assert found[found[:, 0] < LEAST_EFFECTIVE][:, 5:7].sum() == 0


@pytest.mark.calibration
def test_effective_sequences_predict_coverage_better_than_effective_tokens():
    found = torch.tensor([list(map(float, one)) for one in samples(100, (4, 8, 16, 64), LOUDNESS)])
    ranks = found.argsort(dim=0).argsort(dim=0).float()
    covered = found[:, 3] - found[:, 3].mean()
    of_sequences, of_tokens = (float(covered @ (ranks[:, column] - ranks[:, column].mean())) for column in (1, 2))
    assert of_sequences > of_tokens
