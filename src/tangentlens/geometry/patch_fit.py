"""Patches of one size around many anchors: their planes, and the second fundamental form at each."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.patches import Patches, patches
from tangentlens.geometry.second_form import SecondForms, n_monomials, second_forms

# From one neighbour to the next, distances inside of one piece of a manifold do not grow by more than this.
_JUMP = 3.0
# Where the variance in the plane falls below so many times that outside of it, noise decides which plane it is.
RESOLVED = 4.0
# The least variance in the plane over the most; where the dimension is right it is above a half.
EVEN = 0.35


@dataclass(frozen=True, eq=False)
class PatchFit:
    """All patches of one size."""

    k: int
    radius: float
    neighbours: Int[Tensor, "a k"]
    coordinates: Float[Tensor, "a k m"]
    weights: Float[Tensor, "a k"]
    gap: float
    evenness: float
    forms: SecondForms
    energies: Float[Tensor, "a 2"]

    @property
    def resolved(self) -> bool:
        """Whether the plane stands out, all of it is plane, and the patch is small against its curvature.

        Rows nearest to an anchor in a plane spread evenly in it. If they do not, a direction that is no tangent, such
        as the one that the patch bends towards, is taken for one, and nothing is left to bend.
        """
        bend = self.radius**2 * float(self.forms.mean_square().mean())
        return self.gap >= RESOLVED and self.evenness >= EVEN and bend <= 1

    def straightened(self) -> PatchFit:
        """With what a quadratic makes of a surface whose curvature is the same all over the patch undone.

        Over its tangent plane such a surface rises faster than a quadratic, by the square of curvature times radius.
        """
        m = self.forms.dimension
        # Slope of |u|^4 over |u|^2 in the unit ball, by its even moments m / (m + 2 j).
        second, fourth, sixth = (m / (m + 2 * power) for power in (1, 2, 3))
        excess = (sixth - fourth * second) / (fourth - second**2) / 4
        seen = math.sqrt(max(float(self.forms.mean_square().mean()), 0.0)) * self.radius
        # seen = true (1 + excess true^2), by Newton's steps from above, which only go down.
        true = seen
        for _ in range(20):
            true -= (true + excess * true**3 - seen) / (1 + 3 * excess * true**2)
        factor = (true / seen) ** 2 if seen > 0 else 1.0
        return replace(self, forms=replace(self.forms, products=self.forms.products * factor))

    def scaled(self, scale: float) -> PatchFit:
        """The same of rows that are so many times as large; energies are compared with each other alone."""
        forms = replace(self.forms, products=self.forms.products / scale**2, noise=self.forms.noise * scale**2)
        return replace(self, radius=self.radius * scale, coordinates=self.coordinates * scale, forms=forms)


def fit_patches(
    rows: Float[Tensor, "n d"], anchors: Int[Tensor, "a"], k: int, dimension: int, weights: Float[Tensor, "n"]
) -> PatchFit:
    """Patches of `k` rows around the anchors, with their second fundamental forms."""
    parts, forms, energies = [], [], []
    for part in patches(rows, anchors, k, dimension, weights):
        _check_patches(part)
        forms.append(second_forms(part))
        energies.append(_energies(part))
        # Their rows are the most of them, and are not needed any more.
        parts.append((part.neighbours, part.coordinates, part.weights, part.gap))
    neighbours, coordinates, weight, gap = (torch.cat(one) for one in zip(*parts, strict=True))
    form = SecondForms(*(torch.cat([getattr(one, part.name) for one in forms]) for part in fields(SecondForms)))
    radius = float(coordinates[:, -1].norm(dim=1).median())
    gaps = float(gap.median())
    variance = coordinates.double().var(dim=1)
    evenness = float((variance.amin(dim=1) / variance.amax(dim=1).clamp_min(1e-300)).median())
    return PatchFit(k, radius, neighbours, coordinates, weight, gaps, evenness, form, torch.cat(energies))


def _energies(part: Patches) -> Float[Tensor, "a 2"]:
    """Weighted squares of the rows around their mean: what lies outside of the plane, and all."""
    flat = part.rows @ part.tangents
    whole = torch.einsum("nk,nkd->n", part.weights, part.rows.double().square())
    return torch.stack([whole - torch.einsum("nk,nkm->n", part.weights, flat.double().square()), whole], dim=1)


def _check_patches(part: Patches) -> None:
    """Refuse patches that fall apart, or in which too few rows count."""
    a, k, m = part.coordinates.shape
    distance = part.coordinates.norm(dim=2)[:, m + 1 :]
    apart = int((distance[:, 1:] > _JUMP * distance[:, :-1]).any(dim=1).sum())
    if 10 * apart > a:
        raise InputError(
            f"the rows around an anchor must be one piece, but in {apart} of {a} patches of {k} rows the distance "
            f"grows by more than {_JUMP:g} from one neighbour to the next; take one row of each cluster, or a smaller k"
        )
    needed = n_monomials(m)
    count = part.weights.sum(dim=1).square() / part.weights.square().sum(dim=1)
    if float(count.median()) <= needed:
        raise InputError(
            f"weights must leave more than {needed} rows of a patch, the monomials of a quadratic in {m} coordinates, "
            f"but of {k} rows they leave {float(count.median()):.1f} (squared sum over sum of squares); pass more even "
            "weights, a larger k or a smaller dimension"
        )
