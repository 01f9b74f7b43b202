"""A control for chance: Haar-random subspaces, of the whole space or of a subspace."""

import torch

from tangentlens.errors import InputError
from tangentlens.geometry.subspace import Subspace


def random(within: Subspace | int, rank: int, seed: int = 0) -> Subspace:
    """Return a Haar-random subspace; in the complement of a proxy, it is the `normal` control.

    Args:
        within: The dimension d of the whole space R^d, or the subspace in which to draw.
        rank: Rank of the random subspace.
        seed: Seed of the draw.

    >>> line = Subspace.span([[1.0, 0.0, 0.0]])
    >>> random(line.complement(), rank=2).overlap(line)
    0.0
    """
    room = within if isinstance(within, int) else within.rank
    if not 1 <= rank <= room:
        raise InputError(f"rank must be between 1 and {room}, the dimension of the space around it, but is {rank}")
    draw = torch.randn(room, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    basis = torch.linalg.qr(draw).Q
    return Subspace(basis if isinstance(within, int) else within.basis @ basis.to(within.basis))
