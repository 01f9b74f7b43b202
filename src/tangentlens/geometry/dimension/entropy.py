"""Manifold entropy: the differential entropy of rows on the manifold they lie on, not in the ambient space."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import scipy
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.dimension.intrinsic import intrinsic_dimension, told
from tangentlens.geometry.dimension.limits import interval_at_infinity
from tangentlens.geometry.dimension.neighbourhoods import Neighbourhoods
from tangentlens.statistics.jackknife import jackknife_reach_of_sum

# The neighbour whose distance estimates the density: nearer ones are noisier, farther ones average over more space.
NEIGHBOUR = 3


@dataclass(frozen=True)
class ManifoldEntropy:
    """An entropy in nats with its 95% interval over rows.

    Attributes:
        value: The entropy, relative to volume in `dimension` dimensions.
        ci_low: The lower end of the interval.
        ci_high: The upper end of the interval.
        dimension: The intrinsic dimension that was given or estimated.
        n_used: Number of distinct rows.
        n_duplicates: Number of rows that repeat another one and were dropped.
        trouble: Why the estimated dimension, and so the entropy, is not to be trusted; else empty.
        n_near_duplicates: Number of rows that are nearly equal to another one and were dropped.
        ci_over: The source of variation that the interval covers.
    """

    value: float
    ci_low: float
    ci_high: float
    dimension: float
    n_used: int
    n_duplicates: int
    trouble: str = ""
    n_near_duplicates: int = 0
    ci_over: str = "rows"

    def __repr__(self) -> str:
        return (
            f"ManifoldEntropy({self.value:.2f} nats [{self.ci_low:.2f}, {self.ci_high:.2f}] at dimension "
            f"{self.dimension:.2f}, n_used={self.n_used}, "
            f"{told(self.n_duplicates, self.n_near_duplicates, self.trouble)})"
        )


def manifold_entropy(x: Any, dimension: float | None = None) -> ManifoldEntropy:
    """Return the differential entropy of the rows at their intrinsic dimension m, by Kozachenko and Leonenko.

    The estimate is psi(N) - psi(k) + log V_m + m mean log r_k, where r_k is the distance to neighbour k = 3 and V_m the
    volume of the unit ball. Entropies at different dimensions, or of rows at different scales, cannot be compared:
    multiplying all rows by c adds m log c.

    Args:
        x: Rows `(n, d)`, or their `Neighbourhoods` with at least 3 neighbours.
        dimension: The intrinsic dimension m, if it is known. By default it is estimated by TwoNN, and the interval of
            that estimate widens the interval of the entropy.

    >>> import torch
    >>> square = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> entropy = manifold_entropy(square, dimension=2)  # a unit square has entropy 0
    >>> entropy.ci_low < 0 < entropy.ci_high
    True
    """
    if dimension is not None and not 0 < dimension < math.inf:
        raise InputError(f"dimension must be positive and finite, but is {dimension}")
    around = x if isinstance(x, Neighbourhoods) else Neighbourhoods.of(x, NEIGHBOUR)
    around.check_enough("entropy", NEIGHBOUR + 1)
    if dimension is not None:
        m, m_low, m_high, trouble = dimension, dimension, dimension, ""
    else:
        estimate = intrinsic_dimension(around)
        m, m_low, m_high, trouble = estimate.value, estimate.ci_low, estimate.ci_high, estimate.trouble
    around = around.apart
    value, n, logs = entropy_at(around, m), len(around.rows), _logs(around)
    mean_log = float(logs.mean())
    low, high = _interval(around, logs, m)
    # The uncertainty of the dimension is an independent source of error, so the two add as squares.
    ends = [_entropy(mean_log, n, end) for end in (m_low, m_high) if 0 < end < math.inf]
    low = value - math.hypot(value - low, value - min(value, *ends)) if len(ends) == 2 else -math.inf
    high = value + math.hypot(high - value, max(value, *ends) - value) if len(ends) == 2 else math.inf
    return ManifoldEntropy(value, low, high, m, n, around.n_duplicates, trouble, around.n_near_duplicates)


def entropy_at(around: Neighbourhoods, dimension: float) -> float:
    """Return the entropy at a dimension alone, without its interval."""
    around = around.apart
    around.check_enough("entropy", NEIGHBOUR + 1)
    return _entropy(float(_logs(around).mean()), len(around.rows), dimension)


def _logs(around: Neighbourhoods) -> Float[Tensor, "n"]:
    """Return the logarithm of each distance to `NEIGHBOUR`, on the CPU."""
    return around.neighbours.distances[:, NEIGHBOUR - 1].cpu().log()


def _entropy(mean_log: float, n: int, m: float) -> float:
    """Return the estimate from the mean logarithm of the distance to `NEIGHBOUR` among `n` rows, at dimension m."""
    log_ball = m / 2 * math.log(math.pi) - float(scipy.special.gammaln(m / 2 + 1))
    return float(scipy.special.digamma(n) - scipy.special.digamma(NEIGHBOUR)) + log_ball + m * mean_log


def _interval(around: Neighbourhoods, logs: Float[Tensor, "n"], m: float) -> tuple[float, float]:
    """Return the ends of the 95% interval of the limit of many rows, if the dimension is m."""
    n = len(logs)
    reach = jackknife_reach_of_sum(lambda total, count: _entropy(total / count, n, m), logs, around.groups)
    size, few = around.in_parts
    value = _entropy(float(logs.mean()), n, m)
    at_few = value if few is None else _entropy(float(few[:, NEIGHBOUR - 1].log().mean()), size, m)
    return interval_at_infinity(value, at_few, n / size, m, reach)
