"""Another concept extractor: the centers of k-means clusters."""

from typing import Any

import torch

from tangentlens.errors import InputError
from tangentlens.geometry.clusters import k_means
from tangentlens.geometry.leading import leading_directions
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.principal import SPARE, Principal


def kmeans(x: Any, rank: int, seed: int = 0) -> Subspace:
    """Return the span of the `rank` + 1 centers of k-means, relative to the mean of the rows.

    The mean of the centers, weighted by their numbers of rows, is the mean of the rows. So r + 1 centers span r
    dimensions around it. Centers may be dependent: if a few rows are far longer than all others, many centers lie among
    these. Their span is then completed by the directions of highest variance outside of it.

    Args:
        x: Rows `(n, d)`, more than `rank`, or their `Principal`.
        rank: Rank of the subspace.
        seed: Seed of the initial centers.

    >>> kmeans([[9.0, 0.1], [9.0, -0.1], [-9.0, 0.1], [-9.0, -0.1]], rank=1).basis.abs().round(decimals=6).T.tolist()
    [[1.0, 0.0]]
    """
    principal = Principal.of(x)
    principal.check_rank(rank)
    if len(principal.rows) <= rank:
        raise InputError(
            f"{rank + 1} clusters need more than {rank} rows, but {len(principal.rows)} came; pass more rows or ask "
            "for a smaller rank"
        )
    directions, points = (part.double() for part in principal.leading(rank + SPARE))
    label = k_means(points, rank + 1, seed)
    used, index = label.unique(return_inverse=True)
    sums = points.new_zeros(len(used), points.shape[1]).index_add_(0, index, points)
    centers = sums / index.bincount()[:, None]
    found = Subspace.span(torch.nn.functional.normalize(centers, dim=1))
    basis = found.basis[:, :rank]
    if found.rank < rank:
        outside = points - found.project(points) @ found.basis.T
        further, along = leading_directions(outside, rank - found.rank)
        # Where rows do not vary, only rounding is left: such directions are none.
        varies = along.square().mean(dim=0).sqrt() > torch.finfo(torch.float32).eps
        basis = torch.cat([basis, further[:, varies]], dim=1)
    # Orthonormal vectors, because nearly dependent ones might lose a dimension on their way into the wider space.
    return Subspace.span((directions @ basis).T, rank=rank)
