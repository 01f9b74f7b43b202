"""GRIDE: TwoNN with farther neighbours, which estimates the dimension at a larger scale (Denti et al. 2022)."""

import math

import numpy as np
import scipy
from jaxtyping import Float
from torch import Tensor


def gride(distances: Float[Tensor, "n k"], inner: int) -> float:
    """Return the maximum likelihood dimension, from the ratio mu of the distances to two neighbours.

    The neighbours are number 2 `inner` and number `inner`; with `inner` = 1 this is TwoNN. The density of mu at
    dimension m is m (mu^m - 1)^(a - 1) / (mu^((a + inner - 1) m + 1) B(a, inner)), where a = 2 inner - inner = inner.

    Args:
        distances: Distances `(n, k)` to at least 2 `inner` nearest neighbours, ascending.
        inner: The nearer of the two neighbours, from 1 on.

    Returns:
        The dimension; it is infinite if the two distances are equal for all rows.
    """
    logs = (distances[:, 2 * inner - 1] / distances[:, inner - 1]).log().cpu().numpy()
    total = float(logs.sum())
    if total == 0:
        return math.inf
    tied = logs == 0

    def slope(m: float) -> float:
        """Return m times the derivative of the log-likelihood; it falls from n inner at m = 0 to below 0."""
        exponent = m * logs
        # u / (1 - exp(-u)) tends to 1 at u = 0.
        pull = np.where(tied, 1.0, exponent / -np.expm1(-np.where(tied, 1.0, exponent)))
        return len(logs) + (inner - 1) * float(pull.sum()) - (2 * inner - 1) * m * total

    guess = len(logs) / total
    low, high = guess / 2, guess * 2
    while slope(low) < 0:
        low /= 2
    while slope(high) > 0:
        high *= 2
    return float(scipy.optimize.brentq(slope, low, high, xtol=1e-12 * guess))
