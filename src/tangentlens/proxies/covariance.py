"""A control for variance alone: the span of draws from a Gaussian with the covariance of the activations."""

from typing import Any

import torch

from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.principal import Principal


def covariance(x: Any, rank: int, seed: int = 0) -> Subspace:
    """Return the span of `rank` draws from N(0, Cov x).

    Args:
        x: Rows `(n, d)`, or their `Principal`.
        rank: Rank of the subspace.
        seed: Seed of the draws.

    >>> covariance([[3.0, 0.0], [-3.0, 0.0], [1.0, 0.0]], rank=1).basis.abs().T.tolist()
    [[1.0, 0.0]]
    """
    principal = Principal.of(x)
    principal.check_rank(rank)
    make = torch.Generator().manual_seed(seed)
    draws = torch.randn(rank, principal.dim, generator=make, dtype=torch.float64).to(principal.values)
    return Subspace.span(draws * principal.values.sqrt() @ principal.vectors.T, rank=rank)
