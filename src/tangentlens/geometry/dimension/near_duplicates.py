"""Near duplicates: rows that equal another one but for rounding or noise far below the distances between the others."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tangentlens.geometry.neighbours import Neighbours, nearest

# A near duplicate is at least this many times nearer to one row than to any other one ...
_NEARER = 100.0
# ... which among as many rows of their dimension happens by chance with at most this probability.
_BY_CHANCE = 0.01


def without_near_duplicates(rows: Float[Tensor, "n d"], k: int) -> tuple[Float[Tensor, "m d"], Neighbours, int]:
    """Return the rows without near duplicates, the `k` nearest neighbours of each, and how many rows were dropped.

    Of a row and its near duplicate the first is kept. Near duplicates are found in pairs: where three rows or more are
    that near to each other, the ratio of the distances to the second and the first neighbour does not show it.

    Args:
        rows: Distinct rows `(n, d)`.
        k: Number of neighbours, at least 2; if fewer other rows are left, all of these.
    """
    neighbours = nearest(rows, k)
    earlier = neighbours.indices[:, 0] < torch.arange(len(rows), device=rows.device)
    dropped = _too_near(neighbours.distances) & earlier
    if not bool(dropped.any()):
        return rows, neighbours.cpu(), 0
    kept = rows[~dropped]
    return kept, nearest(kept, min(k, len(kept) - 1)).cpu(), len(rows) - len(kept)


def _too_near(distances: Float[Tensor, "n k"]) -> Bool[Tensor, "n"]:
    """Return which rows are nearer to their neighbour than the dimension of the rows allows.

    At dimension m, a ratio exceeds mu with probability mu^-m. The median of log mu, which is log 2 / m, hardly feels
    near duplicates. Three standard errors are taken off the m that it gives.
    """
    logs, n = (distances[:, 1] / distances[:, 0]).log(), len(distances)
    dimension = math.log(2) / logs.median() * (1 - 3 / (math.log(2) * math.sqrt(n)))
    return (logs > math.log(_NEARER)) & (dimension * logs > math.log(n / _BY_CHANCE))
