"""Influence: how much of a number a few observations hold, and how many observations there are in effect."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError

# The fraction of the observations whose part of a number is reported.
TOP = 0.01
# If that fraction holds more than this part of a number, it decides the number.
DECIDES = 0.5


def held_by_top(contributions: Float[Tensor, "n"], fraction: float = TOP) -> float:
    """Return the part of a sum that its largest contributions hold, between 0 and 1; NaN if the sum is not positive.

    If all contributions are alike, it is `fraction`, or 1 / n if there are fewer than 1 / `fraction` of them.

    Args:
        contributions: The contribution of each observation. A negative one counts as 0, so that the part that others
            hold never exceeds 1.
        fraction: Which fraction of the observations is meant by the largest; at least one of them.

    >>> round(held_by_top(torch.tensor([97.0] + [1.0] * 99)), 4)
    0.4949
    """
    if not 0 < fraction <= 1:
        raise InputError(f"fraction must be above 0 and at most 1, but is {fraction}; 0.01 is usual")
    held = contributions.double().clamp_min(0)
    total = float(held.sum())
    if not total > 0:
        return math.nan
    # The small difference keeps a product such as 0.07 * 100 = 7.000000000000001 from counting one more.
    count = max(1, math.ceil(fraction * len(held) - 1e-9))
    return float(torch.topk(held, count).values.sum()) / total


def effective_number(weights: Float[Tensor, "n"]) -> float:
    """Return how many observations of equal weight would count as much: (sum w)^2 / sum w^2; NaN if all weights are 0.

    Args:
        weights: The weight of each observation, such as its energy; none is negative.

    >>> effective_number(torch.tensor([1.0, 1.0, 1.0, 0.0]))
    3.0
    """
    # Most often there are a few weights, for which torch takes several times as long.
    held = weights.double().numpy(force=True)
    largest = held.max(initial=0.0)
    if not largest > 0:
        return math.nan
    # At unit scale, so that squares neither overflow nor vanish.
    unit = held / largest
    return float(unit.sum() ** 2 / (unit @ unit))
