"""Local geometry: tangent planes, curvature, and visible curvature around anchors among the rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError, check_whole
from tangentlens.geometry.curvature.anchors import ANCHORS, mean_over_anchors, ratio_over_anchors
from tangentlens.geometry.curvature.patch_fit import PatchFit, half_forms, refitted
from tangentlens.geometry.curvature.patch_sizes import (
    ROWS_PER_MONOMIAL,
    Choice,
    choose_size,
    fits_of_sizes,
    patch_sizes,
)
from tangentlens.geometry.curvature.patches import CANDIDATES, without_anchor
from tangentlens.geometry.curvature.second_form import SecondForms, n_monomials
from tangentlens.geometry.dimension.intrinsic import patch_dimension
from tangentlens.geometry.neighbours import equal_rows
from tangentlens.geometry.rows import as_numbers, as_rows, unit_scale
from tangentlens.geometry.subspace import Subspace
from tangentlens.lazy import cached_property
from tangentlens.statistics.groups import compact_groups
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import jackknife_over

# The ratio to a number that may be 0.
_UNKNOWN = Interval(math.nan, 0.0, math.inf, ci_over=ANCHORS)


@dataclass(frozen=True)
class Scale:
    """The curvature by patches of one size.

    Attributes:
        k: Number of rows in a patch.
        radius: Median radius of the patches, in their tangent planes.
        gap: Median ratio of the smallest variance in a plane to the largest outside; noise decides if below `RESOLVED`.
        rms_curvature: Root mean square of |II(v, v)| over unit tangents v and anchors.
    """

    k: int
    radius: float
    gap: float
    rms_curvature: Interval

    @classmethod
    def of(cls, fit: PatchFit, groups: Int[Tensor, "a"], scale: float) -> Scale:
        """Return the curvature of patches of rows that were divided by `scale`, in the units of the original rows."""
        squares = mean_over_anchors(fit.forms.mean_square(), groups)
        curvature = squares.root(fit.rounding).times(1 / scale)
        return cls(fit.k, fit.radius * scale, float(fit.gap.median()), curvature)


@dataclass(frozen=True, eq=False)
class LocalGeometry:
    """Tangent planes and curvature around anchors, with intervals over anchors (docs/measures/curvature.md).

    Intervals of curvatures also contain the limit of small patches, if patches of more than one size were tried.

    Attributes:
        scales: The curvature by patches of each size that was tried.
        anchors: The indices `(a,)` of the anchors among the given rows.
        neighbours: The indices `(a, k)` of the rows in each patch, from near to far; the anchor itself is the first.
        n_duplicates: Number of rows that repeat another one and were dropped; their weights were added to its weight.
        rows: The distinct rows, centred and at unit scale.
        choice: The patches of the chosen size.
        groups: The group of each anchor; anchors near each other share a group, and are left out together.
        scale: The length in the given rows of 1 at unit scale.
    """

    scales: tuple[Scale, ...]
    anchors: Int[Tensor, "a"]
    neighbours: Int[Tensor, "a k"]
    n_duplicates: int
    rows: Float[Tensor, "n d"]
    choice: Choice
    groups: Int[Tensor, "a"]
    scale: float

    def __repr__(self) -> str:
        return (
            f"LocalGeometry(rms_curvature {self.rms_curvature}, visible_curvature {self.visible_curvature}, dimension "
            f"{self.dimension}, {len(self.anchors)} anchors, k={self.k}, radius {self.radius:.3g}: {self.reason}"
            + ("" if self.resolved else "; NOT RESOLVED: tangent planes do not stand out from noise")
            + ")"
        )

    @property
    def dimension(self) -> int:
        """The dimension m of the tangent planes."""
        return self.choice.fit.forms.dimension

    @property
    def k(self) -> int:
        """The number of rows in a patch."""
        return self.choice.fit.k

    @property
    def radius(self) -> float:
        """The median over anchors of the radius of a patch, in its tangent plane."""
        return self.choice.fit.radius * self.scale

    @property
    def reason(self) -> str:
        """Why patches of this size were chosen, in words."""
        return self.choice.reason

    @property
    def resolved(self) -> bool:
        """Whether tangent planes are well determined; if not, noise or further dimensions decide which these are."""
        return self.choice.fit.resolved

    @property
    def coordinates(self) -> Float[Tensor, "a k m"]:
        """The rows of each patch relative to the anchor, in the basis of the tangent plane."""
        return self.choice.fit.coordinates * self.scale

    @property
    def bends(self) -> Float[Tensor, "a k"]:
        """|II(u, u) / 2|^2 at the coordinates u of each row: the squared height of the surface above the plane."""
        return self._bends[0] * self.scale**2

    @property
    def tangents(self) -> Float[Tensor, "a d m"]:
        """An orthonormal basis of the tangent plane at each anchor."""
        return self.choice.fit.forms.tangents

    @property
    def noise(self) -> float:
        """The standard deviation of the rows around the fitted quadratic, in each normal direction."""
        variance = max(float(self.choice.fit.forms.noise.mean()), 0.0) / (self.tangents.shape[1] - self.dimension)
        return math.sqrt(variance) * self.scale

    @cached_property
    def rms_curvature(self) -> Interval:
        """The root mean square of |II(v, v)| over unit tangents v and anchors; 1/R on a sphere of radius R."""
        return self._length(forms.mean_square() for forms in self._forms)

    @cached_property
    def mean_curvature(self) -> Interval:
        """The root mean square over anchors of the length of the mean curvature vector, tr II / m."""
        return self._length(forms.mean_curvature_square() for forms in self._forms)

    @cached_property
    def principal_curvatures(self) -> tuple[Interval, ...]:
        """The square roots of the eigenvalues of the sum of squared shape operators, the largest first.

        Noise biases the largest upward and the smallest downward. Along axes from the other half of a patch's rows the
        bias is reversed; intervals contain both. If patches are too small to be halved, each contains all curvatures.
        """
        seen, halves = self.choice.fit.forms.principal_squares(), half_forms(self.rows, self.choice.fit)
        if halves is None:
            return tuple(self._length([square, *seen.T]) for square in seen.T)
        one, other = halves
        apart = (one.principal_squares(of=other) + other.principal_squares(of=one)) / 2
        lengths = [self._length([*squares, self._drift * squares[0]]) for squares in zip(apart.T, seen.T, strict=True)]
        return tuple(sorted(lengths, key=lambda length: -length.value))

    @cached_property
    def visible_curvature(self) -> Interval:
        """The weighted mean of |II(u, u) / 2|^2 divided by that of |u|^2, over coordinates u relative to the anchor."""
        return self.visible(self.choice.fit.weights)

    @cached_property
    def normal_share(self) -> Interval:
        """The share (0 to 1) of the weighted variance of the patches that lies outside of their tangent planes."""
        return ratio_over_anchors(self.choice.fit.outside, self.choice.fit.whole, self.groups)

    def visible(self, weights: Any) -> Interval:
        """Return the visible curvature of the same geometry with other `weights` `(a, k)` of the rows of each patch."""
        weights = self._checked(weights)
        spread = (weights * self._distances).sum(dim=1)
        seen, limit = (ratio_over_anchors((weights * bends).sum(dim=1), spread, self.groups) for bends in self._bends)
        return seen.holding(limit)

    def visible_ratio(self, weights: Any) -> Interval:
        """Return the visible curvature with `weights` `(a, k)` over that with equal ones; NaN if that may be 0."""
        weights, bends = self._checked(weights), self._bends[0]
        bent, spread = (weights * bends).sum(dim=1), (weights * self._distances).sum(dim=1)
        bent_even, spread_even = bends.sum(dim=1), self._distances.sum(dim=1)

        def ratio(mask: Tensor) -> float:
            above, below = bent[mask].sum() / spread[mask].sum(), bent_even[mask].sum() / spread_even[mask].sum()
            return float(above / below)

        if ratio_over_anchors(bent_even, spread_even, self.groups).ci_low <= 0:
            return _UNKNOWN
        return jackknife_over(ratio, self.groups, ANCHORS)

    def refitted(self, weights: Any) -> Interval:
        """Return the root mean square curvature of forms that are fitted with other `weights` `(a, k)` of the rows."""
        squares = refitted(self.rows, self.choice.fit, self._checked(weights)).mean_square()
        return self._length([squares, self._drift * squares])

    def normal_space(self, anchor: int) -> Subspace:
        """Return the orthogonal complement of the tangent plane at the anchor with this number, from 0 on."""
        if not 0 <= anchor < len(self.anchors):
            raise InputError(f"anchor must be a number from 0 to {len(self.anchors) - 1}, but is {anchor}")
        return Subspace(self.tangents[anchor].double()).complement()

    def mean(self, values: Float[Tensor, "a"]) -> Interval:
        """Return the mean over anchors of one number per anchor, `(a,)`, with its interval."""
        return mean_over_anchors(values.to(self.groups.device), self.groups)

    def along(self, directions: Subspace) -> Interval:
        """Return the root mean square curvature along the projections of `directions` onto the tangent planes."""
        return self._length(_squares_along(forms, directions) for forms in self._forms)

    def along_ratio(self, one: Subspace, other: Subspace) -> Interval:
        """Return the curvature along the directions `one` divided by that along `other`; NaN if the latter may be 0."""
        above, below = (_squares_along(self.choice.fit.forms, directions) for directions in (one, other))
        if mean_over_anchors(below, self.groups).ci_low <= 0:
            return _UNKNOWN
        return ratio_over_anchors(above, below, self.groups).root()

    def _length(self, squares: Iterable[Float[Tensor, "a"]]) -> Interval:
        """Return the root of the mean over anchors of the first squares, with an interval that contains all of them."""
        lengths = [mean_over_anchors(square, self.groups) for square in squares]
        return reduce(Interval.holding, lengths).root(self.choice.fit.rounding).times(1 / self.scale)

    def _checked(self, weights: Any) -> Float[Tensor, "a k"]:
        """Return weights of the rows of patches at unit scale, with 0 for anchors."""
        weights = as_numbers("weights", weights)
        shape = self.neighbours.shape
        if (
            weights.shape != shape
            or not bool((weights.isfinite() & (weights >= 0)).all())
            or not bool(weights[:, 1:].any())
        ):
            raise InputError(
                f"weights must be finite, at least 0, and not all 0 beside the anchors, for each of {tuple(shape)} "
                f"rows of patches, but have shape {tuple(weights.shape)}"
                + (" and other values" if weights.shape == shape else "")
            )
        # Sums of very large weights would overflow.
        return without_anchor((weights / weights[:, 1:].max()).to(self._distances))

    @property
    def _forms(self) -> tuple[SecondForms, SecondForms]:
        """The forms of patches of the chosen size, and their limit at radius 0."""
        return self.choice.fit.forms, self.choice.limit

    @property
    def _drift(self) -> float:
        """The squared curvature in the limit of small patches divided by that at the chosen size."""
        here, limit = (float(forms.mean_square().mean()) for forms in self._forms)
        return limit / here if here > 0 else 1.0

    @cached_property
    def _bends(self) -> list[Float[Tensor, "a k"]]:
        """|II(u, u) / 2|^2 at each row of each patch, by each of `_forms`."""
        return [forms.bends(self.choice.fit.coordinates) for forms in self._forms]

    @cached_property
    def _distances(self) -> Float[Tensor, "a k"]:
        """The squared distance of each row of a patch from the anchor, in the tangent plane."""
        return self.choice.fit.coordinates.double().square().sum(dim=2)


def _squares_along(forms: SecondForms, directions: Subspace) -> Float[Tensor, "a"]:
    """Return the mean squared curvature at each anchor along the projections of directions onto its tangent plane."""
    if directions.dim != forms.tangents.shape[1]:
        raise InputError(
            f"directions must lie in R^{forms.tangents.shape[1]}, the space of the rows, but lie in R^{directions.dim}"
        )
    inside = torch.einsum("ndm,dr->nmr", forms.tangents.double(), directions.basis.to(forms.tangents).double())
    return forms.mean_square(inside @ inside.transpose(1, 2))


def local_geometry(
    x: Any,
    n_anchors: int = 256,
    k: int | None = None,
    radius: float | None = None,
    dimension: int | None = None,
    weights: Any = None,
    anchors: Any = None,
    seed: int = 0,
) -> LocalGeometry:
    """Return tangent planes and curvature around anchors that are drawn among the rows.

    Tangent planes come from local PCA, and second fundamental forms from a quadratic regression, corrected for the bias
    that noise adds. Small patches are noisy, and large ones are not quadratic. So unless `k` or `radius` is given,
    several sizes are tried. The largest is chosen whose error over anchors and drift with the radius are small.

    Args:
        x: Rows `(n, d)`.
        n_anchors: Number of anchors; all distinct rows if there are fewer.
        k: Number of rows in a patch. With a single size the drift is unknown, and intervals are over anchors alone.
        radius: In place of `k`: the median number of rows within this distance of an anchor. It is a distance in the
            ambient space; the radius of the patches is measured in their planes, and shorter where there is noise.
        dimension: Dimension m of the tangent planes; `patch_dimension` by default.
        weights: The weight of each row `(n,)`, such as its frequency; equal by default. Weights count in forms and in
            visible curvature, but neither in planes nor in the choice of a patch's rows.
        anchors: The indices of the anchors, in place of a draw; they are sorted, and each is used once.
        seed: Seed of the draw of anchors.

    >>> from tangentlens.geometry import manifolds
    >>> ball = manifolds.sphere(4000, dimension=2, dim=10, radius=2.0, noise=0.01)
    >>> curvature = local_geometry(ball.rows, n_anchors=64).rms_curvature
    >>> curvature.ci_low < 0.5 < curvature.ci_high
    True
    """
    _check_settings(n_anchors, k, radius, dimension, seed)
    given = as_rows(x)
    kept, place, weight = _distinct(given, weights)
    # Squares of very small or large numbers would vanish or overflow, so rows are scaled before and after centring.
    first = unit_scale(given)
    rows = given[kept] / first
    rows = rows - rows.mean(dim=0)
    second = unit_scale(rows)
    rows, scale = rows / second, first * second
    m = _checked_dimension(rows, dimension, len(given) - len(kept))
    around = _anchors(place, n_anchors, anchors, seed)
    groups = compact_groups(rows[around], max(len(around) // 32, 2) if len(around) >= 8 else 1)
    sizes = patch_sizes(rows, around, m, k, None if radius is None else radius / scale)
    tried = fits_of_sizes(rows, around, sizes, m, weight)
    choice = choose_size(tried, groups)
    return LocalGeometry(
        scales=tuple(Scale.of(fit, groups, scale) for fit in tried),
        anchors=kept[around],
        neighbours=kept[choice.fit.neighbours],
        n_duplicates=len(given) - len(kept),
        rows=rows,
        choice=choice,
        groups=groups,
        scale=scale,
    )


def _check_settings(n_anchors: Any, k: Any, radius: Any, dimension: Any, seed: Any) -> None:
    """Raise an error if a setting of `local_geometry` cannot be used."""
    if k is not None and radius is not None:
        raise InputError("k or radius must be given, not both; leave one out")
    check_whole(1, n_anchors=n_anchors)
    check_whole(1, **{name: value for name, value in (("k", k), ("dimension", dimension)) if value is not None})
    check_whole(0, seed=seed)
    if radius is not None and not (isinstance(radius, Real) and 0 < float(radius) < math.inf):
        raise InputError(f"radius must be a number above 0, but is {radius!r}")


def _anchors(place: Int[Tensor, "n"], n_anchors: int, anchors: Any, seed: int) -> Int[Tensor, "a"]:
    """Return the positions among the distinct rows of the anchors that are given, or else drawn."""
    if anchors is None:
        n = int(place.max()) + 1
        return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:n_anchors].sort().values.to(place)
    asked = as_numbers("anchors", anchors)
    if (
        asked.dtype == torch.bool
        or asked.ndim != 1
        or not len(asked)
        or asked.is_floating_point()
        or not 0 <= int(asked.min()) <= int(asked.max()) < len(place)
    ):
        raise InputError(f"anchors must be indices of rows, from 0 to {len(place) - 1}, but are {anchors!r}")
    return place[asked.to(place)].unique()


def _distinct(rows: Tensor, weights: Any) -> tuple[Int[Tensor, "m"], Int[Tensor, "n"], Float[Tensor, "m"]]:
    """Return the indices of the distinct rows, which of these each row equals, and their summed weights (mean 1)."""
    weight = (torch.ones(len(rows)) if weights is None else as_numbers("weights", weights)).double().to(rows.device)
    if weight.shape != (len(rows),) or not bool((weight.isfinite() & (weight > 0)).all()):
        raise InputError(
            f"weights must be a number above 0 for each of the {len(rows)} rows, but their shape is "
            f"{tuple(weight.shape)}" + ("" if weight.shape != (len(rows),) else " and some are not above 0")
        )
    # Sums of very large weights would overflow.
    weight = weight / weight.max()
    kept, group = equal_rows(rows)
    total = torch.zeros(len(kept), dtype=torch.float64, device=rows.device).index_add_(0, group, weight)
    return kept, group, total / total.mean()


def _checked_dimension(rows: Tensor, dimension: int | None, n_duplicates: int) -> int:
    """Return the dimension m of the tangent planes, given or estimated; raise an error if rows are too few for it."""
    n, d = rows.shape
    m = max(round(patch_dimension(rows)), 1) if dimension is None else dimension
    how = "" if dimension is not None else ", which is the intrinsic dimension of these rows"
    if not 1 <= m < d:
        raise InputError(f"dimension must be at least 1 and below the width {d}, but is {m}{how}; pass another")
    least = CANDIDATES * ROWS_PER_MONOMIAL * n_monomials(m)
    if n < least:
        raise InputError(
            f"curvature in dimension {m}{how} needs at least {least} distinct rows, {CANDIDATES * ROWS_PER_MONOMIAL} "
            f"for each of the {n_monomials(m)} monomials of a quadratic, but {n} came ({n_duplicates} more were "
            "duplicates); pass more rows or a smaller dimension"
        )
    return m
