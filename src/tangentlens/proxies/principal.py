"""Centred and scaled rows with their principal directions: the common starting point of all fitted subspaces."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.leading import leading_directions
from tangentlens.geometry.rows import as_rows, gram, unit_scale
from tangentlens.geometry.subspace import Subspace
from tangentlens.lazy import cached_property

# How many principal directions beyond the rank are kept where rows are reduced to the leading directions.
SPARE = 16
# What rounding makes of equal numbers differs by less than this many units of it.
_ROUNDING = 8


@dataclass(frozen=True, eq=False)
class Principal:
    """Rows with their principal directions, which are computed on first use.

    Attributes:
        rows: The rows `(n, d)`.
        mean: Their mean `(d,)`, or 0 if not centred.
        scale: The root mean square length of rows - mean.
        points: (rows - mean) / scale, `(n, d)`.
        center: Whether the mean was subtracted.

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
        """Return the `Principal` of rows.

        Args:
            x: Rows `(n, d)`; or a `Principal`, which is returned as it is if `center` agrees.
            center: Whether to subtract the mean.
        """
        if isinstance(x, Principal):
            return x if x.center == center else cls.of(x.rows, center)
        rows = as_rows(x)
        unit = unit_scale(rows)
        points = rows / unit
        uncentred_length = _length(points)
        mean = torch.zeros_like(points[0])
        # The second pass removes what rounding left of a large mean.
        for _ in range(2 if center else 0):
            shift = points.mean(dim=0)
            points -= shift
            mean += shift
        length = _length(points)
        # Equal rows still differ from their mean by rounding.
        if length <= _ROUNDING * torch.finfo(rows.dtype).eps * uncentred_length:
            raise InputError("rows must differ for concepts to exist, but all are equal; check the site and the mask")
        return cls(rows, mean * unit, length * unit, points.div_(length), center)

    @property
    def dim(self) -> int:
        """The number of features, d."""
        return self.rows.shape[1]

    def check_rank(self, rank: int) -> None:
        """Raise an error if `rank` is not between 1 and the number of features."""
        if not 1 <= rank <= self.dim:
            raise InputError(f"rank must be between 1 and {self.dim}, the number of features, but is {rank}")

    def leading(self, count: int) -> tuple[Float[Tensor, "d count"], Float[Tensor, "n count"]]:
        """Return approximate leading principal directions of the points, and coordinates along them.

        Args:
            count: How many directions to return; at most d are returned.

        Returns:
            Orthonormal directions `(d, count)`, the one with the largest variance first, and the coordinates
            `(n, count)` of the points along them, which are uncorrelated; 0 along directions that only rounding made.
        """
        directions, coordinates = leading_directions(self.points, min(count, self.dim))
        extent = coordinates.double().square().mean(dim=0).sqrt()
        rows_length = math.hypot(1.0, float(self.mean.double().norm()) / self.scale)
        return directions, coordinates * (extent > _ROUNDING * torch.finfo(coordinates.dtype).eps * rows_length)

    @cached_property
    def _eigen(self) -> tuple[Float[Tensor, "d"], Float[Tensor, "d d"]]:
        """The eigenvalues and eigenvectors of the mean outer product of the points, the largest first."""
        # The product is as precise as the rows are: more digits of its eigenvectors would be those of its rounding.
        values, vectors = torch.linalg.eigh(gram(self.points) / len(self.points))
        return values.flip(0).clamp_min(0).double(), vectors.flip(1).double()

    @property
    def values(self) -> Float[Tensor, "d"]:
        """The variance along each principal direction, descending: shares of the whole, which sum to 1."""
        return self._eigen[0]

    @property
    def vectors(self) -> Float[Tensor, "d d"]:
        """The principal directions, as columns, in the order of `values`; orthonormal to the precision of the rows."""
        return self._eigen[1]

    def span(self, place: slice) -> Subspace:
        """Return the span of some principal directions, which are counted from the largest variance on."""
        return Subspace(torch.linalg.qr(self.vectors[:, place]).Q)


def _length(rows: Float[Tensor, "n d"]) -> float:
    """Return the root mean square length: each length in the precision of the rows, which is fast, the mean in fp64."""
    return float(torch.linalg.vector_norm(rows, dim=1).double().square().mean().sqrt())
