"""A control for low variance: the directions in which activations vary least."""

from typing import Any

from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.principal import Principal


def tail(x: Any, rank: int, seed: int = 0) -> Subspace:
    """Return the span of the `rank` trailing eigenvectors of the covariance.

    Args:
        x: Rows `(n, d)`, or their `Principal`.
        rank: Rank of the subspace.
        seed: Not used: the result is deterministic. All proxies have the same signature.

    >>> tail([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]], rank=1).basis.abs().T.tolist()
    [[0.0, 1.0]]
    """
    principal = Principal.of(x)
    principal.check_rank(rank)
    return principal.span(slice(-rank, None))
