"""Structure beyond the marginals: the semi-NMF of activations whose columns were permuted, each on its own."""

from typing import Any

import torch

from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.principal import Principal
from tangentlens.proxies.semi_nmf import semi_nmf


def shuffled(x: Any, rank: int, seed: int = 0) -> Subspace:
    """The proxy of rows `x` (or of a `Principal`) with every column permuted on its own: each keeps its values alone.

    >>> shuffled(torch.eye(6), rank=2)
    Subspace(rank=2, dim=6)
    """
    rows = Principal.of(x).rows
    make = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(len(rows), generator=make) for _ in range(rows.shape[1])], dim=1)
    return semi_nmf(rows.gather(0, order.to(rows.device)), rank, seed)
