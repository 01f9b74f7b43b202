"""The directions in which activations vary least."""

from typing import Any

from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.principal import Principal


def tail(x: Any, rank: int, seed: int = 0) -> Subspace:
    """The `rank` last eigenvectors of the covariance of rows `x` (or their `Principal`). There is nothing to seed.

    >>> tail([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]], rank=1).basis.abs().T.tolist()
    [[0.0, 1.0]]
    """
    principal = Principal.of(x)
    principal.check_rank(rank)
    return Subspace(principal.vectors[:, -rank:])
