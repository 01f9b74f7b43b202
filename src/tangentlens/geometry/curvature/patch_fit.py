"""Patches of one size around all anchors: their tangent planes and second fundamental forms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.curvature.patches import Patches, around_mean, at_once, patches
from tangentlens.geometry.curvature.second_form import SecondForms, n_monomials, second_forms

# A patch consists of several pieces if the distance grows by more than this factor from one neighbour to the next, and
# if such a jump inside one piece would have less than this probability.
_JUMP, _BY_CHANCE = 3.0, 1e-4
# If the smallest variance in the plane is less than this many times the largest outside of it, noise decides which
# plane it is.
RESOLVED = 4.0
_ALL = slice(None)
# Rows per monomial that a patch needs to be split into halves.
_HALVED = 3
# The largest square of curvature times radius: above it, a patch is too round to be approximated by a quadratic.
_BENT = 0.5
# Curvature times radius counts as 0 below this many times the machine precision.
_ROUNDING = 1e3
# The least ratio of the smallest to the largest variance in the plane. With the right dimension it is above a half.
EVEN = 0.35


@dataclass(frozen=True, eq=False)
class PatchFit:
    """The patches of one size around all anchors. The rows of a patch are ordered by their distance from the anchor.

    Attributes:
        k: Number of rows in a patch.
        radius: Median over anchors of the distance, in the plane, from the anchor to the farthest row of its patch.
        neighbours: The indices of the rows in each patch, `(a, k)`.
        coordinates: The rows relative to the anchor, in the basis of the plane, `(a, k, m)`.
        weights: The weight of each row, `(a, k)`.
        gap: The smallest variance in each plane divided by the largest outside of it.
        evenness: The smallest variance in each plane divided by the largest in it.
        forms: The second fundamental form of each patch.
        outside: The weighted sum of squares of the rows around their mean, outside of the plane.
        whole: The same sum over all directions.
    """

    k: int
    radius: float
    neighbours: Int[Tensor, "a k"]
    coordinates: Float[Tensor, "a k m"]
    weights: Float[Tensor, "a k"]
    gap: Float[Tensor, "a"]
    evenness: Float[Tensor, "a"]
    forms: SecondForms
    outside: Float[Tensor, "a"]
    whole: Float[Tensor, "a"]

    @property
    def rounding(self) -> float:
        """The curvature below which a patch is flat up to rounding."""
        return _ROUNDING * torch.finfo(self.coordinates.dtype).eps / self.radius

    @property
    def resolved(self) -> bool:
        """Whether tangent planes are well determined, of the right dimension, and patches small against the curvature.

        The rows nearest to an anchor in a plane spread evenly in it. If they do not, the plane includes a direction
        that is not tangent, such as the one towards which the patch bends, and the curvature is hidden.
        """
        bend = self.radius**2 * float(self.forms.mean_square().mean())
        return _mostly(self.gap, RESOLVED) and _mostly(self.evenness, EVEN) and bend <= _BENT

    def straightened(self) -> PatchFit:
        """Return the same fit with its forms corrected for the bias of a quadratic approximation.

        Over its tangent plane, a surface of constant curvature rises faster than a quadratic. A quadratic regression
        therefore overestimates the curvature, by a fraction that grows with the square of curvature times radius.
        """
        m = self.forms.dimension
        # The regression slope of |u|^4 on |u|^2 in the unit ball, whose even moments are m / (m + 2 j).
        second, fourth, sixth = (m / (m + 2 * power) for power in (1, 2, 3))
        excess = (sixth - fourth * second) / (fourth - second**2) / 4
        # One curvature for all anchors: with its own noisy estimate, each anchor would be corrected by more where noise
        # makes that large, and curvatures would be too small on average.
        curvature = self.forms.mean_square().mean().clamp_min(0).sqrt()
        seen = curvature * self.coordinates[:, -1].double().norm(dim=1)
        # Solve seen = true (1 + excess true^2) by Newton's method, which descends monotonically from `seen`.
        true = seen
        for _ in range(20):
            true = true - (true + excess * true**3 - seen) / (1 + 3 * excess * true**2)
        factor = torch.where(seen > 0, true / seen, 1.0).square()
        return replace(self, forms=replace(self.forms, products=self.forms.products * factor[:, None, None]))


def fit_patches(
    rows: Float[Tensor, "n d"], near: Int[Tensor, "a c"], k: int, dimension: int, weights: Float[Tensor, "n"]
) -> PatchFit:
    """Return the patches of `k` rows around the anchors, with their second fundamental forms.

    Args:
        rows: Rows `(n, d)`, centred.
        near: The `candidates` of each anchor; those for larger patches may follow.
        k: Number of rows in a patch.
        dimension: Dimension m of the tangent planes.
        weights: The weight of each row `(n,)`.
    """
    parts, forms = [], []
    for part in patches(rows, near, k, dimension, weights):
        _check_patches(part)
        forms.append(second_forms(part))
        # The rows take most of the memory of a patch, and are not needed any more.
        parts.append((*_sorted(part), part.gap, *_energies(part)))
    neighbours, coordinates, weight, gap, outside, whole = (torch.cat(one) for one in zip(*parts, strict=True))
    radius = float(coordinates[:, -1].norm(dim=1).median())
    variance = coordinates.double().var(dim=1)
    evenness = variance.amin(dim=1) / variance.amax(dim=1).clamp_min(1e-300)
    return PatchFit(
        k, radius, neighbours, coordinates, weight, gap, evenness, SecondForms.joined(forms), outside, whole
    )


def _sorted(part: Patches) -> tuple[Int[Tensor, "a k"], Float[Tensor, "a k m"], Float[Tensor, "a k"]]:
    """Return neighbours, coordinates and weights, ordered by the distance from the anchor in the plane."""
    distance = part.coordinates.square().sum(dim=2)
    distance[:, 0] = -1
    order = distance.argsort(dim=1)
    coordinates = part.coordinates.gather(1, order[:, :, None].expand_as(part.coordinates))
    return part.neighbours.gather(1, order), coordinates, part.weights.gather(1, order)


def half_forms(rows: Float[Tensor, "n d"], fit: PatchFit) -> tuple[SecondForms, SecondForms] | None:
    """Return the forms fitted to each half of every patch: the rows at even positions, and those at odd ones.

    Args:
        rows: The rows `(n, d)` that the patches are of.
        fit: The patches.

    Returns:
        The forms of the two halves, whose noise is independent; None if patches are too small to be halved.
    """
    if fit.k < _HALVED * n_monomials(fit.forms.dimension):
        return None
    one, other = (refitted(rows, fit, fit.weights, slice(start, None, 2), fit.forms.noise) for start in (0, 1))
    return one, other


def refitted(
    rows: Float[Tensor, "n d"],
    fit: PatchFit,
    weights: Float[Tensor, "a k"],
    part: slice = _ALL,
    noise: Float[Tensor, "a"] | None = None,
) -> SecondForms:
    """Return the forms of the same patches, fitted with other weights or to a part of each patch.

    Args:
        rows: The rows `(n, d)` that the patches are of.
        fit: The patches.
        weights: A weight for each row of each patch, `(a, k)`.
        part: Which rows of each patch to use; all by default.
        noise: The noise variance at each anchor, summed over directions; estimated from the residuals by default.
    """
    check_weights(weights, fit.forms.dimension)
    near, weights, coordinates = fit.neighbours[:, part], weights[:, part], fit.coordinates[:, part]
    forms = [
        second_forms(
            Patches(
                near[some],
                around_mean(rows[near[some]], weights[some]),
                fit.forms.tangents[some],
                fit.gap[some],
                coordinates[some],
                weights[some],
            ),
            None if noise is None else noise[some],
        )
        for some in torch.arange(len(near)).split(at_once(fit.k, rows.shape[1]))
    ]
    return replace(fit, forms=SecondForms.joined(forms)).straightened().forms


def _mostly(values: Float[Tensor, "a"], least: float) -> bool:
    """Return whether half of the anchors reach `least`, and nine in ten half of it: some may lie at a boundary."""
    half, tenth = values.double().quantile(torch.tensor([0.5, 0.1], dtype=torch.float64, device=values.device)).tolist()
    return bool(half >= least and tenth >= least / 2)


def _energies(part: Patches) -> tuple[Float[Tensor, "a"], Float[Tensor, "a"]]:
    """Return the weighted sums of squares of the rows around their mean, outside of the plane and in all directions."""
    whole, flat = (
        (part.weights * torch.linalg.vector_norm(rows, dim=2).double().square()).sum(dim=1)
        for rows in (part.rows, part.rows @ part.tangents)
    )
    return whole - flat, whole


def _check_patches(part: Patches) -> None:
    """Raise an error if patches consist of several pieces, or if too few of their rows have weight."""
    check_weights(part.weights, part.coordinates.shape[2])
    a, k, m = part.coordinates.shape
    # The first rows are left out: a few that nearly repeat the anchor do no harm.
    distance = part.coordinates.double().norm(dim=2).sort(dim=1).values[:, m + 1 :]
    jump = distance[:, 1:] / distance[:, :-1].clamp_min(1e-300)
    # If rows fill one piece evenly, the distance grows by a factor of `jump` after row j with probability jump^(-m j).
    chance = -m * torch.arange(m + 1, k - 1, device=jump.device) * jump.log()
    apart = int(((jump > _JUMP) & (chance < math.log(_BY_CHANCE))).any(dim=1).sum())
    if apart > max(a // 10, 1):
        raise InputError(
            f"the rows around an anchor must be one piece, but in {apart} of {a} patches of {k} rows the distance "
            f"grows by more than {_JUMP:g} from one neighbour to the next; take one row of each cluster, or a smaller k"
        )


def check_weights(weights: Float[Tensor, "a k"], dimension: int) -> None:
    """Raise an error if the effective number of rows in a patch is too small for a quadratic regression.

    Args:
        weights: A weight for each row of each patch, `(a, k)`.
        dimension: Dimension m of the tangent planes.
    """
    needed = n_monomials(dimension)
    count = weights.sum(dim=1).square() / weights.square().sum(dim=1)
    if float(count.median()) <= needed:
        raise InputError(
            f"weights must leave more than {needed} rows of a patch, the monomials of a quadratic in {dimension} "
            f"coordinates, but of {weights.shape[1]} rows they leave {float(count.median()):.1f} (squared sum over sum "
            "of squares); pass more even weights, a larger k or a smaller dimension"
        )
