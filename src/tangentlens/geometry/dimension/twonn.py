"""TwoNN (Facco et al. 2017): the dimension from the ratio mu of the distances to the second and the first neighbour.

The ratio has a Pareto distribution whose exponent is the dimension. This module has three fits of that distribution.
"""

import math

import numpy as np
from jaxtyping import Float
from torch import Tensor

# The fraction of rows, those with the largest ratios, that the linear and the censored fit leave out.
DISCARD = 0.1


def twonn(distances: Float[Tensor, "n 2"]) -> float:
    """Return the maximum likelihood dimension, corrected for bias: (N - 1) / sum log mu.

    Args:
        distances: Distances `(n, 2)` to the first and the second neighbour.

    Returns:
        The dimension; it is infinite if the two distances are equal for all rows.

    >>> import torch
    >>> round(twonn(torch.tensor([[1.0, 2.0], [1.0, 2.0]])), 4)  # 1 / log 4
    0.7213
    """
    return twonn_of_sum(float(log_ratios(distances).sum()), len(distances))


def twonn_of_sum(total: float, n: int) -> float:
    """Return the same dimension from the sum of log mu over n rows."""
    return _over(n - 1, total)


def twonn_linear(distances: Float[Tensor, "n 2"]) -> float:
    """Return the dimension as the slope through the origin of -log(1 - F) over log mu, without the largest tenth.

    F = i/N is the empirical distribution function of the sorted ratios.

    Args:
        distances: Distances `(n, 2)` to the first and the second neighbour.
    """
    logs, n = log_ratios(distances).sort().values, len(distances)
    kept = int(n * (1 - DISCARD))
    # With all points, the last would be -log 0.
    x = logs[:kept].numpy()
    y = -np.log1p(-np.arange(1, kept + 1) / n)
    return _over(float(x @ y), float(x @ x))


def twonn_censored(distances: Float[Tensor, "n 2"]) -> float:
    """Return the maximum likelihood dimension with the largest tenth of the ratios censored: only their number counts.

    Args:
        distances: Distances `(n, 2)` to the first and the second neighbour.
    """
    logs, n = log_ratios(distances).sort().values, len(distances)
    kept = int(n * (1 - DISCARD))
    return _over(kept - 1, float(logs[:kept].sum() + (n - kept) * logs[kept - 1]))


def _over(numerator: float, denominator: float) -> float:
    """Return the quotient; it is infinite if the denominator is 0, because neighbours are equally far as on a grid."""
    return numerator / denominator if denominator else math.inf


def log_ratios(distances: Float[Tensor, "n 2"]) -> Float[Tensor, "n"]:
    """Return log mu of each row."""
    return (distances[:, 1] / distances[:, 0]).log().cpu()
