"""Rows with the eigendecomposition of their covariance: what every fitted subspace starts from, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.rows import as_rows

# Principal directions that are kept beyond the rank wherever rows are reduced to the leading ones.
SPARE = 16


@dataclass(frozen=True, eq=False)
class Principal:
    """Rows, their mean (0 if not centred), and the eigenvalues and eigenvectors around it, the largest first.

    >>> Principal.of([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).values.tolist()
    [4.5, 0.5]
    """

    rows: Float[Tensor, "n d"]
    mean: Float[Tensor, "d"]
    values: Float[Tensor, "d"]
    vectors: Float[Tensor, "d d"]
    center: bool

    @classmethod
    def of(cls, x: Any, center: bool = True) -> Principal:
        """Of rows `x`; one that is already `Principal`, and centred alike, is returned as it is."""
        if isinstance(x, Principal):
            return x if x.center == center else cls.of(x.rows, center)
        rows = as_rows(x)
        moments = Moments.of(rows)
        values, vectors = torch.linalg.eigh(moments.covariance() if center else moments.second_moment())
        # What is left of equal rows is the rounding of their mean.
        rounding = 8 * torch.finfo(rows.dtype).eps
        whole = float(moments.scatter.trace() / moments.count + moments.mean.square().sum())
        if float(values.sum()) <= rounding**2 * whole:
            raise InputError("rows must differ for concepts to exist, but all are equal; check the site and the mask")
        mean = moments.mean if center else torch.zeros_like(moments.mean)
        return cls(rows, mean, values.flip(0).clamp_min(0), vectors.flip(1), center)

    @property
    def dim(self) -> int:
        """Number of features, d."""
        return self.rows.shape[1]

    def check_rank(self, rank: int) -> None:
        """Refuse a rank that the space has no room for."""
        if not 1 <= rank <= self.dim:
            raise InputError(f"rank must be between 1 and {self.dim}, the number of features, but is {rank}")

    def coordinates(self, count: int) -> Float[Tensor, "n count"]:
        """The rows along the `count` leading eigenvectors, divided by their root mean square length: near 1."""
        return (self.rows - self.mean.to(self.rows)) @ (self.vectors[:, :count] / self.scale).to(self.rows)

    @property
    def scale(self) -> float:
        """Root mean square length of the rows, around their mean if centred."""
        return float(self.values.sum()) ** 0.5
