"""How large patches should be: small ones are noisy, and large ones bend away from a quadratic."""

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
from tangentlens.geometry.curvature.patches import CANDIDATES
from tangentlens.geometry.curvature.second_form import SecondForms, n_monomials
from tangentlens.statistics.interval import Interval

# Of sizes whose squared curvature is known to a tenth, or hardly worse than the best, the largest is taken.
_GOOD, _ALIKE = 0.1, 1.25
# The smallest patch has so many rows for each monomial; each further size has twice the rows of the one before.
ROWS_PER_MONOMIAL, _N_SIZES = 2, 6


@dataclass(frozen=True, eq=False)
class Choice:
    """Patches of the chosen size, their forms in the limit of small ones (the same if no other was tried), and why."""

    fit: PatchFit
    limit: SecondForms
    reason: str


def patch_sizes(
    rows: Float[Tensor, "n d"], anchors: Int[Tensor, "a"], dimension: int, k: int | None, radius: float | None
) -> list[int]:
    """Rows of a patch at all sizes to try: one if it is asked for."""
    least, most = ROWS_PER_MONOMIAL * n_monomials(dimension), len(rows) // CANDIDATES
    if radius is not None:
        near = torch.cdist(rows[anchors], rows) <= radius
        k = int(near.sum(dim=1).median())
    if k is None:
        sizes = [least * 2**power for power in range(_N_SIZES)]
        return [size for size in sizes if size <= most]
    if not least <= k <= most:
        what = f"k is {k}" if radius is None else f"the radius holds {k} of them on median"
        raise InputError(
            f"a patch must have between {least} rows (two for each of the {n_monomials(dimension)} monomials of a "
            f"quadratic in {dimension} coordinates) and {most} (half of all distinct ones), but {what}; pass another, "
            "another dimension, or more rows"
        )
    return [k]


def fits_of_sizes(
    rows: Float[Tensor, "n d"],
    anchors: Int[Tensor, "a"],
    sizes: Sequence[int],
    dimension: int,
    weights: Float[Tensor, "n"],
) -> list[PatchFit]:
    """Patches of each size, from the first in which enough rows count to that which reaches beyond its piece."""
    fits: list[PatchFit] = []
    refused: list[InputError] = []
    for size in sizes:
        try:
            fits.append(fit_patches(rows, anchors, size, dimension, weights).straightened())
        except InputError as error:
            refused.append(error)
            if fits:
                break
    if not fits:
        raise refused[0]
    return fits


def choose_size(tried: Sequence[PatchFit], groups: Int[Tensor, "a"]) -> Choice:
    """The largest patches whose error, over anchors and by drift with the radius, is small."""
    if len(tried) == 1:
        return Choice(tried[0], tried[0].forms, "the only size that was asked for, or that these rows allow")
    known = [mean_over_anchors(fit.forms.mean_square(), groups) for fit in tried]
    limits = [_limit(tried, place) for place in range(len(tried))]
    errors = [_error(*parts, groups) for parts in zip(tried, known, limits, strict=True)]
    least = min(errors)
    among = ", ".join(str(fit.k) for fit in tried)
    if least == math.inf:
        return Choice(tried[0], limits[0], f"the smallest patches of {among} rows, because none is resolved")

    def is_good(place: int) -> bool:
        """A small error, and nothing that smaller patches contradict."""
        much = _GOOD * known[place].value
        alike = all(
            abs(known[place].value - known[smaller].value) <= much + _reach(known[smaller]) + _reach(known[place])
            for smaller in range(place)
            if tried[smaller].resolved
        )
        return alike and errors[place] < math.inf and errors[place] <= max(_ALIKE * least, much)

    # Larger patches have better planes.
    best = max(filter(is_good, range(len(tried))), default=errors.index(least))
    reason = f"the largest patches of {among} rows that have a small error, over anchors and by drift with the radius"
    return Choice(tried[best], limits[best], reason)


def _limit(tried: Sequence[PatchFit], place: int) -> SecondForms:
    """What forms of one size and of the next come from: to first order they drift with the radius squared."""
    fit, other = tried[place], tried[place + 1 if place + 1 < len(tried) else place - 1]
    step = fit.radius**2 / ((fit.radius**2 - other.radius**2) or math.inf)
    return fit.forms.towards(other.forms, step)


def _error(fit: PatchFit, known: Interval, limit: SecondForms, groups: Int[Tensor, "a"]) -> float:
    drift = known.value - mean_over_anchors(limit.mean_square(), groups).value
    # Of one anchor nothing but the drift is known.
    reach = _reach(known) if math.isfinite(known.ci_high) else 0.0
    return math.hypot(reach, drift) if fit.resolved else math.inf


def _reach(interval: Interval) -> float:
    return interval.ci_high - interval.value
