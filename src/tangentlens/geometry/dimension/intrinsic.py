"""Intrinsic dimension: how many coordinates the rows need locally, whatever the space around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.dimension.gride import gride
from tangentlens.geometry.dimension.levina_bickel import levina_bickel
from tangentlens.geometry.dimension.limits import distances_in_parts, interval_at_infinity
from tangentlens.geometry.dimension.twonn import twonn, twonn_censored, twonn_linear
from tangentlens.geometry.neighbours import Neighbours, check_enough, nearest, without_duplicates
from tangentlens.geometry.rows import as_rows
from tangentlens.statistics.groups import compact_groups, linked_groups
from tangentlens.statistics.jackknife import jackknife_reach

Method = Literal["twonn", "twonn-linear", "twonn-censored", "gride", "mle"]


@dataclass(frozen=True)
class _Estimator:
    """A function of the distances to the first `k` neighbours; `farther` holds the same at larger scales, by k."""

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

# Estimates at different scales that differ by more than this factor, and than three standard errors, are not one.
_STEADY = 1.2
# An extrapolation by more than this factor means that the sizes do not see one dimension.
_FURTHEST = 1.5


@dataclass(frozen=True)
class Scale:
    """The estimate at one scale: from `n` rows, up to neighbour `k`, at `distance` on average (geometric mean)."""

    n: int
    k: int
    distance: float
    value: float


@dataclass(frozen=True)
class IntrinsicDimension:
    """An estimate with its 95% interval over the rows, how many rows it stands on, and what other scales say."""

    value: float
    ci_low: float
    ci_high: float
    n_used: int
    n_duplicates: int
    method: str
    scales: tuple[Scale, ...]
    stable: bool

    def __repr__(self) -> str:
        told = "; ".join(f"{s.value:.2f} of {s.n} rows to neighbour {s.k}" for s in self.scales)
        warning = "" if self.stable else f", NOT STABLE over scales: {told}"
        return (
            f"IntrinsicDimension({self.value:.2f} [{self.ci_low:.2f}, {self.ci_high:.2f}], {self.method}, "
            f"n_used={self.n_used}, n_duplicates={self.n_duplicates}{warning})"
        )


def intrinsic_dimension(
    x: Any, method: Method = "twonn", duplicates: Literal["drop", "raise"] = "drop"
) -> IntrinsicDimension:
    """How many coordinates the rows need locally.

    Equal rows say nothing about dimension and would make it infinite or zero, so they are dropped and counted. The
    interval is that of the value which more and more rows would tend to (docs/concepts.md, 'Intrinsic dimension').

    Args:
        x: Rows `(n, d)`.
        method: `twonn` (maximum likelihood), `twonn-linear` (line through the nine smaller tenths), `twonn-censored`
            (maximum likelihood on these), `gride` (neighbours 2 and 4, and over scales up to 32), `mle`
            (Levina-Bickel, 20 neighbours).
        duplicates: `drop` them, or `raise` an error if there are any.

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
    reach, scales = _over_scales(rows, estimator)
    here = next(scale for scale in scales if (scale.n, scale.k) == (len(rows), estimator.k))
    if here.value == math.inf:
        raise InputError(
            f"neighbours must differ in distance, but those of {here.n} distinct rows do not, or hardly any do, as on "
            "a grid; a dimension needs points in general position"
        )
    values = [scale.value for scale in scales]
    stable = max(values) <= min(values) * max(_STEADY, math.exp(1.5 * reach))
    few = scales[0] if scales[0].n < here.n else here
    sizes, logs = here.n / few.n, (math.log(here.value), math.log(few.value))
    ends = interval_at_infinity(*logs, sizes, here.value, reach, furthest=math.log(_FURTHEST))
    low, high = (math.exp(end) for end in ends)
    return IntrinsicDimension(here.value, low, high, len(rows), n_duplicates, method, tuple(scales), stable)


def patch_dimension(x: Any) -> float:
    """The intrinsic dimension at the scale of patches, by GRIDE up to the 32nd neighbour.

    At that of nearest neighbours a little noise counts as dimensions, and in a plane of one dimension more than its own
    a sphere is flat.

    >>> from tangentlens.geometry import manifolds
    >>> noisy = manifolds.sphere(4000, dimension=2, dim=10, noise=0.005).rows
    >>> round(intrinsic_dimension(noisy).value), round(patch_dimension(noisy))
    (3, 2)
    """
    return intrinsic_dimension(x, method="gride").scales[-1].value


def _over_scales(rows: Float[Tensor, "n d"], estimator: _Estimator) -> tuple[float, list[Scale]]:
    """Half the 95% interval of log dimension, and the estimate at all scales: in subsamples, then from near to far."""
    n, k = len(rows), estimator.k
    found = nearest(rows, min(max([k, *estimator.farther]), n - 1))

    def scale(n: int, k: int, distances: Tensor, estimate: Callable[[Tensor], float]) -> Scale:
        return Scale(n, k, float(distances[:, k - 1].log().mean().exp()), estimate(distances[:, :k]))

    all_scales = {k: estimator.estimate, **estimator.farther}
    scales = [scale(n, far, found.distances, all_scales[far]) for far in sorted(all_scales) if far < n]
    size, few = distances_in_parts(rows, k)
    if few is not None:
        scales.insert(0, scale(size, k, few, estimator.estimate))
    return _sampling_reach(rows, found, estimator), scales


def _sampling_reach(rows: Float[Tensor, "n d"], found: Neighbours, estimator: _Estimator) -> float:
    """Half the 95% interval of log dimension; rows that share distances are left out together."""
    group = linked_groups(found.indices[:, 0]) if estimator.k == 2 else compact_groups(rows, 2 * estimator.k)
    distances = found.distances[:, : estimator.k]
    return jackknife_reach(lambda mask: math.log(estimator.estimate(distances[mask])), group)
