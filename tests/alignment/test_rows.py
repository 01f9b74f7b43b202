import pytest
import torch

from tangentlens import InputError
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.share import replicate_shares
from tangentlens.geometry.subspace import Subspace


def test_energy_shares_are_those_of_second_moments():
    make = torch.Generator().manual_seed(0)
    gradients = torch.randn(600, 10, generator=make) * torch.arange(1, 11)
    # A group of sequences without gradients does not count.
    gradients[:40] = 0
    rows = TokenRows.of(torch.zeros(600, 10), 1e-20 * gradients, torch.arange(600) // 20)
    subspaces = {str(rank): Subspace.span(torch.randn(rank, 10, generator=make)) for rank in (1, 4)}
    expected = replicate_shares(rows.second_moments(), subspaces, (1.0,))
    for name, shares in rows.energy_shares(subspaces).items():
        assert shares.tolist() == pytest.approx(expected[name][:, 0].tolist(), rel=1e-5)


def test_energy_shares_need_gradients_in_two_groups():
    rows = TokenRows.of(torch.zeros(40, 3), torch.zeros(40, 3), torch.arange(40) // 4)
    with pytest.raises(InputError, match="must not be zero"):
        rows.energy_shares({"q": Subspace.span([[1.0, 0.0, 0.0]])})
