"""The top-variance directions: the rival that says 'any high-variance subspace would do'."""

from typing import Any

import torch

from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.subspace import Subspace


def pca(x: Any, rank: int, seed: int = 0) -> Subspace:
    """The `rank` leading eigenvectors of the covariance of `x` (rows or `Moments`). There is nothing to seed.

    >>> pca([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]], rank=1).basis.abs().T.tolist()
    [[1.0, 0.0]]
    """
    moments = Moments.of(x)
    if not 1 <= rank <= moments.dim:
        raise InputError(f"rank must be between 1 and {moments.dim}, the number of features, but is {rank}")
    vectors = torch.linalg.eigh(moments.covariance()).eigenvectors
    return Subspace(vectors[:, -rank:].flip(1))
