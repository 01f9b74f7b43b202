"""The limit of an estimate for infinitely many rows, extrapolated from the same estimate on subsamples.

Near the boundary of a set, rows lack neighbours on one side. That changes an estimate from n rows by about c n^(-1/m)
at dimension m, and estimates at two sizes determine c (docs/measures/dimension.md).
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Rows in a subsample; and the number of subsamples if there are too few rows for that size.
_SUBSAMPLE, _SUBSAMPLES = 64, 16
# Subsamples that are searched together: few enough to fit into a cache.
_AT_ONCE = 4
# Squared distances above this part of the largest squared length keep at least six digits in fp64.
_CANCELLED = 1e-9
# Above this dimension an estimate changes too slowly with the number of rows to be extrapolated.
_HIGHEST = 8.0


def distances_in_parts(rows: Float[Tensor, "n d"], k: int) -> tuple[int, Float[Tensor, "m k"] | None]:
    """Split the rows at random into subsamples of one size, and return distances to neighbours within each.

    Args:
        rows: Rows `(n, d)`.
        k: Number of neighbours.

    Returns:
        The number of rows in a subsample, and the distances `(m, k)`, ascending, from all m rows of all subsamples to
        their nearest neighbours in the same one. If rows are too few to be split, their number n and None.
    """
    n = len(rows)
    n_parts = max(min(_SUBSAMPLES, n // (2 * k + 2)), n // max(_SUBSAMPLE, 2 * k + 2))
    if n_parts < 2:
        return n, None
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(rows.device)
    parts = order[: n // n_parts * n_parts].reshape(n_parts, -1)
    center = rows[parts[0]].double().mean(dim=0)
    # The difference with a centre in fp64 is in fp64.
    found = [_nearest_within(rows[some] - center, k) for some in parts.split(_AT_ONCE)]
    # Asked once, and not for every few parts: a GPU answers late.
    if bool(torch.stack([accurate for _, _, accurate in found]).all()):
        distances = [squares.sqrt() for squares, _, _ in found]
    else:
        pairs = zip(parts.split(_AT_ONCE), found, strict=True)
        distances = [_differences(rows[some].double(), nearby) for some, (_, nearby, _) in pairs]
    return n // n_parts, torch.cat(distances).flatten(0, 1)


def _nearest_within(
    parts: Float[Tensor, "p s d"], k: int
) -> tuple[Float[Tensor, "p s k"], Int[Tensor, "p s k"], Bool[Tensor, ""]]:
    """Return the `k` nearest rows of the same part for all rows, as squared distances and as indices.

    The third is whether the squares have kept enough digits, for which rows must lie around 0.
    """
    products = parts @ parts.transpose(1, 2)
    norms = products.diagonal(dim1=1, dim2=2)
    squares = norms[:, :, None] + norms[:, None] - 2 * products
    squares.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    values, nearby = squares.topk(k, dim=2, largest=False)
    return values, nearby, (values > _CANCELLED * norms.amax()).all()


def _differences(parts: Float[Tensor, "p s d"], nearby: Int[Tensor, "p s k"]) -> Float[Tensor, "p s k"]:
    """Return the distances to these rows of the same part, ascending, from differences: without cancellation."""
    indices = nearby.flatten(1)[:, :, None].expand(-1, -1, parts.shape[2])
    others = parts.gather(1, indices).unflatten(1, nearby.shape[1:])
    return (others - parts[:, :, None]).norm(dim=3).sort(dim=2).values


def interval_at_infinity(
    all_rows: float, few_rows: float, growth: float, dimension: float, reach: float, furthest: float = math.inf
) -> tuple[float, float]:
    """Return the ends of a 95% interval of the limit of an estimate for infinitely many rows.

    It contains both the interval of the estimate itself and that of its extrapolation, because the extrapolation
    overshoots for sets without a boundary.

    Args:
        all_rows: The estimate from all rows.
        few_rows: The estimate from `growth` times fewer rows.
        growth: How many times more rows there are than in a subsample.
        dimension: The intrinsic dimension, which sets the rate of convergence.
        reach: Half the length of the 95% interval of the estimate itself.
        furthest: The extrapolation changes the estimate by at most this much: a larger change is not a small bias.
    """
    if not math.isfinite(reach):
        return -math.inf, math.inf
    weight = 0.0 if growth == 1 else 1 / (growth ** (1 / min(dimension, _HIGHEST)) - 1)
    limit = all_rows + max(-furthest, min(furthest, weight * (all_rows - few_rows)))
    # Both values are over all rows, but at different scales: their errors are about equal and nearly independent.
    further = reach * math.hypot(1 + weight, weight)
    return min(all_rows - reach, limit - further), max(all_rows + reach, limit + further)
