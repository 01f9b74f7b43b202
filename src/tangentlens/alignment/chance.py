"""What a random subspace of the same rank would take, in closed form."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats

from tangentlens.alignment.share import weighted_spectrum
from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.subspace import Subspace


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
        # A flat spectrum leaves nothing to chance, and rounding makes its spread some 1e-8 in place of 0.
        if self.std <= 1e-7 * self.mean:
            return 1.0 if share <= self.mean * (1 + 1e-6) else 0.0
        mean, variance = self.mean / self.total, (self.std / self.total) ** 2
        concentration = mean * (1 - mean) / variance - 1
        return float(stats.beta.sf(share / self.total, mean * concentration, (1 - mean) * concentration))

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
    weights, vectors = weighted_spectrum(Moments.of(gradients).second_moment(), order)
    if within is not None:
        inner = within.basis.T @ vectors
        weights = torch.linalg.eigvalsh((inner * weights) @ inner.T)
    d, total = len(weights), float(weights.sum())
    if not 1 <= rank <= d:
        raise InputError(f"rank must be between 1 and {d}, the dimension of the room for it, but is {rank}")
    # Second moments of a Haar-random projector; docs/concepts.md, 'Chance'.
    spread = float(weights.square().sum()) - total**2 / d
    factor = 2 * rank * (d - rank) / (d * (d - 1) * (d + 2)) if d > 1 else 0.0
    return Chance(mean=rank * total / d, std=math.sqrt(max(factor * spread, 0.0)), total=total)
