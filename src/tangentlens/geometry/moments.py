"""Count, mean and scatter of rows, accumulated batch by batch: anisotropy and shares are functions of these."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.lanczos import largest
from tangentlens.geometry.rows import as_rows, gram, power_of_two, shaped_rows, unit_scale

# Rows that are multiplied at once: few enough to fit into a cache, enough for the product to run at full speed.
_PART = 4096
# If the largest sum of squares lies between these, no square that matters has vanished or overflowed in fp32.
_SMALLEST, _LARGEST = 1e-20, 1e30


class Moments:
    """Count, mean and scatter of rows in R^d, in fp64, which can be updated with more rows and merged.

    Args:
        dim: Number of features, d.
        device: Where to keep the moments.

    Attributes:
        count: Number of rows n so far. If a mask chose them on a GPU, the host waits when this is read.
        mean: Mean of the rows, `(d,)`.
        scatter: Sum of the outer products of the rows around their mean, `(d, d)`.

    >>> a, b = Moments(2).update([[0.0, 1.0], [2.0, 1.0]]), Moments(2).update([[4.0, 1.0]])
    >>> a.merge(b)
    Moments(count=3, dim=2)
    >>> a.mean.tolist()
    [2.0, 1.0]
    """

    def __init__(self, dim: int, device: torch.device | str | None = None) -> None:
        self._count: int | Tensor = 0
        self.mean: Float[Tensor, "d"] = torch.zeros(dim, dtype=torch.float64, device=device)
        self.scatter: Float[Tensor, "d d"] = torch.zeros(dim, dim, dtype=torch.float64, device=device)
        self._spectra: dict[bool, Tensor] = {}

    @classmethod
    def of(cls, x: Any) -> Moments:
        """Return the moments of rows `x` `(n, d)`; a `Moments` is returned as it is."""
        if isinstance(x, Moments):
            return x
        rows = shaped_rows(x)
        if not len(rows):
            raise InputError("at least 1 rows are needed, but 0 came; pass more tokens")
        return cls(rows.shape[1], device=rows.device).update(rows)

    @classmethod
    def of_chosen(cls, rows: Float[Tensor, "n d"], mask: Bool[Tensor, "n"]) -> Moments:
        """Return the moments of the rows that a mask chooses; the host need not wait for a GPU.

        Rows are multiplied at unit scale from the start, because a look at the result would mean to wait. They cost as
        much as all rows do. Those that are not chosen need not be finite.
        """
        moments = cls(rows.shape[1], device=rows.device)
        moments._count = mask.sum()
        n = moments._count.clamp_min(1)
        parts = list(zip(rows.split(_PART), mask[:, None].split(_PART), strict=True))
        wide = torch.promote_types(rows.dtype, torch.float32)
        largest = torch.stack([part.where(chosen, 0).abs().amax() for part, chosen in parts]).amax()
        scale = power_of_two(largest.to(wide))

        def at_unit_scale(part: Tensor, chosen: Tensor) -> Tensor:
            return part.where(chosen, 0).to(wide) / scale

        shift = torch.stack([at_unit_scale(*part).sum(dim=0) for part in parts]).sum(dim=0) / n
        for part, chosen in parts:
            centred = (at_unit_scale(part, chosen) - shift).where(chosen, 0)
            moments.mean += centred.sum(dim=0)
            moments.scatter += gram(centred)
        moments.mean /= n
        moments.scatter -= torch.outer(moments.mean, moments.mean) * n
        moments.mean.add_(shift).mul_(scale)
        moments.scatter *= scale.double() ** 2
        return moments

    def where(self, condition: Bool[Tensor, ""]) -> Moments:
        """Return these moments if a condition on the device holds, else those of no rows; the host need not wait."""
        chosen = Moments(self.dim, device=self.mean.device)
        chosen._count = self._count * condition
        chosen.mean, chosen.scatter = self.mean * condition, self.scatter * condition
        return chosen

    @property
    def count(self) -> int:
        """The number of rows, n."""
        self._count = int(self._count)
        return self._count

    @count.setter
    def count(self, count: int) -> None:
        self._count = count

    @property
    def dim(self) -> int:
        """The number of features, d."""
        return len(self.mean)

    def update(self, x: Any) -> Moments:
        """Add rows `x` `(n, d)` and return these moments.

        Products are computed in fp32, or in fp64 for fp64 rows, around a point near the mean, so that a large mean
        costs no digits.
        """
        rows = shaped_rows(x)
        self._check_dim(rows.shape[1])
        if not len(rows):
            return self
        new = _moments_in_parts(rows)
        # A check of the result costs far less than a check of every row beforehand.
        if not _SMALLEST < float(new.scatter.diagonal().amax()) < _LARGEST:
            rows = as_rows(rows)
            scale = unit_scale(rows)
            new = _moments_in_parts(rows / scale)
            new.mean *= scale
            new.scatter *= scale**2
        return self.merge(new)

    def merge(self, other: Moments) -> Moments:
        """Add the rows that `other` has seen and return these moments; `other` is not changed."""
        self._check_dim(other.dim)
        if isinstance(self._count, Tensor) or isinstance(other._count, Tensor):
            self._merge_there(other)
        elif other.count:
            total = self.count + other.count
            gap = other.mean.to(self.mean) - self.mean
            self.scatter += other.scatter.to(self.scatter)
            if self.count:
                self.scatter.addr_(gap, gap, alpha=self.count * other.count / total)
            self.mean += gap * (other.count / total)
            self.count = total
            self._spectra.clear()
        return self

    def _merge_there(self, other: Moments) -> None:
        """Merge moments of which the device knows the counts."""
        total = self._count + other._count
        part = other._count / torch.as_tensor(total).clamp_min(1)
        gap = other.mean.to(self.mean) - self.mean
        self.scatter += other.scatter.to(self.scatter)
        self.scatter += torch.outer(gap, gap) * (self._count * part)
        self.mean += gap * part
        self._count = total
        self._spectra.clear()

    def _check_dim(self, dim: int) -> None:
        """Raise an error if rows have another number of features."""
        if dim != self.dim:
            raise InputError(f"these moments are of {self.dim} features, but {dim} came; use one Moments per site")

    def covariance(self) -> Float[Tensor, "d d"]:
        """Return the covariance matrix `(d, d)`: the mean outer product of the centred rows (divided by n)."""
        self._check_seen()
        return self.scatter / self.count

    def second_moment(self) -> Float[Tensor, "d d"]:
        """Return the second moment `(d, d)`: the mean outer product of the rows, uncentred."""
        return self.covariance() + torch.outer(self.mean, self.mean)

    def spectrum(self, center: bool = True) -> Float[Tensor, "d"]:
        """Return the eigenvalues `(d,)` of the covariance, or of the second moment if not centred.

        They are in descending order, and none is below 0.

        Args:
            center: Whether to subtract the mean first.
        """
        if center not in self._spectra:
            matrix = self.covariance() if center else self.second_moment()
            self._spectra[center] = torch.linalg.eigvalsh(matrix).flip(0).clamp_min(0)
        return self._spectra[center].clone()

    def leading_direction(self) -> Float[Tensor, "d"]:
        """Return the unit vector along which the variance is largest."""
        return largest(self.covariance(), 1)[1][:, 0]

    def _check_seen(self) -> None:
        """Raise an error if no rows came yet."""
        if self.count == 0:
            raise InputError("these moments have seen no rows; update them first")

    def __repr__(self) -> str:
        return f"Moments(count={self.count}, dim={self.dim})"


def _moments_in_parts(rows: Float[Tensor, "n d"]) -> Moments:
    """Return the moments of rows, from products around a point near their mean."""
    moments = Moments(rows.shape[1], device=rows.device)
    # The mean of every 16th row is at most 4 standard deviations from the mean of all, and costs a sixteenth of it.
    shift = rows[::16].mean(dim=0, dtype=torch.promote_types(rows.dtype, torch.float32))
    # Memory is allocated once: to allocate it for each part would take a tenth of the time of the product.
    room, square = shift.new_empty(min(_PART, len(rows)), len(shift)), shift.new_empty(len(shift), len(shift))
    for part in rows.split(_PART):
        centred = torch.sub(part, shift, out=room[: len(part)])
        moments.mean += centred.sum(dim=0)
        moments.scatter += gram(centred, out=square)
    moments.count = len(rows)
    moments.mean /= len(rows)
    moments.scatter.addr_(moments.mean, moments.mean, alpha=-len(rows))
    moments.mean += shift
    return moments
