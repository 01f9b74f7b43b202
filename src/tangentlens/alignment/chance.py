"""What a random subspace of the same rank would take, in closed form."""

import math
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from scipy import special
from torch import Tensor

from tangentlens.alignment.share import check_gradients, check_order, spectral_power
from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.subspace import Subspace
from tangentlens.statistics.interval import Interval


@dataclass(frozen=True)
class Chance:
    """Mean and standard deviation of the share of a Haar-random subspace; `total` is the share of all the room it has.

    >>> Chance(mean=0.125, std=0.01, total=1.0)
    Chance(0.125 ± 0.01)
    """

    mean: float
    std: float
    total: float

    def p_value(self, share: float) -> float:
        """Probability that a random subspace takes at least `share`: the tail of the Beta law with these moments."""
        if self._is_flat():
            return 1.0 if share <= self.mean * (1 + 1e-6) else 0.0
        return float(special.betaincc(*self._shape(), min(share / self.total, 1.0)))

    def interval(self) -> Interval:
        """The mean, and between what 95% of random subspaces lie."""
        low, high = self.mean, self.mean
        if not self._is_flat():
            low, high = (self.total * float(special.betaincinv(*self._shape(), end)) for end in (0.025, 0.975))
        return Interval(self.mean, low, high, ci_over="control draws")

    def _is_flat(self) -> bool:
        # A flat spectrum leaves nothing to chance, and rounding makes its spread some 1e-8 in place of 0.
        return self.std <= 1e-7 * self.mean

    def _shape(self) -> tuple[float, float]:
        mean, variance = self.mean / self.total, (self.std / self.total) ** 2
        concentration = mean * (1 - mean) / variance - 1
        return mean * concentration, (1 - mean) * concentration

    def __repr__(self) -> str:
        return f"Chance({self.mean:.3g} ± {self.std:.2g})"


def chance(gradients: Any, rank: int, order: float = 1, within: Subspace | None = None) -> Chance:
    """Share of a Haar-random subspace of `rank`, in R^d or `within` a subspace.

    `within=proxy.complement()` is the `normal` control, no `within` the `random` one.

    Args:
        gradients: Rows `(n, d)`, or their `Moments`.
        rank: Rank of the random subspace.
        order: As for `share`.
        within: Where the random subspace lies.

    >>> chance([[2.0, 0.0], [0.0, 1.0]], rank=1).mean
    0.5
    """
    check_order(order)
    moment = Moments.of(gradients).second_moment()
    if within is not None and within.dim != len(moment):
        raise InputError(f"`within` lies in R^{within.dim}, but the gradients in R^{len(moment)}; use the same site")
    check_gradients(moment)
    matrix = spectral_power(moment, order)
    if within is not None:
        matrix = within.basis.T @ matrix @ within.basis
    return _of_random(rank, len(matrix), float(matrix.trace()), float(matrix.square().sum()))


def chance_beside(moment: Float[Tensor, "d d"], q: Subspace, order: float) -> tuple[Chance, Chance]:
    """Of the rank of `q`: anywhere (`random`) and orthogonal to it (`normal`), from the gradients' second moment."""
    matrix = spectral_power(moment, order)
    square = float(matrix.square().sum())
    # With M restricted to the complement of Q: tr M - tr Q'MQ, and tr M^2 - 2 tr Q'M^2 Q + tr (Q'MQ)^2.
    image = matrix @ q.basis
    inner = q.basis.T @ image
    beside = square - 2 * float(image.square().sum()) + float(inner.square().sum())
    return (
        _of_random(q.rank, q.dim, 1.0, square),
        _of_random(q.rank, q.dim - q.rank, max(1 - float(inner.trace()), 0.0), max(beside, 0.0)),
    )


def _of_random(rank: int, room: int, trace: float, square: float) -> Chance:
    """Moments of tr QQ'M of a Haar-random Q of `rank` in `room` dimensions, from tr M and tr M^2; docs, 'Chance'."""
    if not 1 <= rank <= room:
        raise InputError(f"rank must be between 1 and {room}, the dimension of the room for it, but is {rank}")
    # What rounding leaves of nothing has no spread.
    spread = square - trace**2 / room if trace > 1e-12 else 0.0
    factor = 2 * rank * (room - rank) / (room * (room - 1) * (room + 2)) if room > 1 else 0.0
    return Chance(mean=rank * trace / room, std=math.sqrt(max(factor * spread, 0.0)), total=trace)
