"""Structure beyond the marginals: the semi-NMF of activations whose columns were permuted, each on its own."""

from typing import Any

import torch

from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.principal import SPARE, Principal
from tangentlens.proxies.semi_nmf import semi_nmf


def shuffled(x: Any, rank: int, seed: int = 0) -> Subspace:
    """The proxy of rows `x` (or of a `Principal`) with every column permuted on its own: each keeps its values alone.

    Permuted columns are uncorrelated but for sampling noise. So their principal directions are the columns, and of
    these the `rank` + 16 that vary most are all that a semi-NMF of this rank looks at.

    >>> shuffled([[5.0, 1.0, 0.0], [-5.0, -1.0, 0.0], [5.0, -1.0, 0.1]], rank=1).basis.abs().argmax(dim=0)
    tensor([0])
    """
    principal = Principal.of(x)
    principal.check_rank(rank)
    columns = principal.points.square().mean(dim=0).argsort(descending=True, stable=True)[: rank + SPARE]
    make = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(len(principal.rows), generator=make) for _ in columns], dim=1)
    found = semi_nmf(principal.rows[:, columns].gather(0, order.to(columns)), rank, seed)
    basis = found.basis.new_zeros(principal.dim, found.rank)
    basis[columns] = found.basis
    return Subspace(basis)
