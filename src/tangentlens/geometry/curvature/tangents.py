"""Tangent planes at given points, by local PCA."""

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.neighbours import without_duplicates
from tangentlens.geometry.rows import unit_scale

# Points whose neighbourhoods are held in memory at once.
_PART = 64


def local_tangents(
    rows: Float[Tensor, "n d"], points: Float[Tensor, "a d"], dimension: int, k: int
) -> Float[Tensor, "a d m"]:
    """Return an orthonormal basis of the leading principal directions of the `k` rows nearest to each point.

    Duplicates of a row do not help to determine a plane, so each distinct row is used once.

    Args:
        rows: Rows `(n, d)` among which neighbours are searched.
        points: Points `(a, d)` at which to estimate planes; they need not be rows.
        dimension: Dimension m of the planes.
        k: Number of neighbours of each point, more than `dimension`.

    >>> circle = torch.arange(100.0).mul(2 * torch.pi / 100)
    >>> rows = torch.stack([circle.cos(), circle.sin()], dim=1)
    >>> local_tangents(rows, rows[:1], dimension=1, k=5)[0].abs().round(decimals=3).T.tolist()
    [[0.0, 1.0]]
    """
    rows, _ = without_duplicates(rows)
    if not 1 <= dimension < k <= len(rows):
        raise InputError(
            f"tangent planes need 1 <= dimension < k <= distinct rows, but dimension {dimension}, k {k} and "
            f"{len(rows)} distinct rows came; pass more rows or ask for a smaller dimension"
        )
    # Squares of very small or large numbers would vanish or overflow.
    mean, scale = rows.mean(dim=0), unit_scale(rows)
    centred = (rows - mean) / scale
    length = centred.square().sum(dim=1)
    planes = []
    for part in points.to(rows).split(_PART):
        near = (length - 2 * ((part - mean) / scale) @ centred.T).topk(k, dim=1, largest=False).indices
        cloud = centred[near] - centred[near].mean(dim=1, keepdim=True)
        # The k x k matrix of inner products yields the same directions as the d x d covariance.
        values, vectors = torch.linalg.eigh((cloud @ cloud.transpose(1, 2)).double())
        if bool((values[:, -dimension] <= 1e-12 * values[:, -1]).any()):
            raise InputError(
                f"neighbourhoods must spread in {dimension} directions for planes of that dimension, but some do not; "
                "ask for a smaller dimension"
            )
        spread = cloud.transpose(1, 2).double() @ vectors[:, :, -dimension:]
        planes.append(torch.linalg.qr(spread).Q)
    return torch.cat(planes)
