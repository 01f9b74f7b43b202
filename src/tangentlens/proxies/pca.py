"""The top-variance directions: the rival that says 'any high-variance subspace would do'."""

from typing import Any

from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.principal import Principal


def pca(x: Any, rank: int, seed: int = 0) -> Subspace:
    """The `rank` leading eigenvectors of the covariance of rows `x` (or their `Principal`). There is nothing to seed.

    >>> pca([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]], rank=1).basis.abs().T.tolist()
    [[1.0, 0.0]]
    """
    principal = Principal.of(x)
    principal.check_rank(rank)
    return Subspace(principal.vectors[:, :rank])
