"""The second fundamental form of patches, by quadratic regression, and what it says: curvatures are linear in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.curvature.patches import Patches

# Numbers in the squares and products of coordinates that are held at once: 128 MiB.
_NUMBERS = 2**24


def n_monomials(dimension: int) -> int:
    """Coefficients of a quadratic function of so many coordinates.

    >>> n_monomials(2)
    6
    """
    return (dimension + 1) * (dimension + 2) // 2


@dataclass(frozen=True, eq=False)
class SecondForms:
    """The products A_ab . A_cd of the second fundamental form's entries at each anchor, over all normal directions.

    The form itself has a matrix for each normal direction; its products do not depend on the choice of these.
    Pairs (a, b) with a <= b are numbered along rows. What noise adds to a product is already taken off, so squares of
    curvatures may come out below 0. `noise` is the variance around the quadratic, summed over directions; `tangents`
    are the planes of the fitted quadratic at the anchors.
    """

    products: Float[Tensor, "a q q"]
    noise: Float[Tensor, "a"]
    tangents: Float[Tensor, "a d m"]

    @classmethod
    def joined(cls, parts: Sequence[SecondForms]) -> SecondForms:
        """Those of all anchors, from parts."""
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    @property
    def dimension(self) -> int:
        """Of the tangent planes."""
        return self.tangents.shape[2]

    @property
    def basis(self) -> Float[Tensor, "q m m"]:
        """The symmetric matrix of each pair."""
        first, second = torch.triu_indices(self.dimension, self.dimension, device=self.products.device)
        pair = torch.arange(len(first), device=first.device)
        basis = self.products.new_zeros(len(first), self.dimension, self.dimension)
        basis[pair, first, second] = basis[pair, second, first] = 1
        return basis

    def mean_square(self, within: Float[Tensor, "a m m"] | None = None) -> Float[Tensor, "a"]:
        """Mean of |II(v, v)|^2 over directions v, by their fourth moments: v is Gaussian with covariance `within`.

        Without it, all directions count alike: (|tr A|^2 + 2 |A|^2) / (m (m + 2)).
        """
        m = self.dimension
        if within is None:
            # One for all anchors.
            within = torch.eye(m, dtype=self.products.dtype, device=self.products.device)[None]
        turned = torch.einsum("qab,nbc->nqac", self.basis, within)
        traces = turned.diagonal(dim1=2, dim2=3).sum(dim=2)
        pairs = traces[:, :, None] * traces[:, None] + 2 * torch.einsum("nqab,nrba->nqr", turned, turned)
        trace = within.diagonal(dim1=1, dim2=2).sum(dim=1)
        fourth = trace.square() + 2 * within.square().sum(dim=(1, 2))
        return (pairs * self.products).sum(dim=(1, 2)) / fourth.clamp_min(1e-300)

    def mean_curvature_square(self) -> Float[Tensor, "a"]:
        """|tr A / m|^2, the square of the mean curvature vector."""
        trace = self.basis.diagonal(dim1=1, dim2=2).sum(dim=1)
        return torch.einsum("q,nqr,r->n", trace, self.products, trace) / self.dimension**2

    def principal_squares(self, of: SecondForms | None = None) -> Float[Tensor, "a m"]:
        """Eigenvalues of the sum of A_n^2 over normal directions n, descending: squares of principal curvatures.

        Noise that turns the axes towards where it makes A large pulls the largest up. Along the axes `of` other forms,
        with noise of their own, it does not.
        """
        axes = torch.linalg.eigh((of or self).onto(self.tangents).operator_squares()).eigenvectors.flip(2)
        return torch.einsum("nai,nab,nbi->ni", axes, self.operator_squares(), axes)

    def operator_squares(self) -> Float[Tensor, "a m m"]:
        """The sum of A_n^2 over normal directions n."""
        squares = torch.einsum("nqr,qab,rbc->nac", self.products, self.basis, self.basis)
        return (squares + squares.transpose(1, 2)) / 2

    def bends(self, coordinates: Float[Tensor, "a k m"]) -> Float[Tensor, "a k"]:
        """|II(u, u) / 2|^2 at each place u of each patch."""
        first, second = torch.triu_indices(self.dimension, self.dimension, device=coordinates.device)
        twice = torch.where(first == second, 1.0, 2.0).to(self.products)
        found = []
        some = max(_NUMBERS // (coordinates.shape[1] * len(first)), 1)
        for u, products in zip(coordinates.to(self.products).split(some), self.products.split(some), strict=True):
            pairs = u[:, :, first] * u[:, :, second] * twice
            found.append((pairs @ products * pairs).sum(dim=2) / 4)
        return torch.cat(found)

    def towards(self, other: SecondForms, step: float) -> SecondForms:
        """The forms that are `step` of the way to others at the same anchors."""
        there = other.onto(self.tangents).products
        return replace(self, products=self.products + step * (there - self.products))

    def onto(self, tangents: Float[Tensor, "a d m"]) -> SecondForms:
        """The same in the directions of planes that are turned a little."""
        turn = _orthonormal(tangents.double().transpose(1, 2) @ self.tangents.double())
        # A_ab = (O A' O^T)_ab, by the numbers of pairs.
        turned = torch.einsum("nac,qcd,nbd->nqab", turn, self.basis, turn)
        first, second = torch.triu_indices(self.dimension, self.dimension, device=turn.device)
        pairs = turned[:, :, first, second].transpose(1, 2)
        return replace(self, products=pairs @ self.products @ pairs.transpose(1, 2), tangents=tangents)


def second_forms(patch: Patches, noise: Float[Tensor, "a"] | None = None) -> SecondForms:
    """Fit rows ~ 1, u, u u (least squares, weighted) in each patch; the coefficients of u u are the form.

    Noise alone gives coefficients as well: its variance, times what the fit makes of it, is taken off their products.
    Noise in the coordinates themselves does not make coefficients smaller, because rows were chosen by where they are
    seen: around there, true places scatter evenly (docs/concepts.md, 'Curvature').
    """
    u, weights = patch.coordinates.double(), patch.weights.double()
    m = u.shape[2]
    # At unit size, squares and products of coordinates compare with 1.
    size = (weights * u.square().sum(dim=2)).sum(dim=1).div(weights.sum(dim=1)).sqrt().clamp_min(1e-300)
    u = u / size[:, None, None]
    first, second = torch.triu_indices(m, m, device=u.device)
    design = torch.cat([torch.ones_like(u[:, :, :1]), u, u[:, :, first] * u[:, :, second]], dim=2)
    # With columns of length 1 the normal equations lose few digits.
    weighted = design * weights.sqrt()[:, :, None]
    length = weighted.norm(dim=1).clamp_min(1e-300)
    weighted = weighted / length[:, None]
    normal = weighted.transpose(1, 2) @ weighted
    half, failed = torch.linalg.cholesky_ex(normal)
    _check_spread(half.diagonal(dim1=1, dim2=2), length, failed, design.shape[1])
    # fitted = design @ solve @ rows
    solve = torch.cholesky_inverse(half) @ (weighted * weights.sqrt()[:, :, None]).transpose(1, 2) / length[:, :, None]
    coefficients = (solve.to(patch.rows) @ patch.rows).double()
    # What the fit makes of noise of variance 1.
    spread = solve @ solve.transpose(1, 2)
    if noise is None:
        left = patch.rows - design.to(patch.rows) @ coefficients.to(patch.rows)
        square = torch.linalg.vector_norm(left, dim=2, dtype=torch.float64).square()
        # The fit takes some of it in.
        taken = 2 * (weights * (design * solve.transpose(1, 2)).sum(dim=2)).sum(dim=1)
        again = (normal * length[:, :, None] * length[:, None] * spread).sum(dim=(1, 2))
        freedom = weights.sum(dim=1) - taken + again
        noise = (weights * square).sum(dim=1) / freedom.clamp_min(1e-300)
    # y = ... + A_ab u_a u_b, but A_aa / 2 on the diagonal.
    factor = torch.where(first == second, 2.0, 1.0).to(u) / size[:, None].square()
    form = coefficients[:, m + 1 :] * factor[:, :, None]
    added = spread[:, m + 1 :, m + 1 :] * factor[:, :, None] * factor[:, None]
    products = form @ form.transpose(1, 2) - noise[:, None, None] * added
    return SecondForms(products, noise, _orthonormal(coefficients[:, 1 : m + 1].transpose(1, 2)).to(patch.rows))


def _orthonormal(planes: Float[Tensor, "a d m"]) -> Float[Tensor, "a d m"]:
    """The orthonormal basis nearest to each: its directions are still those that the form is in."""
    left, _, right = torch.linalg.svd(planes, full_matrices=False)
    return left @ right


def _check_spread(new: Float[Tensor, "a p"], length: Float[Tensor, "a p"], failed: Int[Tensor, "a"], k: int) -> None:
    """Refuse patches that do not spread in all squares and products of coordinates.

    `length` is that of each monomial, and `new` the part of it that those before do not have.
    """
    shortest = (new * length).amin(dim=1) / length.amax(dim=1)
    bad = int(((failed > 0) | (new.amin(dim=1) <= 1e-6) | (shortest <= 1e-8)).sum())
    if bad:
        raise InputError(
            f"the {k} rows of a patch must spread over all {new.shape[1]} monomials of a quadratic, but in {bad} of "
            f"{len(new)} patches they do not (rows on a grid or a line, or weights that leave too few of them); ask "
            "for a smaller dimension, a larger k, or more even weights"
        )
