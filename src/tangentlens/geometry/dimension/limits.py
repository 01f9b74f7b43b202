"""What infinitely many rows would say: the same estimate on subsamples, extrapolated.

Faces of a set, where rows lack neighbours on one side, change an estimate from n rows by about c n^(-1/m) at dimension
m. The estimate at two sizes tells c (docs/concepts.md, 'Intrinsic dimension').
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

# Rows of a subsample on which an estimate is repeated, and how many there are if rows are few.
_SUBSAMPLE, _SUBSAMPLES = 64, 16
# Subsamples that are searched together.
_AT_ONCE = 32
# Beyond this dimension the effect of more rows is too slow to be extrapolated.
_HIGHEST = 8.0


def distances_in_parts(rows: Float[Tensor, "n d"], k: int) -> tuple[int, Float[Tensor, "m k"] | None]:
    """The size of random subsamples that all rows are cut into, and distances to the `k` nearest within each.

    With too few rows for that, the size is that of all rows, and there are no distances.
    """
    n = len(rows)
    n_parts = max(min(_SUBSAMPLES, n // (2 * k + 2)), n // max(_SUBSAMPLE, 2 * k + 2))
    if n_parts < 2:
        return n, None
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(rows.device)
    parts = order[: n // n_parts * n_parts].reshape(n_parts, -1)
    return n // n_parts, torch.cat([_nearest_within(rows[some].double(), k) for some in parts.split(_AT_ONCE)])


def _nearest_within(parts: Float[Tensor, "p s d"], k: int) -> Float[Tensor, "m k"]:
    """Distances to the `k` nearest in the same part, of all rows of all parts; small parts are faster all at once."""
    centred = parts - parts.mean(dim=1, keepdim=True)
    norms = centred.square().sum(dim=2)
    squares = torch.baddbmm(norms[:, None], centred, centred.transpose(1, 2), alpha=-2)
    squares.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    found = squares.topk(k, dim=2, largest=False).indices
    others = parts.gather(1, found.flatten(1)[:, :, None].expand(-1, -1, parts.shape[2])).unflatten(1, found.shape[1:])
    return (others - parts[:, :, None]).norm(dim=3).sort(dim=2).values.flatten(0, 1)


def interval_at_infinity(
    all_rows: float, few_rows: float, growth: float, dimension: float, reach: float, furthest: float = math.inf
) -> tuple[float, float]:
    """A 95% interval of what an estimate tends to, from its values on all and on `growth` times fewer rows.

    It holds the interval of the value itself, which reaches `reach` to each side, and that of its extrapolation:
    without faces, the latter goes too far. What it adds beyond `furthest` is no small bias any more, and is
    cut there.
    """
    if not math.isfinite(reach):
        return -math.inf, math.inf
    weight = 0.0 if growth == 1 else 1 / (growth ** (1 / min(dimension, _HIGHEST)) - 1)
    limit = all_rows + max(-furthest, min(furthest, weight * (all_rows - few_rows)))
    # Both values are over all rows, and at different scales, so they are about equally sure and nearly independent.
    further = reach * math.hypot(1 + weight, weight)
    return min(all_rows - reach, limit - further), max(all_rows + reach, limit + further)
