"""A random direction is as good as any: Haar-random subspaces, in the whole space or inside a part of it."""

import torch

from tangentlens.errors import InputError
from tangentlens.geometry.subspace import Subspace


def random(within: Subspace | int, rank: int, seed: int = 0) -> Subspace:
    """A Haar-random subspace of `rank` in R^d, or `within` a subspace; in a proxy's complement it is a normal control.

    >>> line = Subspace.span([[1.0, 0.0, 0.0]])
    >>> random(line.complement(), rank=2).overlap(line)
    0.0
    """
    room = within if isinstance(within, int) else within.rank
    if not 1 <= rank <= room:
        raise InputError(f"rank must be between 1 and {room}, the dimension of the room for it, but is {rank}")
    draw = torch.randn(room, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    basis = torch.linalg.qr(draw).Q
    return Subspace(basis if isinstance(within, int) else within.basis @ basis.to(within.basis))
