"""Count, mean and second moment of rows, streamed: what anisotropy, shares and chance levels are functions of."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.rows import as_rows, product


class Moments:
    """Streamed moments of rows in R^d, kept in fp64; they add up across batches, machines and days.

    >>> a, b = Moments(2).update([[0.0, 1.0], [2.0, 1.0]]), Moments(2).update([[4.0, 1.0]])
    >>> a.merge(b)
    Moments(count=3, dim=2)
    >>> a.mean.tolist()
    [2.0, 1.0]
    """

    def __init__(self, dim: int, device: torch.device | str | None = None) -> None:
        self.count = 0
        self.mean: Float[Tensor, "d"] = torch.zeros(dim, dtype=torch.float64, device=device)
        self.scatter: Float[Tensor, "d d"] = torch.zeros(dim, dim, dtype=torch.float64, device=device)

    @classmethod
    def of(cls, x: Any) -> Moments:
        """Moments of the rows `x`; a `Moments` is returned as it is."""
        if isinstance(x, Moments):
            return x
        rows = as_rows(x)
        return cls(rows.shape[1], device=rows.device).update(rows)

    @property
    def dim(self) -> int:
        """Number of features, d."""
        return len(self.mean)

    def update(self, x: Any) -> Moments:
        """Add rows. Products are taken in the rows' own precision around their mean: an offset costs no digits."""
        rows = as_rows(x, least=0)
        self._check_dim(rows.shape[1])
        if len(rows):
            mean = rows.mean(dim=0, dtype=torch.float64)
            centred = rows - mean.to(rows.dtype)
            # The mean was rounded to the rows' precision, so what is left of it is put back exactly.
            rest = centred.mean(dim=0, dtype=torch.float64)
            scatter = product(centred) - len(rows) * torch.outer(rest, rest)
            self._add(len(rows), mean, scatter)
        return self

    def merge(self, other: Moments) -> Moments:
        """Add what `other` has seen, as if its rows had come here."""
        self._check_dim(other.dim)
        if other.count:
            self._add(other.count, other.mean.to(self.mean), other.scatter.to(self.scatter))
        return self

    def _add(self, count: int, mean: Tensor, scatter: Tensor) -> None:
        total = self.count + count
        gap = mean - self.mean
        self.scatter += scatter + torch.outer(gap, gap) * (self.count * count / total)
        self.mean += gap * (count / total)
        self.count = total

    def _check_dim(self, dim: int) -> None:
        if dim != self.dim:
            raise InputError(f"these moments are of {self.dim} features, but {dim} came; use one Moments per site")

    def covariance(self) -> Float[Tensor, "d d"]:
        """Mean outer product of the centred rows."""
        self._check_seen()
        return self.scatter / self.count

    def second_moment(self) -> Float[Tensor, "d d"]:
        """Mean outer product of the rows as they are."""
        return self.covariance() + torch.outer(self.mean, self.mean)

    def spectrum(self, center: bool = True) -> Float[Tensor, "d"]:
        """Eigenvalues of the covariance (or, uncentred, of the second moment), descending, none below 0."""
        matrix = self.covariance() if center else self.second_moment()
        return torch.linalg.eigvalsh(matrix).flip(0).clamp_min(0)

    def _check_seen(self) -> None:
        if self.count == 0:
            raise InputError("these moments have seen no rows; update them first")

    def __repr__(self) -> str:
        return f"Moments(count={self.count}, dim={self.dim})"
