"""Local geometry: tangent planes, curvature and how much of it is visible, around anchors among the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError, check_whole
from tangentlens.geometry.dimension import intrinsic_dimension
from tangentlens.geometry.groups import compact_groups, jackknife_reach
from tangentlens.geometry.interval import Interval
from tangentlens.geometry.neighbours import equal_rows
from tangentlens.geometry.patch_fit import PatchFit, fit_patches
from tangentlens.geometry.patches import CANDIDATES
from tangentlens.geometry.rows import as_rows, unit_scale
from tangentlens.geometry.second_form import SecondForms, n_monomials
from tangentlens.geometry.subspace import Subspace

# Curvature times radius below so many roundings is none.
_ROUNDING = 1e3
# Of sizes whose squared curvature is known to a tenth, or hardly worse than the best, the largest is taken.
_GOOD, _ALIKE = 0.1, 1.25
# A ratio to what may be nothing.
_UNKNOWN = Interval(math.nan, 0.0, math.inf, over="anchors")
# The smallest patch has so many rows for each monomial; each further scale has twice the rows of the one before.
_ROWS_PER_MONOMIAL, _N_SCALES = 2, 6


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


@dataclass(frozen=True, eq=False)
class LocalGeometry:
    """What the rows look like near anchors; intervals are over anchors (docs/concepts.md, 'Curvature').

    Attributes:
        dimension: Of the tangent planes, m.
        k: Rows of a patch.
        radius: Of the patches, median over anchors.
        rms_curvature: Root mean square of |II(v, v)| over unit tangents v and anchors; 1/R on a sphere.
        mean_curvature: Length of the mean curvature vector, tr II / m.
        principal_curvatures: Square roots of the eigenvalues of the sum of squared shape operators, the largest first.
        visible_curvature: The weighted mean of |II(u, u) / 2|^2 over that of |u|^2, u from the anchor.
        normal_share: What of the rows' (weighted) square distance from their mean lies outside of the tangent plane.
        noise: Standard deviation, in each normal direction, around the quadratic.
        scales: The curvature at all scales that were tried.
        reason: Why this scale was chosen.
        resolved: Whether the planes stand out; if not, noise or further dimensions decide what they are, and curvature
            is that of no surface.
        anchors: Which rows.
        neighbours: Which rows are in each patch, from near to far.
        coordinates: Of these rows in the tangent plane, from the anchor.
        tangents: An orthonormal basis of each tangent plane.
        n_duplicates: Rows that repeat another, and were dropped (their weights were added to its).
    """

    dimension: int
    k: int
    radius: float
    rms_curvature: Interval
    mean_curvature: Interval
    principal_curvatures: tuple[Interval, ...]
    visible_curvature: Interval
    normal_share: Interval
    noise: float
    scales: tuple[Scale, ...]
    reason: str
    resolved: bool
    anchors: Int[Tensor, "a"]
    neighbours: Int[Tensor, "a k"]
    coordinates: Float[Tensor, "a k m"]
    tangents: Float[Tensor, "a d m"]
    n_duplicates: int
    forms: SecondForms
    groups: Int[Tensor, "a"]
    least: float

    def __repr__(self) -> str:
        return (
            f"LocalGeometry(rms_curvature {self.rms_curvature}, visible_curvature {self.visible_curvature}, dimension "
            f"{self.dimension}, {len(self.anchors)} anchors, k={self.k}, radius {self.radius:.3g}: {self.reason}"
            + ("" if self.resolved else "; NOT RESOLVED: these are no tangent planes that stand out")
            + ")"
        )

    def visible(self, weights: Float[Tensor, "a k"]) -> Interval:
        """The visible curvature of the same geometry if each patch's rows, from near to far, counted by `weights`."""
        bent, spread = self.forms.bend_energy(self.coordinates, weights.to(self.forms.products))
        return _ratio(bent, spread, self.groups)

    def visible_ratio(self, weights: Float[Tensor, "a k"]) -> Interval:
        """The same over the visible curvature of rows that all count alike; NaN if that may be 0."""
        sums = [*self.forms.bend_energy(self.coordinates, weights.to(self.forms.products)), *self._even_energy]

        def ratio(mask: Tensor) -> float:
            bent, spread, bent_even, spread_even = (float(part[mask].sum()) for part in sums)
            return bent / spread / (bent_even / spread_even)

        if _ratio(*self._even_energy, self.groups).low <= 0:
            return _UNKNOWN
        return _interval(ratio, self.groups)

    @cached_property
    def _even_energy(self) -> tuple[Float[Tensor, "a"], Float[Tensor, "a"]]:
        even = torch.ones(self.neighbours.shape, dtype=torch.float64, device=self.neighbours.device)
        return self.forms.bend_energy(self.coordinates, even)

    def normal_space(self, anchor: int) -> Subspace:
        """All directions that are orthogonal to the tangent plane of an anchor, by its place among the anchors."""
        return Subspace(self.tangents[anchor].double()).complement()

    def mean(self, values: Float[Tensor, "a"]) -> Interval:
        """The mean of a number of each anchor, with its interval."""
        return _mean_interval(values.to(self.groups.device), self.groups)

    def along(self, directions: Subspace) -> Interval:
        """Root mean square curvature along what of `directions` is tangent, and over anchors."""
        return _root(_mean_interval(self._squares_along(directions), self.groups), self.least)

    def along_ratio(self, one: Subspace, other: Subspace) -> Interval:
        """The curvature along some directions over that along others; NaN if the latter may be 0."""
        above, below = self._squares_along(one), self._squares_along(other)
        if _mean_interval(below, self.groups).low <= 0:
            return _UNKNOWN
        return _root(_ratio(above, below, self.groups), least=0.0)

    def _squares_along(self, directions: Subspace) -> Float[Tensor, "a"]:
        inside = torch.einsum("ndm,dr->nmr", self.tangents.double(), directions.basis.to(self.tangents).double())
        return self.forms.mean_square(inside @ inside.transpose(1, 2))


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
        k: Rows of a patch.
        radius: In place of `k`: as many rows as patches of this radius hold, on median.
        dimension: Of the tangent planes; `patch_dimension` by default.
        weights: How often each row is seen; alike by default. They count in planes, forms and visible curvature.
        anchors: Which rows to look around, in place of a draw.
        seed: Of the draw of anchors.

    >>> from tangentlens.geometry import manifolds
    >>> ball = manifolds.sphere(4000, dimension=2, dim=10, radius=2.0, noise=0.01)
    >>> found = local_geometry(ball.rows, n_anchors=64)
    >>> found.rms_curvature.low < 0.5 < found.rms_curvature.high
    True
    """
    _check_settings(n_anchors, k, radius, dimension)
    given = as_rows(x)
    kept, place, weight = _distinct(given, weights)
    # Squares of very small or large numbers would vanish or overflow.
    rows = given[kept] - given[kept].mean(dim=0)
    scale = unit_scale(rows)
    rows = rows / scale
    m = _checked_dimension(rows, dimension, len(given) - len(kept))
    around = _anchors(place, n_anchors, anchors, seed)
    groups = compact_groups(rows[around], max(len(around) // 32, 2))
    sizes = _sizes(rows, around, m, k, None if radius is None else radius / scale)
    tried = [fit.straightened().scaled(scale) for fit in _fits(rows, around, sizes, m, weight)]
    chosen, limit, reason = _choose(tried, groups, asked=k is not None or radius is not None)
    squares = _mean_interval(chosen.forms.mean_square(), groups)
    # What rounding alone bends over a patch.
    least = _ROUNDING * torch.finfo(rows.dtype).eps / chosen.radius
    bent, spread = chosen.forms.bend_energy(chosen.coordinates, chosen.weights)
    outside, whole = chosen.energies.T
    principal = chosen.forms.principal_squares().T
    return LocalGeometry(
        dimension=m,
        k=chosen.k,
        radius=chosen.radius,
        rms_curvature=_root(squares if limit is None else _holding(squares, limit), least),
        mean_curvature=_root(_mean_interval(chosen.forms.mean_curvature_square(), groups), least),
        principal_curvatures=tuple(_root(_mean_interval(square, groups), least) for square in principal),
        visible_curvature=_ratio(bent, spread, groups),
        normal_share=_ratio(outside, whole, groups),
        noise=math.sqrt(max(float(chosen.forms.noise.mean()), 0.0) / (rows.shape[1] - m)),
        scales=tuple(
            Scale(fit.k, fit.radius, fit.gap, _root(_mean_interval(fit.forms.mean_square(), groups), least))
            for fit in tried
        ),
        reason=reason,
        resolved=chosen.resolved,
        anchors=kept[around],
        neighbours=kept[chosen.neighbours],
        coordinates=chosen.coordinates,
        tangents=chosen.forms.tangents,
        n_duplicates=len(given) - len(kept),
        forms=chosen.forms,
        groups=groups,
        least=least,
    )


def _check_settings(n_anchors: Any, k: Any, radius: Any, dimension: Any) -> None:
    if k is not None and radius is not None:
        raise InputError("k or radius must be given, not both; leave one out")
    given = {"n_anchors": n_anchors, "k": k, "dimension": dimension}
    check_whole(1, **{name: value for name, value in given.items() if value is not None})
    if radius is not None and not (isinstance(radius, Real) and 0 < float(radius) < math.inf):
        raise InputError(f"radius must be a number above 0, but is {radius!r}")


def _fits(rows: Tensor, anchors: Tensor, sizes: Sequence[int], m: int, weights: Tensor) -> Iterator[PatchFit]:
    """Patches of each size, up to the first that reaches beyond its piece of the manifold."""
    for number, size in enumerate(sizes):
        try:
            yield fit_patches(rows, anchors, size, m, weights)
        except InputError:
            # The smallest ones must not.
            if number == 0:
                raise
            return


def _anchors(place: Int[Tensor, "n"], n_anchors: int, anchors: Any, seed: int) -> Int[Tensor, "a"]:
    """The places among distinct rows of the anchors that are asked for, or drawn."""
    if anchors is None:
        n = int(place.max()) + 1
        return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:n_anchors].sort().values.to(place)
    asked = torch.as_tensor(anchors)
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
    weight = torch.ones(len(rows)) if weights is None else torch.as_tensor(weights)
    weight = weight.double().to(rows.device)
    # Sums of very large ones would overflow.
    weight = weight / weight.max() if len(weight) and bool(weight.isfinite().all()) else weight
    if weight.shape != (len(rows),) or not bool((weight.isfinite() & (weight > 0)).all()):
        raise InputError(
            f"weights must be a number above 0 for each of the {len(rows)} rows, but their shape is "
            f"{tuple(weight.shape)}" + ("" if weight.shape != (len(rows),) else " and some are not")
        )
    kept, group = equal_rows(rows)
    total = torch.zeros(len(kept), dtype=torch.float64, device=rows.device).index_add_(0, group, weight)
    return kept, group, total / total.mean()


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


def _checked_dimension(rows: Tensor, dimension: int | None, n_duplicates: int) -> int:
    n, d = rows.shape
    m = max(round(patch_dimension(rows)), 1) if dimension is None else dimension
    how = "" if dimension is not None else ", which is the intrinsic dimension of these rows"
    if not 1 <= m < d:
        raise InputError(f"dimension must be at least 1 and below the width {d}, but is {m}{how}; pass another")
    least = CANDIDATES * _ROWS_PER_MONOMIAL * n_monomials(m)
    if n < least:
        raise InputError(
            f"curvature in dimension {m}{how} needs at least {least} distinct rows, {CANDIDATES * _ROWS_PER_MONOMIAL} "
            f"for each of the {n_monomials(m)} monomials of a quadratic, but {n} came ({n_duplicates} more were "
            "duplicates); pass more rows or a smaller dimension"
        )
    return m


def _sizes(rows: Tensor, anchors: Tensor, m: int, k: int | None, radius: float | None) -> list[int]:
    """Rows of a patch at all scales that are tried."""
    least, most = _ROWS_PER_MONOMIAL * n_monomials(m), len(rows) // CANDIDATES
    if radius is not None:
        near = torch.cdist(rows[anchors], rows) <= radius
        k = int(near.sum(dim=1).median())
    if k is not None:
        if not least <= k <= most:
            what = f"k is {k}" if radius is None else f"the radius holds {k} of them on median"
            raise InputError(
                f"a patch must have between {least} rows (two for each of the {n_monomials(m)} monomials of a "
                f"quadratic in {m} coordinates) and {most} (half of all distinct ones), but {what}; pass another, "
                "another dimension, or more rows"
            )
        return [k]
    sizes = [least * 2**power for power in range(_N_SCALES)]
    return [size for size in sizes if size <= most]


def _choose(tried: Sequence[PatchFit], groups: Tensor, asked: bool) -> tuple[PatchFit, Interval | None, str]:
    """The size with the smallest error, the square of the curvature at radius 0 with its interval, and the reason."""
    if len(tried) == 1:
        return tried[0], None, "as asked for" if asked else "the only size that these rows allow"
    squares = [fit.forms.mean_square() for fit in tried]
    known = [_mean_interval(square, groups) for square in squares]
    errors, limits = [], []
    for place, fit in enumerate(tried):
        # With the radius squared a curvature drifts, to first order, so two sizes tell where it comes from.
        other = place + 1 if place + 1 < len(tried) else place - 1
        step = fit.radius**2 / ((fit.radius**2 - tried[other].radius ** 2) or math.inf)
        limits.append(_mean_interval(squares[place] - step * (squares[place] - squares[other]), groups))
        error = math.hypot(known[place].high - known[place].value, known[place].value - limits[place].value)
        errors.append(error if fit.resolved else math.inf)
    least, reaches = min(errors), [one.high - one.value for one in known]

    def is_good(place: int) -> bool:
        """A small error, and nothing that smaller patches contradict."""
        here, much = known[place].value, _GOOD * known[place].value
        alike = all(
            abs(here - known[smaller].value) <= max(much, reaches[smaller] + reaches[place])
            for smaller in range(place)
            if tried[smaller].resolved
        )
        return alike and errors[place] < math.inf and errors[place] <= max(_ALIKE * least, much)

    good = [place for place in range(len(tried)) if is_good(place)]
    among = ", ".join(str(fit.k) for fit in tried)
    if least == math.inf:
        return tried[0], limits[0], f"the smallest patches of {among} rows, because none is resolved"
    # Larger patches have better planes.
    best = max(good, default=errors.index(least))
    reason = f"the largest patches of {among} rows that have a small error, over anchors and by drift with the radius"
    return tried[best], limits[best], reason


def _mean_interval(values: Float[Tensor, "a"], groups: Tensor) -> Interval:
    return _interval(lambda mask: float(values[mask].mean()), groups)


def _ratio(above: Float[Tensor, "a"], below: Float[Tensor, "a"], groups: Tensor) -> Interval:
    return _interval(lambda mask: float(above[mask].sum() / below[mask].sum()), groups)


def _holding(one: Interval, other: Interval) -> Interval:
    """The first, with an interval that holds the other's as well."""
    return replace(one, low=min(one.low, other.low), high=max(one.high, other.high))


def _interval(estimate: Callable[[Tensor], float], groups: Tensor) -> Interval:
    value, reach = estimate(torch.ones_like(groups).bool()), jackknife_reach(estimate, groups)
    return Interval(value, value - reach, value + reach, over="anchors")


def _root(square: Interval, least: float) -> Interval:
    """The interval of a length from that of its square, of which noise may leave less than 0, and rounding `least`."""
    value, low, high = (math.sqrt(end) if end > least**2 else 0.0 for end in (square.value, square.low, square.high))
    return Interval(value, low, high, square.over)
