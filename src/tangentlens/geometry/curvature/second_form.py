"""The second fundamental form of patches, by quadratic regression, and the curvatures that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.curvature.patches import Patches

# Largest number of squares and products of coordinates that are held at once: 128 MiB.
_NUMBERS = 2**24


def n_monomials(dimension: int) -> int:
    """Return the number of coefficients of a quadratic function of `dimension` coordinates.

    >>> n_monomials(2)
    6
    """
    return (dimension + 1) * (dimension + 2) // 2


@dataclass(frozen=True, eq=False)
class SecondForms:
    """The second fundamental form at each anchor, held as inner products of its entries.

    The form is a symmetric m x m matrix A for each normal direction. The inner products A_ab . A_cd over all normal
    directions do not depend on the choice of these directions. The bias that noise adds to a product is subtracted, so
    that estimated squares of curvatures may be negative.

    Attributes:
        products: The products A_ab . A_cd, `(a, q, q)`; the q pairs (a, b) with a <= b are numbered along rows.
        noise: The variance around the quadratic at each anchor, summed over directions.
        tangents: An orthonormal basis of the tangent plane of the fitted quadratic at each anchor, `(a, d, m)`.
    """

    products: Float[Tensor, "a q q"]
    noise: Float[Tensor, "a"]
    tangents: Float[Tensor, "a d m"]

    @classmethod
    def joined(cls, parts: Sequence[SecondForms]) -> SecondForms:
        """Return the forms of all anchors, given those of parts of the anchors in order."""
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    @property
    def dimension(self) -> int:
        """The dimension m of the tangent planes."""
        return self.tangents.shape[2]

    @property
    def basis(self) -> Float[Tensor, "q m m"]:
        """The symmetric matrix, of zeros and ones, that belongs to each pair (a, b)."""
        first, second = torch.triu_indices(self.dimension, self.dimension, device=self.products.device)
        pair = torch.arange(len(first), device=first.device)
        basis = self.products.new_zeros(len(first), self.dimension, self.dimension)
        basis[pair, first, second] = basis[pair, second, first] = 1
        return basis

    def mean_square(self, within: Float[Tensor, "a m m"] | None = None) -> Float[Tensor, "a"]:
        """Return the mean of |II(v, v)|^2 over unit tangents v at each anchor, (|tr A|^2 + 2 |A|^2) / (m (m + 2)).

        Args:
            within: If given, a covariance `(m, m)` at each anchor. Tangents v are then Gaussian with this covariance,
                and the mean of |II(v, v)|^2 is divided by that of |v|^4.
        """
        m = self.dimension
        if within is None:
            # All anchors share the identity.
            within = torch.eye(m, dtype=self.products.dtype, device=self.products.device)[None]
        scaled = torch.einsum("qab,nbc->nqac", self.basis, within)
        traces = scaled.diagonal(dim1=2, dim2=3).sum(dim=2)
        pairs = traces[:, :, None] * traces[:, None] + 2 * torch.einsum("nqab,nrba->nqr", scaled, scaled)
        trace = within.diagonal(dim1=1, dim2=2).sum(dim=1)
        fourth = trace.square() + 2 * within.square().sum(dim=(1, 2))
        return (pairs * self.products).sum(dim=(1, 2)) / fourth.clamp_min(1e-300)

    def mean_curvature_square(self) -> Float[Tensor, "a"]:
        """Return |tr A / m|^2, the squared length of the mean curvature vector, at each anchor."""
        trace = self.basis.diagonal(dim1=1, dim2=2).sum(dim=1)
        return torch.einsum("q,nqr,r->n", trace, self.products, trace) / self.dimension**2

    def principal_squares(self, of: SecondForms | None = None) -> Float[Tensor, "a m"]:
        """Return the squares of the principal curvatures at each anchor.

        These are the eigenvalues, in descending order, of the sum of A_n^2 over normal directions n. Noise turns the
        axes towards directions in which it makes A large, which biases the largest upward. Along the axes of other
        forms, with independent noise, there is no such bias.

        Args:
            of: Other forms at the same anchors, whose axes to use; by default those of the forms themselves.
        """
        axes = torch.linalg.eigh((of or self).onto(self.tangents).operator_squares()).eigenvectors.flip(2)
        return torch.einsum("nai,nab,nbi->ni", axes, self.operator_squares(), axes)

    def operator_squares(self) -> Float[Tensor, "a m m"]:
        """Return the sum of the squared shape operators A_n^2 over normal directions n, at each anchor."""
        squares = torch.einsum("nqr,qab,rbc->nac", self.products, self.basis, self.basis)
        return (squares + squares.transpose(1, 2)) / 2

    def bends(self, coordinates: Float[Tensor, "a k m"]) -> Float[Tensor, "a k"]:
        """Return |II(u, u) / 2|^2, the squared height above the tangent plane, at given coordinates u in it.

        Args:
            coordinates: Coordinates u of k points at each anchor, `(a, k, m)`, relative to the anchor.
        """
        first, second = torch.triu_indices(self.dimension, self.dimension, device=coordinates.device)
        twice = torch.where(first == second, 1.0, 2.0).to(self.products)
        heights = []
        some = max(_NUMBERS // (coordinates.shape[1] * len(first)), 1)
        for u, products in zip(coordinates.to(self.products).split(some), self.products.split(some), strict=True):
            pairs = u[:, :, first] * u[:, :, second] * twice
            heights.append((pairs @ products * pairs).sum(dim=2) / 4)
        return torch.cat(heights)

    def towards(self, other: SecondForms, step: float) -> SecondForms:
        """Return the forms at a fraction `step` of the way to those of `other`, at the same anchors.

        A fraction below 0 or above 1 extrapolates.
        """
        there = other.onto(self.tangents).products
        return replace(self, products=self.products + step * (there - self.products))

    def onto(self, tangents: Float[Tensor, "a d m"]) -> SecondForms:
        """Return the same forms in other bases `(a, d, m)`, of planes that are slightly rotated against these."""
        rotation = _orthonormal(tangents.double().transpose(1, 2) @ self.tangents.double())
        # A_ab = (O A' O^T)_ab with the rotation O, as a matrix over pairs.
        turned = torch.einsum("nac,qcd,nbd->nqab", rotation, self.basis, rotation)
        first, second = torch.triu_indices(self.dimension, self.dimension, device=rotation.device)
        pairs = turned[:, :, first, second].transpose(1, 2)
        return replace(self, products=pairs @ self.products @ pairs.transpose(1, 2), tangents=tangents)


def second_forms(patch: Patches, noise: Float[Tensor, "a"] | None = None) -> SecondForms:
    """Return the second fundamental form of each patch, by weighted least squares of rows on 1, u and products u_a u_b.

    The form consists of the coefficients of the products of coordinates u. Noise alone has coefficients as well: its
    variance, times the variance of the coefficients for unit noise, is subtracted from their products. Noise in the
    coordinates themselves does not shrink the coefficients, because rows were chosen by their observed coordinates,
    around which the true ones scatter evenly (a Berkson error; docs/measures/curvature.md).

    Args:
        patch: The patches of some anchors.
        noise: The noise variance at each anchor, summed over directions; estimated from the residuals by default.
    """
    u, weights = patch.coordinates.double(), patch.weights.double()
    m = u.shape[2]
    # At unit scale, products of coordinates are of the same order as 1 and the coordinates.
    size = (weights * u.square().sum(dim=2)).sum(dim=1).div(weights.sum(dim=1)).sqrt().clamp_min(1e-300)
    u = u / size[:, None, None]
    first, second = torch.triu_indices(m, m, device=u.device)
    design = torch.cat([torch.ones_like(u[:, :, :1]), u, u[:, :, first] * u[:, :, second]], dim=2)
    # With columns of unit length, the normal equations lose few digits.
    weighted = design * weights.sqrt()[:, :, None]
    length = weighted.norm(dim=1).clamp_min(1e-300)
    weighted = weighted / length[:, None]
    normal = weighted.transpose(1, 2) @ weighted
    half, failed = torch.linalg.cholesky_ex(normal)
    _check_spread(half.diagonal(dim1=1, dim2=2), length, failed, design.shape[1])
    # The fit is linear in the rows: coefficients = solve @ rows.
    solve = torch.cholesky_inverse(half) @ (weighted * weights.sqrt()[:, :, None]).transpose(1, 2) / length[:, :, None]
    coefficients = (solve.to(patch.rows) @ patch.rows).double()
    # The covariance of the coefficients for noise of variance 1.
    spread = solve @ solve.transpose(1, 2)
    if noise is None:
        residual = patch.rows - design.to(patch.rows) @ coefficients.to(patch.rows)
        square = torch.linalg.vector_norm(residual, dim=2).double().square()
        # Residual degrees of freedom: the trace of W (I - H) (I - H)^T, with the hat matrix H and the weights W.
        taken = 2 * (weights * (design * solve.transpose(1, 2)).sum(dim=2)).sum(dim=1)
        again = (normal * length[:, :, None] * length[:, None] * spread).sum(dim=(1, 2))
        freedom = weights.sum(dim=1) - taken + again
        noise = (weights * square).sum(dim=1) / freedom.clamp_min(1e-300)
    # The coefficient of u_a u_b is A_ab, but that of u_a^2 is A_aa / 2.
    factor = torch.where(first == second, 2.0, 1.0).to(u) / size[:, None].square()
    form = coefficients[:, m + 1 :] * factor[:, :, None]
    added = spread[:, m + 1 :, m + 1 :] * factor[:, :, None] * factor[:, None]
    products = form @ form.transpose(1, 2) - noise[:, None, None] * added
    return SecondForms(products, noise, _orthonormal(coefficients[:, 1 : m + 1].transpose(1, 2)).to(patch.rows))


def _orthonormal(planes: Float[Tensor, "a d m"]) -> Float[Tensor, "a d m"]:
    """Return the nearest orthonormal basis of each plane, so that directions change as little as possible."""
    left, _, right = torch.linalg.svd(planes, full_matrices=False)
    return left @ right


def _check_spread(new: Float[Tensor, "a p"], length: Float[Tensor, "a p"], failed: Int[Tensor, "a"], k: int) -> None:
    """Raise an error if the monomials of a quadratic are linearly dependent on the rows of some patch.

    `length` is the length of each monomial's column, and `new` the fraction of it orthogonal to the columns before.
    """
    shortest = (new * length).amin(dim=1) / length.amax(dim=1)
    bad = int(((failed > 0) | (new.amin(dim=1) <= 1e-6) | (shortest <= 1e-8)).sum())
    if bad:
        raise InputError(
            f"the {k} rows of a patch must spread over all {new.shape[1]} monomials of a quadratic, but in {bad} of "
            f"{len(new)} patches they do not (rows on a grid or a line, or weights that leave too few of them); ask "
            "for a smaller dimension, a larger k, or more even weights"
        )
