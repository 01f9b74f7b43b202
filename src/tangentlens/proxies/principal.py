"""Rows around their mean, at unit scale, with their principal directions: what every fitted subspace starts from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.leading import leading_directions
from tangentlens.geometry.rows import as_rows, gram, unit_scale

# Principal directions that are kept beyond the rank wherever rows are reduced to the leading ones.
SPARE = 16


@dataclass(frozen=True, eq=False)
class Principal:
    """Rows, their mean (0 if not centred), their root mean square length around it, and points = (rows - mean) / scale.

    Eigenvalues and eigenvectors of the points, the largest first, are computed when they are first asked for.

    >>> Principal.of([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).values.round(decimals=6).tolist()
    [0.9, 0.1]
    """

    rows: Float[Tensor, "n d"]
    mean: Float[Tensor, "d"]
    scale: float
    points: Float[Tensor, "n d"]
    center: bool

    @classmethod
    def of(cls, x: Any, center: bool = True) -> Principal:
        """Of rows `x`; one that is already `Principal`, and centred alike, is returned as it is."""
        if isinstance(x, Principal):
            return x if x.center == center else cls.of(x.rows, center)
        rows = as_rows(x)
        unit = unit_scale(rows)
        points = rows / unit
        whole = _length(points)
        mean = torch.zeros_like(points[0])
        # The second time takes away what rounding left of a large mean.
        for _ in range(2 if center else 0):
            shift = points.mean(dim=0)
            points -= shift
            mean += shift
        length = _length(points)
        # What is left of equal rows is the rounding of their mean.
        if length <= 8 * torch.finfo(rows.dtype).eps * whole:
            raise InputError("rows must differ for concepts to exist, but all are equal; check the site and the mask")
        return cls(rows, mean * unit, length * unit, points.div_(length), center)

    @property
    def dim(self) -> int:
        """Number of features, d."""
        return self.rows.shape[1]

    def check_rank(self, rank: int) -> None:
        """Refuse a rank that the space has no room for."""
        if not 1 <= rank <= self.dim:
            raise InputError(f"rank must be between 1 and {self.dim}, the number of features, but is {rank}")

    def leading(self, count: int) -> tuple[Float[Tensor, "d count"], Float[Tensor, "n count"]]:
        """Orthonormal directions that hold nearly all that `count` can, and the points along them, uncorrelated."""
        return leading_directions(self.points, min(count, self.dim))

    @cached_property
    def _eigen(self) -> tuple[Float[Tensor, "d"], Float[Tensor, "d d"]]:
        values, vectors = torch.linalg.eigh(gram(self.points).double() / len(self.points))
        return values.flip(0).clamp_min(0), vectors.flip(1)

    @property
    def values(self) -> Float[Tensor, "d"]:
        """Eigenvalues of the points: shares of the variance, summing to 1."""
        return self._eigen[0]

    @property
    def vectors(self) -> Float[Tensor, "d d"]:
        """Eigenvectors of the points, as columns."""
        return self._eigen[1]


def _length(rows: Float[Tensor, "n d"]) -> float:
    """Root mean square length; row by row in the rows' own precision, which is fast, then in fp64."""
    return float(torch.linalg.vector_norm(rows, dim=1).double().square().mean().sqrt())
