"""A linear subspace, held as an orthonormal basis. Proxies and their controls are subspaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.rows import as_rows


@dataclass(frozen=True, eq=False)
class Subspace:
    """An r-dimensional subspace of R^d.

    Attributes:
        basis: Orthonormal columns `(d, r)`, in fp64.

    >>> plane = Subspace.span([[2.0, 0.0, 0.0], [2.0, 3.0, 0.0]])
    >>> plane
    Subspace(rank=2, dim=3)
    >>> plane.complement().basis.abs().T.tolist()
    [[0.0, 0.0, 1.0]]
    """

    basis: Float[Tensor, "d r"]

    def __post_init__(self) -> None:
        identity = torch.eye(self.rank, dtype=self.basis.dtype, device=self.basis.device)
        if not torch.allclose(self.basis.T @ self.basis, identity, atol=1e-5):
            raise InputError("the columns of a basis must be orthonormal; use Subspace.span for any other vectors")
        object.__setattr__(self, "basis", self.basis.double())

    @classmethod
    def span(cls, vectors: Any, rank: int | None = None) -> Subspace:
        """Return the span of vectors.

        Args:
            vectors: Row vectors `(k, d)`.
            rank: If given, the span of that many leading right singular vectors; by default, the whole span, up to the
                precision of fp32.
        """
        rows = as_rows(vectors).double()
        singular, directions = torch.linalg.svd(rows, full_matrices=False)[1:]
        # Vectors that came in fp32 are known to fp32 only, whatever their type is now.
        tolerance = max(rows.shape) * torch.finfo(torch.float32).eps * singular[0]
        available = int((singular > tolerance).sum())
        if available < (rank or 1):
            raise InputError(
                f"the vectors must span {rank or 1} dimensions, but {len(rows)} vectors in R^{rows.shape[1]} span "
                f"{available}; ask for a smaller rank or pass more distinct vectors"
            )
        return cls(directions[: available if rank is None else rank].T.contiguous())

    @property
    def dim(self) -> int:
        """The dimension d of the ambient space."""
        return self.basis.shape[0]

    @property
    def rank(self) -> int:
        """The dimension r of the subspace."""
        return self.basis.shape[1]

    def complement(self) -> Subspace:
        """Return the orthogonal complement, a subspace of rank d - r."""
        return Subspace(torch.linalg.qr(self.basis, mode="complete").Q[:, self.rank :])

    def project(self, x: Any) -> Float[Tensor, "n r"]:
        """Return the coordinates `(n, r)` of rows `x` `(n, d)` in the basis."""
        rows = as_rows(x)
        return rows @ self.basis.to(rows)

    def principal_angles(self, other: Subspace) -> Float[Tensor, "k"]:
        """Return the min(r, r') principal angles with `other`, ascending, in radians."""
        wide, thin = (self, other) if self.rank >= other.rank else (other, self)
        cosines = torch.linalg.svdvals(wide.basis.T @ thin.basis)
        sines = torch.linalg.svdvals(thin.basis - wide.basis @ (wide.basis.T @ thin.basis)).flip(0)
        # A cosine is imprecise near angle 0 and a sine near a right angle; atan2 of both is precise at either end.
        return torch.atan2(sines, cosines)

    def overlap(self, other: Subspace) -> float:
        """Return the mean squared cosine of the principal angles with `other`.

        It is 1 if one subspace contains the other, and 0 if they are orthogonal.
        """
        return float((self.basis.T @ other.basis).square().sum() / min(self.rank, other.rank))

    def __repr__(self) -> str:
        return f"Subspace(rank={self.rank}, dim={self.dim})"
