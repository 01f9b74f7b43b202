"""Mean cosine: do all rows point the same way, and which coordinates make them?"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.rows import as_rows


def mean_cosine(x: Any) -> float:
    """Mean cosine over all pairs of distinct rows, exactly, from the sum of the unit vectors: no pair is formed.

    >>> mean_cosine([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    0.3333333333333333
    """
    return float(rogue_dimensions(x).sum())


def rogue_dimensions(x: Any) -> Float[Tensor, "d"]:
    """What each coordinate adds to `mean_cosine`; the contributions sum to it.

    A few coordinates that add most of it are 'rogue' (Timkey and van Schijndel 2021).

    >>> rogue_dimensions([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).tolist()
    [0.3333333333333333, 0.0]
    """
    rows = as_rows(x, least=2)
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    n_zero = int((lengths == 0).sum())
    if n_zero:
        raise InputError(f"rows must not be zero to have a direction, but {n_zero} of {len(rows)} are; drop them")
    unit = rows / lengths.to(rows.dtype)
    total = unit.sum(dim=0, dtype=torch.float64)
    squares = unit.square().sum(dim=0, dtype=torch.float64)
    n = len(rows)
    return (total.square() - squares) / (n * (n - 1))
