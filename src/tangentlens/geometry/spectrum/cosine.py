"""Mean cosine: whether all rows point the same way, and which coordinates cause that."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.rows import as_rows

# Rows that are looked at together: few enough to fit into a cache.
_PART = 1024


def mean_cosine(x: Any) -> float:
    """Return the mean cosine over all pairs of different rows.

    It is 1 if all rows point in one direction, about 0 if directions are isotropic, and at least -1 / (n - 1). It is
    computed exactly from the sum of the unit vectors, without forming pairs.

    Args:
        x: Rows `(n, d)`, at least two, none of them zero.

    >>> mean_cosine([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    0.3333333333333333
    """
    return float(rogue_dimensions(x).sum())


def rogue_dimensions(x: Any) -> Float[Tensor, "d"]:
    """Return the contribution of each coordinate to `mean_cosine`; the contributions sum to it.

    A few coordinates that contribute most of it are called rogue dimensions (Timkey and van Schijndel 2021).

    Args:
        x: Rows `(n, d)`, at least two, none of them zero.

    >>> rogue_dimensions([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).tolist()
    [0.3333333333333333, 0.0]
    """
    rows = as_rows(x, least=2)
    return contributions(sums_of_directions(rows), len(rows))


def contributions(sums: Float[Tensor, "2 d"], n: int) -> Float[Tensor, "d"]:
    """Return the contribution of each coordinate to the mean cosine of `n` rows, given their `sums_of_directions`."""
    return (sums[0].square() - sums[1]) / (n * (n - 1))


def sums_of_directions(rows: Float[Tensor, "n d"]) -> Float[Tensor, "2 d"]:
    """Return the sum of the unit vectors along the rows, none of which is zero, and that of their squares, in fp64."""
    total, squares = torch.zeros(2, rows.shape[1], dtype=torch.float64, device=rows.device)
    n_zero = torch.zeros((), dtype=torch.int64, device=rows.device)
    for part in rows.split(_PART):
        lengths = torch.linalg.vector_norm(part, dim=1, keepdim=True, dtype=torch.float64)
        n_zero += (lengths == 0).sum()
        unit = part / lengths.to(part.dtype)
        total += unit.sum(dim=0, dtype=torch.float64)
        squares += unit.square().sum(dim=0, dtype=torch.float64)
    if int(n_zero):
        raise InputError(f"rows must not be zero to have a direction, but {n_zero} of {len(rows)} are; drop them")
    return torch.stack([total, squares])
