"""The choice of the patch size: small patches are noisy, and large ones are not well approximated by a quadratic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.curvature.anchors import mean_over_anchors
from tangentlens.geometry.curvature.patch_fit import PatchFit, fit_patches
from tangentlens.geometry.curvature.patches import CANDIDATES, candidates
from tangentlens.geometry.curvature.second_form import SecondForms, n_monomials
from tangentlens.statistics.interval import Interval

# The largest size is chosen whose squared curvature is known to within a tenth, or with at most this many times the
# error of the best size.
_GOOD, _ALIKE = 0.1, 1.25
# The rows per monomial of the smallest patch, and the number of sizes; each has twice the rows of the one before.
ROWS_PER_MONOMIAL, _N_SIZES = 2, 6


@dataclass(frozen=True, eq=False)
class Choice:
    """The patches of the chosen size.

    Attributes:
        fit: The patches.
        limit: Their forms extrapolated to radius 0; those of `fit` if no other size was tried.
        reason: Why this size was chosen, in words.
    """

    fit: PatchFit
    limit: SecondForms
    reason: str


def patch_sizes(
    rows: Float[Tensor, "n d"], anchors: Int[Tensor, "a"], dimension: int, k: int | None, radius: float | None
) -> list[int]:
    """Return the numbers of rows of the patches to try, ascending; a single one if `k` or `radius` is given.

    Args:
        rows: Rows `(n, d)`.
        anchors: The indices `(a,)` of the anchors among the rows.
        dimension: Dimension m of the tangent planes.
        k: The number of rows in a patch, if it is given.
        radius: The distance from an anchor within which the patch shall lie, if it is given.
    """
    least, most = ROWS_PER_MONOMIAL * n_monomials(dimension), len(rows) // CANDIDATES
    if radius is not None:
        near = torch.cdist(rows[anchors], rows) <= radius
        k = int(near.sum(dim=1).median())
    if k is None:
        sizes = [least * 2**power for power in range(_N_SIZES)]
        return [size for size in sizes if size <= most]
    if not least <= k <= most:
        what = f"k is {k}" if radius is None else f"the radius contains {k} of them in the median"
        raise InputError(
            f"a patch must have between {least} rows (two for each of the {n_monomials(dimension)} monomials of a "
            f"quadratic in {dimension} coordinates) and {most} (half of all distinct ones), but {what}; pass another "
            "size, another dimension, or more rows"
        )
    return [k]


def fits_of_sizes(
    rows: Float[Tensor, "n d"],
    anchors: Int[Tensor, "a"],
    sizes: Sequence[int],
    dimension: int,
    weights: Float[Tensor, "n"],
) -> list[PatchFit]:
    """Return the patches of each size that can be fitted.

    Sizes are tried in ascending order. Those that fail before the first success are skipped: too few of their rows have
    weight. The first failure after that ends the search: such patches reach beyond one piece of the manifold.

    Args:
        rows: Rows `(n, d)`, centred.
        anchors: The indices `(a,)` of the anchors among the rows.
        sizes: Numbers of rows in a patch, ascending.
        dimension: Dimension m of the tangent planes.
        weights: The weight of each row `(n,)`.
    """
    fits: list[PatchFit] = []
    refused: list[InputError] = []
    near = candidates(rows, anchors, max(sizes))
    for size in sizes:
        try:
            fits.append(fit_patches(rows, near, size, dimension, weights).straightened())
        except InputError as error:
            refused.append(error)
            if fits:
                break
    if not fits:
        raise refused[0]
    return fits


def choose_size(tried: Sequence[PatchFit], groups: Int[Tensor, "a"]) -> Choice:
    """Return the largest patches whose error, over anchors and by drift with the radius, is small.

    Args:
        tried: The patches of each size, ascending.
        groups: The group of each anchor; anchors near each other share a group.
    """
    if len(tried) == 1:
        return Choice(tried[0], tried[0].forms, "the only size that was asked for, or that these rows allow")
    squares = [mean_over_anchors(fit.forms.mean_square(), groups) for fit in tried]
    limits = [_limit(tried, place) for place in range(len(tried))]
    errors = [_error(*parts, groups) for parts in zip(tried, squares, limits, strict=True)]
    least = min(errors)
    sizes = ", ".join(str(fit.k) for fit in tried)
    if least == math.inf:
        return Choice(tried[0], limits[0], f"the smallest patches of {sizes} rows, because none is resolved")

    def is_good(place: int) -> bool:
        """Return whether the error is small and the curvature agrees with that of all smaller patches."""
        here = squares[place]
        tolerance = _GOOD * here.value
        agrees = all(
            abs(here.value - squares[smaller].value) <= tolerance + _reach(squares[smaller]) + _reach(here)
            for smaller in range(place)
            if tried[smaller].resolved
        )
        return agrees and errors[place] < math.inf and errors[place] <= max(_ALIKE * least, tolerance)

    # The largest size, because larger patches determine their planes better.
    best = max(filter(is_good, range(len(tried))), default=errors.index(least))
    reason = f"the largest patches of {sizes} rows that have a small error, over anchors and by drift with the radius"
    return Choice(tried[best], limits[best], reason)


def _limit(tried: Sequence[PatchFit], place: int) -> SecondForms:
    """Return the forms of one size extrapolated to radius 0; to first order they drift with the radius squared."""
    fit, other = tried[place], tried[place + 1 if place + 1 < len(tried) else place - 1]
    step = fit.radius**2 / ((fit.radius**2 - other.radius**2) or math.inf)
    return fit.forms.towards(other.forms, step)


def _error(fit: PatchFit, square: Interval, limit: SecondForms, groups: Int[Tensor, "a"]) -> float:
    """Return the error of a squared curvature, by its interval and its drift; it is infinite if not resolved."""
    drift = square.value - mean_over_anchors(limit.mean_square(), groups).value
    # With a single anchor there is no interval, only the drift.
    reach = _reach(square) if math.isfinite(square.ci_high) else 0.0
    return math.hypot(reach, drift) if fit.resolved else math.inf


def _reach(interval: Interval) -> float:
    """Return half the length of a symmetric interval."""
    return interval.ci_high - interval.value
