"""Intrinsic dimension: how many coordinates the rows need locally, whatever the dimension of the ambient space."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.dimension.doubts import doubts, misfit
from tangentlens.geometry.dimension.gride import gride
from tangentlens.geometry.dimension.levina_bickel import levina_bickel
from tangentlens.geometry.dimension.limits import distances_in_parts, interval_at_infinity
from tangentlens.geometry.dimension.near_duplicates import without_near_duplicates
from tangentlens.geometry.dimension.twonn import twonn, twonn_censored, twonn_linear
from tangentlens.geometry.neighbours import Neighbours, check_enough, without_duplicates
from tangentlens.geometry.rows import as_rows
from tangentlens.statistics.groups import compact_groups, linked_groups
from tangentlens.statistics.jackknife import jackknife_reach

Method = Literal["twonn", "twonn-linear", "twonn-censored", "gride", "mle"]


@dataclass(frozen=True)
class _Estimator:
    """An estimator of the dimension: a function of the distances to neighbours.

    Attributes:
        k: How many neighbours it needs.
        estimate: Takes distances `(n, k)` and returns the dimension.
        farther: The same estimator at other scales, by the number of neighbours that it needs there.
    """

    k: int
    estimate: Callable[[Tensor], float]
    farther: Mapping[int, Callable[[Tensor], float]]


_ESTIMATORS = {
    "twonn": _Estimator(2, twonn, {}),
    "twonn-linear": _Estimator(2, twonn_linear, {}),
    "twonn-censored": _Estimator(2, twonn_censored, {}),
    "gride": _Estimator(4, partial(gride, inner=2), {2 * n: partial(gride, inner=n) for n in (1, 2, 4, 8, 16)}),
    "mle": _Estimator(20, levina_bickel, {}),
}

# Estimates at different scales are stable if they differ by at most this factor, or by at most three standard errors of
# a difference.
_STEADY = 1.25
# An extrapolation by more than this factor is cut: subsamples then do not see the same dimension as all rows.
_FURTHEST = 1.5


@dataclass(frozen=True)
class Scale:
    """The estimate at one scale.

    Attributes:
        n: Number of rows among which neighbours were searched.
        k: The farthest neighbour that was used.
        distance: Geometric mean of the distances to that neighbour.
        value: The dimension at this scale.
    """

    n: int
    k: int
    distance: float
    value: float


@dataclass(frozen=True)
class IntrinsicDimension:
    """An intrinsic dimension with its 95% interval over rows, and the estimates at other scales.

    Attributes:
        value: The dimension.
        ci_low: The lower end of the interval.
        ci_high: The upper end of the interval.
        n_used: Number of distinct rows.
        n_duplicates: Number of rows that repeat another one and were dropped.
        method: The name of the estimator.
        scales: The estimates at all scales: from subsamples, then from near to far neighbours of all rows.
        stable: Whether these estimates agree.
        misfit: How far the ratios of distances are from the law that the estimate assumes, between 0 and 1.
        trouble: Why the value is not to be trusted: other scales, a misfit, or the rounding of the rows; else empty.
        n_near_duplicates: Number of rows that are nearly equal to another one and were dropped.
        ci_over: The source of variation that the interval covers.
    """

    value: float
    ci_low: float
    ci_high: float
    n_used: int
    n_duplicates: int
    method: str
    scales: tuple[Scale, ...]
    stable: bool
    misfit: float
    trouble: str
    n_near_duplicates: int = 0
    ci_over: str = "rows"

    def __repr__(self) -> str:
        return (
            f"IntrinsicDimension({self.value:.2f} [{self.ci_low:.2f}, {self.ci_high:.2f}], {self.method}, "
            f"n_used={self.n_used}, {told(self.n_duplicates, self.n_near_duplicates, self.trouble)})"
        )


def told(n_duplicates: int, n_near_duplicates: int, trouble: str) -> str:
    """Return the end of an estimate's `repr`: which rows were dropped, and why it is not to be trusted."""
    near = f", n_near_duplicates={n_near_duplicates}" if n_near_duplicates else ""
    warning = f", NOT TO BE TRUSTED: {trouble}" if trouble else ""
    return f"n_duplicates={n_duplicates}{near}{warning}"


def intrinsic_dimension(
    x: Any, method: Method = "twonn", duplicates: Literal["drop", "raise"] = "drop"
) -> IntrinsicDimension:
    """Return the intrinsic dimension of the rows: how many coordinates they need locally.

    Distances of 0 would make the estimate meaningless, so duplicate rows are dropped and counted; so are near
    duplicates, which are over 100 times nearer to one row than to any other, and nearer than chance allows. The
    interval is that of the limit for infinitely many rows (docs/measures/dimension.md).

    Args:
        x: Rows `(n, d)`.
        method: `twonn` (maximum likelihood), `twonn-linear` (linear fit without the largest tenth of the ratios),
            `twonn-censored` (maximum likelihood with that tenth censored), `gride` (neighbours 2 and 4, and scales up
            to neighbour 32), `mle` (Levina and Bickel, 20 neighbours).
        duplicates: Whether to `drop` duplicate rows, or to `raise` an error if there are any.

    >>> import torch
    >>> square = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> intrinsic_dimension(square)
    IntrinsicDimension(1.90 [1.77, 2.03], twonn, n_used=2000, n_duplicates=0)
    """
    if method not in _ESTIMATORS:
        raise InputError(f"method must be one of {', '.join(_ESTIMATORS)}, but is {method!r}")
    if duplicates not in ("drop", "raise"):
        raise InputError(f"duplicates must be 'drop' or 'raise', but is {duplicates!r}")
    rows, n_duplicates = without_duplicates(as_rows(x))
    if n_duplicates and duplicates == "raise":
        n = len(rows) + n_duplicates
        raise InputError(f"rows must be distinct, but {n_duplicates} of {n} repeat; duplicates='drop' drops them")
    estimator = _ESTIMATORS[method]
    check_enough(f"method {method!r}", estimator.k + 1, len(rows), n_duplicates)
    farthest = min(max([estimator.k, *estimator.farther]), len(rows) - 1)
    rows, neighbours, n_near_duplicates = without_near_duplicates(rows, farthest)
    check_enough(f"method {method!r}", estimator.k + 1, len(rows), n_duplicates + n_near_duplicates)
    reach, scales = _over_scales(rows, neighbours, estimator)
    here = next(scale for scale in scales if (scale.n, scale.k) == (len(rows), estimator.k))
    if here.value == math.inf:
        raise InputError(
            f"neighbours must differ in distance, but those of {here.n} distinct rows do not, or hardly any do, as on "
            "a grid; a dimension needs points in general position"
        )
    values = [scale.value for scale in scales]
    stable = max(values) <= min(values) * max(_STEADY, math.exp(1.5 * math.sqrt(2) * reach))
    distances = neighbours.distances[:, : estimator.k]
    off = misfit(distances, here.value)
    trouble = "; ".join([*([] if stable else [_unstable(scales)]), *doubts(rows, distances, off)])
    few = scales[0] if scales[0].n < here.n else here
    sizes, logs = here.n / few.n, (math.log(here.value), math.log(few.value))
    ends = interval_at_infinity(*logs, sizes, here.value, reach, furthest=math.log(_FURTHEST))
    low, high = (math.exp(end) for end in ends)
    return IntrinsicDimension(
        value=here.value,
        ci_low=low,
        ci_high=high,
        n_used=len(rows),
        n_duplicates=n_duplicates,
        method=method,
        scales=tuple(scales),
        stable=stable,
        misfit=off,
        trouble=trouble,
        n_near_duplicates=n_near_duplicates,
    )


def _unstable(scales: Sequence[Scale]) -> str:
    values = ", ".join(f"{scale.value:.2f} of {scale.n} rows to neighbour {scale.k}" for scale in scales)
    return f"not stable over scales ({values})"


def patch_dimension(x: Any) -> float:
    """Return the intrinsic dimension at the scale of patches, by GRIDE with the farthest neighbours, up to 32.

    At the scale of the nearest neighbours a little noise adds dimensions. Tangent planes with one dimension too many
    hide curvature: in such a plane a sphere is flat.

    Args:
        x: Rows `(n, d)`.

    >>> from tangentlens.geometry import manifolds
    >>> noisy = manifolds.sphere(4000, dimension=2, dim=10, noise=0.005).rows
    >>> round(intrinsic_dimension(noisy).value), round(patch_dimension(noisy))
    (3, 2)
    """
    return intrinsic_dimension(x, method="gride").scales[-1].value


def _over_scales(
    rows: Float[Tensor, "n d"], neighbours: Neighbours, estimator: _Estimator
) -> tuple[float, list[Scale]]:
    """Return half the 95% interval of log dimension, and the estimates in subsamples, then from near to far."""
    n, k = len(rows), estimator.k

    def scale(n: int, k: int, distances: Tensor, estimate: Callable[[Tensor], float]) -> Scale:
        """Return the estimate from the first `k` columns of distances among `n` rows."""
        return Scale(n, k, float(distances[:, k - 1].log().mean().exp()), estimate(distances[:, :k]))

    all_scales = {k: estimator.estimate, **estimator.farther}
    scales = [scale(n, far, neighbours.distances, all_scales[far]) for far in sorted(all_scales) if far < n]
    size, few = distances_in_parts(rows, k)
    if few is not None:
        scales.insert(0, scale(size, k, few, estimator.estimate))
    return _sampling_reach(rows, neighbours, estimator), scales


def _sampling_reach(rows: Float[Tensor, "n d"], neighbours: Neighbours, estimator: _Estimator) -> float:
    """Return half the 95% jackknife interval of log dimension; rows that share distances are left out together."""
    group = linked_groups(neighbours.indices[:, 0]) if estimator.k == 2 else compact_groups(rows, 2 * estimator.k).cpu()
    distances = neighbours.distances[:, : estimator.k]
    return jackknife_reach(lambda mask: math.log(estimator.estimate(distances[mask])), group)
