"""An orthonormal basis with a rank. Proxies and controls are both just this."""

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
    """An r-dimensional subspace of R^d, held as orthonormal columns in fp64.

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
        """The span of row vectors `(k, d)`; with `rank`, of their leading directions."""
        rows = as_rows(vectors).double()
        singular, directions = torch.linalg.svd(rows, full_matrices=False)[1:]
        # Rows given in fp32 are only known to fp32.
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
        """Dimension d of the space around it."""
        return self.basis.shape[0]

    @property
    def rank(self) -> int:
        """Its own dimension r."""
        return self.basis.shape[1]

    def complement(self) -> Subspace:
        """Everything orthogonal to it."""
        return Subspace(torch.linalg.qr(self.basis, mode="complete").Q[:, self.rank :])

    def project(self, x: Any) -> Float[Tensor, "n r"]:
        """Coordinates of rows `x` in the basis."""
        rows = as_rows(x)
        return rows @ self.basis.to(rows)

    def principal_angles(self, other: Subspace) -> Float[Tensor, "k"]:
        """The min(r, r') angles between the two, ascending, in radians."""
        wide, thin = (self, other) if self.rank >= other.rank else (other, self)
        cosines = torch.linalg.svdvals(wide.basis.T @ thin.basis)
        sines = torch.linalg.svdvals(thin.basis - wide.basis @ (wide.basis.T @ thin.basis)).flip(0)
        # Cosines lose small angles and sines lose right ones; together they keep both.
        return torch.atan2(sines, cosines)

    def overlap(self, other: Subspace) -> float:
        """Mean squared cosine of the principal angles: 1 if one holds the other, 0 if orthogonal."""
        return float((self.basis.T @ other.basis).square().sum() / min(self.rank, other.rank))

    def __repr__(self) -> str:
        return f"Subspace(rank={self.rank}, dim={self.dim})"
