"""A control for the marginals: the semi-NMF of activations whose columns are permuted independently."""

from typing import Any

import torch

from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.principal import SPARE, Principal
from tangentlens.proxies.semi_nmf import semi_nmf


def shuffled(x: Any, rank: int, seed: int = 0) -> Subspace:
    """Return the semi-NMF proxy of rows whose columns are permuted independently, which keeps the marginals alone.

    Permuted columns are uncorrelated up to sampling noise, so their principal directions are the coordinate axes. Only
    the `rank` + 16 columns with the largest variance are used, because a semi-NMF of this rank uses as many leading
    principal directions.

    Args:
        x: Rows `(n, d)`, or their `Principal`.
        rank: Rank of the subspace.
        seed: Seed of the permutations and of the semi-NMF.

    >>> shuffled([[5.0, 1.0, 0.0], [-5.0, -1.0, 0.0], [5.0, -1.0, 0.1]], rank=1).basis.abs().argmax(dim=0)
    tensor([0])
    """
    principal = Principal.of(x)
    principal.check_rank(rank)
    columns = principal.points.square().mean(dim=0).argsort(descending=True, stable=True)[: rank + SPARE]
    make = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(len(principal.rows), generator=make) for _ in columns], dim=1)
    proxy = semi_nmf(principal.rows[:, columns].gather(0, order.to(columns)), rank, seed)
    basis = proxy.basis.new_zeros(principal.dim, proxy.rank)
    basis[columns] = proxy.basis
    return Subspace(basis)
