"""Local geometry: tangent planes, curvature and how much of it is visible, around anchors among the rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
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
from tangentlens.statistics.groups import compact_groups
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import jackknife_over

# A ratio to what may be nothing.
_UNKNOWN = Interval(math.nan, 0.0, math.inf, ci_over=ANCHORS)


@dataclass(frozen=True)
class Scale:
    """Patches of `k` rows: their radius and gap (medians over anchors), and the root mean square curvature they show.

    The gap is the least variance in the tangent plane over the most outside of it: below `RESOLVED`, the plane is not
    one that stands out.
    """

    k: int
    radius: float
    gap: float
    rms_curvature: Interval

    @classmethod
    def of(cls, fit: PatchFit, groups: Int[Tensor, "a"], scale: float) -> Scale:
        """From patches at unit scale, in units of which `scale` has a length of 1."""
        squares = mean_over_anchors(fit.forms.mean_square(), groups)
        curvature = squares.root(fit.rounding).times(1 / scale)
        return cls(fit.k, fit.radius * scale, float(fit.gap.median()), curvature)


@dataclass(frozen=True, eq=False)
class LocalGeometry:
    """What the rows look like near anchors; intervals are over anchors (docs/concepts.md, 'Curvature').

    Intervals of curvatures also hold the limit of small patches, where patches of more than one size were tried.

    Attributes:
        scales: The curvature at all sizes of patches that were tried.
        anchors: Which rows.
        neighbours: Which rows are in each patch, from near to far.
        n_duplicates: Rows that repeat another, and were dropped (their weights were added to its).
        rows: Distinct ones, around their mean and at unit scale.
        choice: Patches of these, of the chosen size.
        groups: Of anchors near each other, which are left out together.
        scale: What a length of 1 at unit scale is.
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
            + ("" if self.resolved else "; NOT RESOLVED: these are no tangent planes that stand out")
            + ")"
        )

    @property
    def dimension(self) -> int:
        """Of the tangent planes, m."""
        return self.choice.fit.forms.dimension

    @property
    def k(self) -> int:
        """Rows of a patch."""
        return self.choice.fit.k

    @property
    def radius(self) -> float:
        """Of the patches, median over anchors."""
        return self.choice.fit.radius * self.scale

    @property
    def reason(self) -> str:
        """Why patches of this size."""
        return self.choice.reason

    @property
    def resolved(self) -> bool:
        """Whether planes stand out; if not, noise or further dimensions decide what they are: they are no surface's."""
        return self.choice.fit.resolved

    @property
    def coordinates(self) -> Float[Tensor, "a k m"]:
        """Of the patches' rows in the tangent planes, from the anchors."""
        return self.choice.fit.coordinates * self.scale

    @property
    def bends(self) -> Float[Tensor, "a k"]:
        """|II(u, u) / 2|^2 at each of these places: visible curvature is their weighted sum over that of |u|^2."""
        return self._bends[0] * self.scale**2

    @property
    def tangents(self) -> Float[Tensor, "a d m"]:
        """An orthonormal basis of each tangent plane."""
        return self.choice.fit.forms.tangents

    @property
    def noise(self) -> float:
        """Standard deviation, in each normal direction, around the quadratic."""
        variance = max(float(self.choice.fit.forms.noise.mean()), 0.0) / (self.tangents.shape[1] - self.dimension)
        return math.sqrt(variance) * self.scale

    @cached_property
    def rms_curvature(self) -> Interval:
        """Root mean square of |II(v, v)| over unit tangents v and anchors; 1/R on a sphere."""
        return self._length(forms.mean_square() for forms in self._forms)

    @cached_property
    def mean_curvature(self) -> Interval:
        """Length of the mean curvature vector, tr II / m."""
        return self._length(forms.mean_curvature_square() for forms in self._forms)

    @cached_property
    def principal_curvatures(self) -> tuple[Interval, ...]:
        """Square roots of the eigenvalues of the sum of squared shape operators, the largest first.

        Noise pulls the largest up and the smallest down. So lengths are taken along axes that come from the other half
        of a patch's rows, which pulls the other way; the interval holds both. Of patches that are too small to be
        halved, all of them are in each interval.
        """
        seen, halves = self.choice.fit.forms.principal_squares(), half_forms(self.rows, self.choice.fit)
        if halves is None:
            return tuple(self._length([square, *seen.T]) for square in seen.T)
        one, other = halves
        apart = (one.principal_squares(of=other) + other.principal_squares(of=one)) / 2
        found = [self._length([*squares, self._drift * squares[0]]) for squares in zip(apart.T, seen.T, strict=True)]
        return tuple(sorted(found, key=lambda length: -length.value))

    @cached_property
    def visible_curvature(self) -> Interval:
        """The weighted mean of |II(u, u) / 2|^2 over that of |u|^2, u from the anchor."""
        return self.visible(self.choice.fit.weights)

    @cached_property
    def normal_share(self) -> Interval:
        """What of the rows' (weighted) square distance from their mean lies outside of the tangent plane."""
        return ratio_over_anchors(self.choice.fit.outside, self.choice.fit.whole, self.groups)

    def visible(self, weights: Any) -> Interval:
        """The visible curvature of the same geometry if each patch's rows, from near to far, counted by `weights`."""
        weights = self._checked(weights)
        spread = (weights * self._distances).sum(dim=1)
        seen, limit = (ratio_over_anchors((weights * bends).sum(dim=1), spread, self.groups) for bends in self._bends)
        return seen.holding(limit)

    def visible_ratio(self, weights: Any) -> Interval:
        """The same over the visible curvature of rows that all count alike; NaN if that may be 0."""
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
        """The root mean square curvature if each patch's rows, from near to far, counted by `weights` in its form."""
        squares = refitted(self.rows, self.choice.fit, self._checked(weights)).mean_square()
        return self._length([squares, self._drift * squares])

    def normal_space(self, anchor: int) -> Subspace:
        """All directions that are orthogonal to the tangent plane of an anchor, by its place among the anchors."""
        if not 0 <= anchor < len(self.anchors):
            raise InputError(f"anchor must be a place from 0 to {len(self.anchors) - 1}, but is {anchor}")
        return Subspace(self.tangents[anchor].double()).complement()

    def mean(self, values: Float[Tensor, "a"]) -> Interval:
        """The mean of a number of each anchor, with its interval."""
        return mean_over_anchors(values.to(self.groups.device), self.groups)

    def along(self, directions: Subspace) -> Interval:
        """Root mean square curvature along what of `directions` is tangent, and over anchors."""
        return self._length(_squares_along(forms, directions) for forms in self._forms)

    def along_ratio(self, one: Subspace, other: Subspace) -> Interval:
        """The curvature along some directions over that along others; NaN if the latter may be 0."""
        above, below = (_squares_along(self.choice.fit.forms, directions) for directions in (one, other))
        if mean_over_anchors(below, self.groups).ci_low <= 0:
            return _UNKNOWN
        return ratio_over_anchors(above, below, self.groups).root()

    def _length(self, squares: Iterable[Float[Tensor, "a"]]) -> Interval:
        """The root of the mean over anchors of the first of some squares, with an interval that holds all of them."""
        lengths = [mean_over_anchors(square, self.groups) for square in squares]
        return reduce(Interval.holding, lengths).root(self.choice.fit.rounding).times(1 / self.scale)

    def _checked(self, weights: Any) -> Float[Tensor, "a k"]:
        weights = as_numbers("weights", weights)
        shape = self.neighbours.shape
        if (
            weights.shape != shape
            or not bool((weights.isfinite() & (weights >= 0)).all())
            or not bool(weights[:, 1:].any())
        ):
            raise InputError(
                f"weights must be a number of at least 0, not all 0, for each of {tuple(shape)} rows of patches beside "
                f"anchors, but their shape is {tuple(weights.shape)}"
                + (" and some are not" if weights.shape == shape else "")
            )
        # Sums of very large ones would overflow.
        return without_anchor((weights / weights[:, 1:].max()).to(self._distances))

    @property
    def _forms(self) -> tuple[SecondForms, SecondForms]:
        """Of the chosen size, and in the limit of small ones."""
        return self.choice.fit.forms, self.choice.limit

    @property
    def _drift(self) -> float:
        """What squares of curvatures are in the limit of small patches, over what they are at this size."""
        here, limit = (float(forms.mean_square().mean()) for forms in self._forms)
        return limit / here if here > 0 else 1.0

    @cached_property
    def _bends(self) -> list[Float[Tensor, "a k"]]:
        """At each row of a patch |II(u, u) / 2|^2, by each of the forms."""
        return [forms.bends(self.choice.fit.coordinates) for forms in self._forms]

    @cached_property
    def _distances(self) -> Float[Tensor, "a k"]:
        """Squares of distances from the anchor."""
        return self.choice.fit.coordinates.double().square().sum(dim=2)


def _squares_along(forms: SecondForms, directions: Subspace) -> Float[Tensor, "a"]:
    if directions.dim != forms.tangents.shape[1]:
        raise InputError(
            f"directions must be in the space of the rows, of {forms.tangents.shape[1]} dimensions, but are in one of "
            f"{directions.dim}"
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
    """Tangent planes and curvature near anchors that are drawn among the rows.

    The tangent plane is that of most variance (local PCA); the second fundamental form comes from a quadratic
    regression, and what noise adds to it is taken off. Small patches are noisy, and large ones bend away from a
    quadratic: unless `k` or `radius` is given, patches of several sizes are tried, the largest is chosen whose error
    over anchors and drift with the radius are small, and the interval holds the limit at radius 0.

    Args:
        x: Rows `(n, d)`.
        n_anchors: Rows around which to look; all if there are fewer.
        k: Rows of a patch. Of one size no drift is known, and intervals are over anchors alone.
        radius: In place of `k`: as many rows as lie within this distance of an anchor, on median. That is in all
            directions; the radius of patches is in their planes, and shorter where there is noise.
        dimension: Of the tangent planes; `patch_dimension` by default.
        weights: How often each row is seen; alike by default. They count in forms and visible curvature; in planes, and
            in which rows are in a patch, all count alike.
        anchors: Which rows to look around, in place of a draw; each once, in the order of the rows.
        seed: Of the draw of anchors.

    >>> from tangentlens.geometry import manifolds
    >>> ball = manifolds.sphere(4000, dimension=2, dim=10, radius=2.0, noise=0.01)
    >>> found = local_geometry(ball.rows, n_anchors=64)
    >>> found.rms_curvature.ci_low < 0.5 < found.rms_curvature.ci_high
    True
    """
    _check_settings(n_anchors, k, radius, dimension, seed)
    given = as_rows(x)
    kept, place, weight = _distinct(given, weights)
    # Sums and squares of very small or large numbers would vanish or overflow.
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
    if k is not None and radius is not None:
        raise InputError("k or radius must be given, not both; leave one out")
    check_whole(1, n_anchors=n_anchors)
    check_whole(1, **{name: value for name, value in (("k", k), ("dimension", dimension)) if value is not None})
    check_whole(0, seed=seed)
    if radius is not None and not (isinstance(radius, Real) and 0 < float(radius) < math.inf):
        raise InputError(f"radius must be a number above 0, but is {radius!r}")


def _anchors(place: Int[Tensor, "n"], n_anchors: int, anchors: Any, seed: int) -> Int[Tensor, "a"]:
    """The places among distinct rows of the anchors that are asked for, or drawn."""
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
        raise InputError(f"anchors must be places from 0 to {len(place) - 1} in the rows, but are {anchors!r}")
    return place[asked.to(place)].unique()


def _distinct(rows: Tensor, weights: Any) -> tuple[Int[Tensor, "m"], Int[Tensor, "n"], Float[Tensor, "m"]]:
    """Which rows are the first of their kind, each row's place among these, and weights of equal ones added up."""
    weight = torch.ones(len(rows)) if weights is None else as_numbers("weights", weights)
    weight = weight.double().to(rows.device)
    if weight.shape != (len(rows),) or not bool((weight.isfinite() & (weight > 0)).all()):
        raise InputError(
            f"weights must be a number above 0 for each of the {len(rows)} rows, but their shape is "
            f"{tuple(weight.shape)}" + ("" if weight.shape != (len(rows),) else " and some are not")
        )
    # Sums of very large ones would overflow.
    weight = weight / weight.max()
    kept, group = equal_rows(rows)
    total = torch.zeros(len(kept), dtype=torch.float64, device=rows.device).index_add_(0, group, weight)
    return kept, group, total / total.mean()


def _checked_dimension(rows: Tensor, dimension: int | None, n_duplicates: int) -> int:
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
