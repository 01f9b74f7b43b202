"""Means and ratios over the anchors of a cloud of rows, with jackknife intervals over groups of anchors."""

from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import jackknife_over

# What the intervals are over.
ANCHORS = "anchors"


def mean_over_anchors(values: Float[Tensor, "n"], group: Int[Tensor, "n"]) -> Interval:
    """Return the mean of one number per anchor, with its interval.

    Args:
        values: A number for each anchor `(n,)`.
        group: The group of each anchor; anchors near each other share a group.
    """
    return jackknife_over(lambda mask: float(values[mask].mean()), group, ANCHORS)


def ratio_over_anchors(above: Float[Tensor, "n"], below: Float[Tensor, "n"], group: Int[Tensor, "n"]) -> Interval:
    """Return the sum of one number per anchor divided by the sum of another, with its interval.

    Args:
        above: The numbers `(n,)` whose sum is the numerator.
        below: The numbers `(n,)` whose sum is the denominator.
        group: The group of each anchor; anchors near each other share a group.
    """
    return jackknife_over(lambda mask: float(above[mask].sum() / below[mask].sum()), group, ANCHORS)
