"""Patches of one size around many anchors: their planes, and the second fundamental form at each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.curvature.patches import Patches, around_mean, at_once, patches
from tangentlens.geometry.curvature.second_form import SecondForms, n_monomials, second_forms

# From one neighbour to the next, distances inside of one piece of a manifold do not grow by more than this, but with
# such a probability.
_JUMP, _BY_CHANCE = 3.0, 1e-4
# Where the variance in the plane falls below so many times that outside of it, noise decides which plane it is.
RESOLVED = 4.0
_ALL = slice(None)
# Rows for each monomial that make halves of a patch large enough.
_HALVED = 3
# The square of curvature times radius: beyond it a patch is too round for a quadratic, whatever is taken off.
_BENT = 0.5
# Curvature times radius below so many roundings is none.
_ROUNDING = 1e3
# The least variance in the plane over the most; where the dimension is right it is above a half.
EVEN = 0.35


@dataclass(frozen=True, eq=False)
class PatchFit:
    """All patches of one size.

    `gap` and `evenness` are variances: the least in the plane over the most outside of it, and over the most inside.
    `outside` and `whole` are weighted squares of rows around their mean.
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
        """The curvature that rounding alone gives to a patch."""
        return _ROUNDING * torch.finfo(self.coordinates.dtype).eps / self.radius

    @property
    def resolved(self) -> bool:
        """Whether the plane stands out, all of it is plane, and the patch is small against its curvature.

        Rows nearest to an anchor in a plane spread evenly in it. If they do not, a direction that is no tangent, such
        as the one that the patch bends towards, is taken for one, and nothing is left to bend.
        """
        bend = self.radius**2 * float(self.forms.mean_square().mean())
        return _mostly(self.gap, RESOLVED) and _mostly(self.evenness, EVEN) and bend <= _BENT

    def straightened(self) -> PatchFit:
        """With what a quadratic makes of a surface whose curvature is the same all over the patch undone.

        Over its tangent plane such a surface rises faster than a quadratic, by the square of curvature times radius.
        """
        m = self.forms.dimension
        # Slope of |u|^4 over |u|^2 in the unit ball, by its even moments m / (m + 2 j).
        second, fourth, sixth = (m / (m + 2 * power) for power in (1, 2, 3))
        excess = (sixth - fourth * second) / (fourth - second**2) / 4
        # Of all anchors together: to take more off where noise makes it large would make all of them too flat.
        curvature = self.forms.mean_square().mean().clamp_min(0).sqrt()
        seen = curvature * self.coordinates[:, -1].double().norm(dim=1)
        # seen = true (1 + excess true^2), by Newton's steps from above, which only go down.
        true = seen
        for _ in range(20):
            true = true - (true + excess * true**3 - seen) / (1 + 3 * excess * true**2)
        factor = torch.where(seen > 0, true / seen, 1.0).square()
        return replace(self, forms=replace(self.forms, products=self.forms.products * factor[:, None, None]))


def fit_patches(
    rows: Float[Tensor, "n d"], anchors: Int[Tensor, "a"], k: int, dimension: int, weights: Float[Tensor, "n"]
) -> PatchFit:
    """Patches of `k` rows around the anchors, with their second fundamental forms."""
    parts, forms = [], []
    for part in patches(rows, anchors, k, dimension, weights):
        _check_patches(part)
        forms.append(second_forms(part))
        # Their rows are the most of them, and are not needed any more.
        parts.append((part.neighbours, part.coordinates, part.weights, part.gap, *_energies(part)))
    neighbours, coordinates, weight, gap, outside, whole = (torch.cat(one) for one in zip(*parts, strict=True))
    radius = float(coordinates[:, -1].norm(dim=1).median())
    variance = coordinates.double().var(dim=1)
    evenness = variance.amin(dim=1) / variance.amax(dim=1).clamp_min(1e-300)
    return PatchFit(
        k, radius, neighbours, coordinates, weight, gap, evenness, SecondForms.joined(forms), outside, whole
    )


def half_forms(rows: Float[Tensor, "n d"], fit: PatchFit) -> tuple[SecondForms, SecondForms] | None:
    """The forms of every other row of each patch, and of the rest; None if patches are too small to be halved."""
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
    """The forms of the same patches with other weights, or of a part of each patch with a noise that is known."""
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
    """Whether half of the anchors have at least so much, and nine in ten at least half of it: the rest are at edges."""
    half, tenth = values.double().quantile(torch.tensor([0.5, 0.1], dtype=torch.float64, device=values.device)).tolist()
    return bool(half >= least and tenth >= least / 2)


def _energies(part: Patches) -> tuple[Float[Tensor, "a"], Float[Tensor, "a"]]:
    """Weighted squares of the rows around their mean: what lies outside of the plane, and all."""
    whole, flat = (
        (part.weights * torch.linalg.vector_norm(rows, dim=2, dtype=torch.float64).square()).sum(dim=1)
        for rows in (part.rows, part.rows @ part.tangents)
    )
    return whole - flat, whole


def _check_patches(part: Patches) -> None:
    """Refuse patches that fall apart, or in which too few rows count."""
    check_weights(part.weights, part.coordinates.shape[2])
    a, k, m = part.coordinates.shape
    # A few rows that nearly repeat the anchor do no harm.
    distance = part.coordinates.double().norm(dim=2)[:, m + 1 :]
    jump = distance[:, 1:] / distance[:, :-1].clamp_min(1e-300)
    # Beyond the j-th of rows that fill a piece evenly, such a jump comes with a probability of jump^(-m j).
    chance = -m * torch.arange(m + 1, k - 1, device=jump.device) * jump.log()
    apart = int(((jump > _JUMP) & (chance < math.log(_BY_CHANCE))).any(dim=1).sum())
    if apart > max(a // 10, 1):
        raise InputError(
            f"the rows around an anchor must be one piece, but in {apart} of {a} patches of {k} rows the distance "
            f"grows by more than {_JUMP:g} from one neighbour to the next; take one row of each cluster, or a smaller k"
        )


def check_weights(weights: Float[Tensor, "a k"], dimension: int) -> None:
    """Refuse weights that leave too few rows of patches."""
    needed = n_monomials(dimension)
    count = weights.sum(dim=1).square() / weights.square().sum(dim=1)
    if float(count.median()) <= needed:
        raise InputError(
            f"weights must leave more than {needed} rows of a patch, the monomials of a quadratic in {dimension} "
            f"coordinates, but of {weights.shape[1]} rows they leave {float(count.median()):.1f} (squared sum over sum "
            "of squares); pass more even weights, a larger k or a smaller dimension"
        )
