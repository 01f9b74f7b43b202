"""Intrinsic dimension: how many coordinates the rows need locally, whatever the dimension of the ambient space."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.dimension.doubts import doubts, misfit
from tangentlens.geometry.dimension.gride import gride
from tangentlens.geometry.dimension.levina_bickel import levina_bickel
from tangentlens.geometry.dimension.limits import interval_at_infinity
from tangentlens.geometry.dimension.neighbourhoods import Neighbourhoods
from tangentlens.geometry.dimension.twonn import log_ratios, twonn, twonn_censored, twonn_linear, twonn_of_sum
from tangentlens.lazy import cached_property
from tangentlens.notebook import as_html
from tangentlens.statistics.groups import compact_groups
from tangentlens.statistics.jackknife import jackknife_reach, jackknife_reach_of_sum

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

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the dimension, whether to trust it, and the estimates at all scales."""
        dropped = f"{self.n_duplicates} duplicates and {self.n_near_duplicates} near duplicates were dropped"
        facts = [f"Not to be trusted: {self.trouble}."] if self.trouble else []
        facts.append(f"{self.method}, {self.n_used} rows; {dropped}. 95% interval over {self.ci_over}.")
        rows = [(scale.n, scale.k, f"{scale.distance:.3g}", f"{scale.value:.2f}") for scale in self.scales]
        return as_html(
            f"Intrinsic dimension {self.value:.2f} [{self.ci_low:.2f}, {self.ci_high:.2f}]",
            facts,
            ("rows", "to neighbour", "at distance", "dimension"),
            rows,
        )

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
        x: Rows `(n, d)`, or their `Neighbourhoods`.
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
    estimator = _ESTIMATORS[method]
    around = _neighbourhoods(x, method, max([estimator.k, *estimator.farther]))
    if around.n_duplicates and duplicates == "raise":
        raise InputError(
            f"rows must be distinct, but {around.n_duplicates} of {around.n_came} repeat; duplicates='drop' drops them"
        )
    return Estimation.of(around, method).result()


@dataclass(frozen=True, eq=False)
class Estimation:
    """An intrinsic dimension, whose other scales, doubts and interval are computed when they are asked for.

    Attributes:
        around: The neighbourhoods without near duplicates.
        distances: The distances to these neighbours, on the CPU.
        method: The name of the estimator.
        value: The dimension.
        misfit: How far the ratios of distances are from the law that the estimate assumes.
    """

    around: Neighbourhoods
    distances: Float[Tensor, "n k"]
    method: Method
    value: float
    misfit: float

    @classmethod
    def of(cls, around: Neighbourhoods, method: Method = "twonn") -> Estimation:
        """Return the estimate from neighbourhoods that may hold near duplicates."""
        estimator, around = _ESTIMATORS[method], around.apart
        around.check_enough(f"method {method!r}", estimator.k + 1)
        distances = around.neighbours.distances.cpu()
        nearby = distances[:, : estimator.k]
        value = estimator.estimate(nearby)
        if value == math.inf:
            raise InputError(
                f"neighbours must differ in distance, but those of {len(nearby)} distinct rows do not, or hardly any "
                "do, as on a grid; a dimension needs points in general position"
            )
        return cls(around, distances, method, value, misfit(nearby, value))

    @cached_property
    def scales(self) -> tuple[Scale, ...]:
        """The estimates in subsamples, then from near to far neighbours of all rows."""
        estimator, n = _ESTIMATORS[self.method], len(self.distances)
        all_scales = {estimator.k: estimator.estimate, **estimator.farther}
        scales = [_scale(n, far, self.distances, all_scales[far]) for far in sorted(all_scales) if far < n]
        size, few = self.around.in_parts
        subsamples = [] if few is None else [_scale(size, estimator.k, few.cpu(), estimator.estimate)]
        return (*subsamples, *scales)

    @cached_property
    def reach(self) -> float:
        """Half the 95% jackknife interval of log dimension; rows that share distances are left out together."""
        estimator, around = _ESTIMATORS[self.method], self.around
        distances = self.distances[:, : estimator.k]
        if estimator.estimate is twonn:
            return jackknife_reach_of_sum(
                lambda total, n: _log(twonn_of_sum(total, n)), log_ratios(distances), around.groups
            )
        group = around.groups if estimator.k == 2 else compact_groups(around.rows, 2 * estimator.k).cpu()
        return jackknife_reach(lambda mask: _log(estimator.estimate(distances[mask])), group)

    @property
    def stable(self) -> bool:
        """Whether the estimates at all scales agree."""
        values = [scale.value for scale in self.scales]
        return max(values) <= min(values) * max(_STEADY, math.exp(1.5 * math.sqrt(2) * self.reach))

    @property
    def is_doubtful(self) -> bool:
        """Whether anything speaks against the estimate. Other scales are looked at last: they take the longest."""
        return any(self._doubts()) or not self.stable

    def _doubts(self) -> Iterator[str]:
        return doubts(self.around.rows, self.distances[:, : _ESTIMATORS[self.method].k], self.misfit)

    def result(self) -> IntrinsicDimension:
        """Return the estimate with everything that belongs to it."""
        n, scales = len(self.distances), self.scales
        few = scales[0].value if scales[0].n < n else self.value
        logs, growth = (math.log(self.value), math.log(few)), n / scales[0].n
        ends = interval_at_infinity(*logs, growth, self.value, self.reach, furthest=math.log(_FURTHEST))
        low, high = (math.exp(end) for end in ends)
        return IntrinsicDimension(
            value=self.value,
            ci_low=low,
            ci_high=high,
            n_used=n,
            n_duplicates=self.around.n_duplicates,
            method=self.method,
            scales=scales,
            stable=self.stable,
            misfit=self.misfit,
            trouble="; ".join([*([] if self.stable else [_unstable(scales)]), *self._doubts()]),
            n_near_duplicates=self.around.n_near_duplicates,
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


def _neighbourhoods(x: Any, method: str, k: int) -> Neighbourhoods:
    """Return the neighbourhoods with at least `k` neighbours, or with all others if these are fewer."""
    if not isinstance(x, Neighbourhoods):
        return Neighbourhoods.of(x, k)
    known = x.neighbours.indices.shape[1]
    if known < min(k, len(x.rows) - 1):
        raise InputError(f"method {method!r} needs {k} neighbours of each row, but {known} are known; pass the rows")
    return x


def _scale(n: int, k: int, distances: Float[Tensor, "m n_known"], estimate: Callable[[Tensor], float]) -> Scale:
    """Return the estimate from the first `k` columns of distances among `n` rows."""
    return Scale(n, k, float(distances[:, k - 1].log().mean().exp()), estimate(distances[:, :k]))


def _log(value: float) -> float:
    """Return the logarithm; it is infinite where there is none, which leaves an estimate without an interval."""
    return math.log(value) if value > 0 else -math.inf
