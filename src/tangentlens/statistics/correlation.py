"""Rank correlations, also given a third number, with intervals over networks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy

from tangentlens.statistics.interval import Interval

Numbers = Sequence[float] | np.ndarray

# The fewest observations of which a correlation says anything: with three, a partial one is always 1 or -1.
LEAST = 5
# A correlation of 1 would be infinite on the scale on which intervals are computed.
_MOST = 1 - 1e-9


def spearman(x: Numbers, y: Numbers) -> float:
    """Return Spearman's rank correlation; NaN if one of the two never changes.

    >>> round(spearman([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 4.0, 9.0, 16.0, 3.0]), 3)
    0.4
    """
    first, second = _ranks(x), _ranks(y)
    if len(first) < 2 or not np.ptp(first) or not np.ptp(second):
        return math.nan
    return float(np.corrcoef(first, second)[0, 1])


def partial_spearman(x: Numbers, y: Numbers, given: Numbers) -> float:
    """Return the rank correlation of two numbers among observations with equal ranks of a third.

    It is the correlation of what is left of the ranks of both after a linear regression on the ranks of the third; NaN
    if nothing is left of one of them.

    >>> x, loss = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 3.0, 2.0, 5.0, 4.0]
    >>> round(partial_spearman(x, loss, loss), 3)
    nan
    """
    direct, own, other = spearman(x, y), spearman(x, given), spearman(y, given)
    left = (1 - own**2) * (1 - other**2)
    return (direct - own * other) / math.sqrt(left) if left > 1e-12 else math.nan


def with_interval(x: Numbers, y: Numbers, given: Numbers | None = None) -> Interval | None:
    """Return a rank correlation across independent observations with its 95% interval; None if they are too few.

    On the scale of Fisher's z, Spearman's correlation has about the variance 1.06 / (n - 3) (Fieller, Hartley and
    Pearson, 1957); a third number takes one more observation. Steps of one training are not independent: pass one
    observation of each network.

    Args:
        x: One number of each observation.
        y: The other.
        given: A third number, if the correlation is to be that given this number.
    """
    n = len(x) - (given is not None)
    found = spearman(x, y) if given is None else partial_spearman(x, y, given)
    if n < LEAST or not math.isfinite(found):
        return None
    z = math.atanh(max(-_MOST, min(_MOST, found)))
    reach = float(scipy.special.ndtri(0.975)) * math.sqrt(1.06 / (n - 3))
    return Interval(found, math.tanh(z - reach), math.tanh(z + reach), "networks")


def _ranks(values: Numbers) -> np.ndarray:
    """Return the rank of each value; equal ones share the mean of theirs."""
    given = np.asarray(values, dtype=float)
    _, index, counts = np.unique(given, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    return (ends - (counts - 1) / 2)[index]
