"""Chance: the distribution of a random subspace's share, with its moments in closed form."""

import math
from dataclasses import dataclass
from typing import Any

import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.alignment.share import check_gradients, check_order, spectral_power
from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.subspace import Subspace
from tangentlens.statistics.interval import Interval


@dataclass(frozen=True)
class Chance:
    """The distribution of the share of a Haar-random subspace, approximated by a scaled Beta distribution.

    Attributes:
        mean: The mean of the share.
        std: The standard deviation of the share.
        total: The largest possible share: that of the whole space in which the subspace is drawn.

    >>> Chance(mean=0.125, std=0.01, total=1.0)
    Chance(0.125 ± 0.01)
    """

    mean: float
    std: float
    total: float

    def p_value(self, share: float) -> float:
        """Return the probability that a random subspace takes at least `share`."""
        if self._is_flat():
            return 1.0 if share <= self.mean * (1 + 1e-6) else 0.0
        # An unbiased estimate of a share near 0 or 1 can lie outside of them.
        return float(scipy.special.betaincc(*self._shape(), min(max(share / self.total, 0.0), 1.0)))

    def interval(self) -> Interval:
        """Return the mean, with the interval that contains the central 95% of random subspaces."""
        low, high = self.mean, self.mean
        if not self._is_flat():
            low, high = (self.total * float(scipy.special.betaincinv(*self._shape(), end)) for end in (0.025, 0.975))
        return Interval(self.mean, low, high, ci_over="control draws")

    def _is_flat(self) -> bool:
        # If the spectrum is flat, all subspaces have the same share. Rounding then gives a std of about 1e-8, not 0.
        return self.std <= 1e-7 * self.mean

    def _shape(self) -> tuple[float, float]:
        """Return the parameters of the Beta distribution of share / total, by the method of moments."""
        mean, variance = self.mean / self.total, (self.std / self.total) ** 2
        concentration = mean * (1 - mean) / variance - 1
        return mean * concentration, (1 - mean) * concentration

    def __repr__(self) -> str:
        return f"Chance({self.mean:.3g} ± {self.std:.2g})"


def chance(gradients: Any, rank: int, order: float = 1, within: Subspace | None = None) -> Chance:
    """Return the distribution of the share of a Haar-random subspace, in R^d or `within` a subspace.

    Without `within` this is the `random` control; with `within=proxy.complement()` it is the `normal` control.

    Args:
        gradients: Rows `(n, d)`, or their `Moments`.
        rank: Rank of the random subspace.
        order: The order of the share, as in `share`.
        within: The subspace of R^d in which the random subspace is drawn; all of R^d by default.

    >>> chance([[2.0, 0.0], [0.0, 1.0]], rank=1).mean
    0.5
    """
    check_order(order)
    moment = Moments.of(gradients).second_moment()
    if within is not None and within.dim != len(moment):
        raise InputError(
            f"`within` must lie in the space of the gradients, R^{len(moment)}, but lies in R^{within.dim}; use the "
            "same site"
        )
    check_gradients(moment)
    matrix = spectral_power(moment, order)
    if within is not None:
        matrix = within.basis.T @ matrix @ within.basis
    return _of_random(rank, len(matrix), float(matrix.trace()), float(matrix.square().sum()))


def chance_beside(matrix: Float[Tensor, "d d"], q: Subspace) -> tuple[Chance, Chance]:
    """Return chance for subspaces of the rank of `q`: anywhere (`random`), and orthogonal to `q` (`normal`).

    Args:
        matrix: The symmetric matrix M of trace 1 of which shares are taken: `spectral_power`, or `GroupMoments.power`.
        q: The proxy.
    """
    square = float(torch.linalg.vector_norm(matrix)) ** 2
    # With M restricted to the complement of Q: tr M - tr Q'MQ, and tr M^2 - 2 tr Q'M^2 Q + tr (Q'MQ)^2.
    image = matrix @ q.basis
    inner = q.basis.T @ image
    beside = square - 2 * float(image.square().sum()) + float(inner.square().sum())
    return (
        _of_random(q.rank, q.dim, 1.0, square),
        _of_random(q.rank, q.dim - q.rank, max(1 - float(inner.trace()), 0.0), max(beside, 0.0)),
    )


def _of_random(rank: int, room: int, trace: float, square: float) -> Chance:
    """Return mean and standard deviation of tr QQ'M for a Haar-random Q of `rank` in `room` dimensions.

    The formulas are in docs/measures/alignment.md, 'Chance'; `trace` is tr M and `square` is tr M^2.
    """
    if not 1 <= rank <= room:
        raise InputError(
            f"rank must be between 1 and {room}, the dimension of the space it is drawn in, but is {rank}; choose "
            "another"
        )
    # A trace this small is a rounding error of 0, and so is the variance computed from it.
    spread = square - trace**2 / room if trace > 1e-12 else 0.0
    factor = 2 * rank * (room - rank) / (room * (room - 1) * (room + 2)) if room > 1 else 0.0
    return Chance(mean=rank * trace / room, std=math.sqrt(max(factor * spread, 0.0)), total=trace)
