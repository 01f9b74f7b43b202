"""TwoNN: the ratio of the distances to the second and the first neighbour is Pareto with the dimension as exponent.

Facco et al. 2017. Three fits of that law to the ratios mu.
"""

import math

import numpy as np
from jaxtyping import Float
from torch import Tensor

# What the linear fit and the censored likelihood leave out: the largest ratios.
DISCARD = 0.1


def twonn(distances: Float[Tensor, "n 2"]) -> float:
    """Maximum likelihood without bias, (N - 1) / sum log mu.

    >>> import torch
    >>> round(twonn(torch.tensor([[1.0, 2.0], [1.0, 2.0]])), 4)  # 1 / log 4
    0.7213
    """
    return _over(len(distances) - 1, float(_logs(distances).sum()))


def twonn_linear(distances: Float[Tensor, "n 2"]) -> float:
    """Slope through the origin of -log(1 - F) over log mu, where F = i/N, without the largest tenth."""
    logs, n = _logs(distances).sort().values, len(distances)
    kept = int(n * (1 - DISCARD))
    # The last point of all would be -log 0.
    x = logs[:kept].numpy()
    y = -np.log1p(-np.arange(1, kept + 1) / n)
    return _over(float(x @ y), float(x @ x))


def twonn_censored(distances: Float[Tensor, "n 2"]) -> float:
    """Maximum likelihood if of the largest tenth only their number is known."""
    logs, n = _logs(distances).sort().values, len(distances)
    kept = int(n * (1 - DISCARD))
    return _over(kept - 1, float(logs[:kept].sum() + (n - kept) * logs[kept - 1]))


def _over(numerator: float, denominator: float) -> float:
    """Their ratio; neighbours that are all equally far, as on a grid, bound no dimension."""
    return numerator / denominator if denominator else math.inf


def _logs(distances: Float[Tensor, "n 2"]) -> Float[Tensor, "n"]:
    return (distances[:, 1] / distances[:, 0]).log().cpu()
