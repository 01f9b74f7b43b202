"""Means and ratios over the anchors of a cloud of rows, with jackknife intervals over groups of anchors."""

from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import jackknife_over

ANCHORS = "anchors"


def mean_over_anchors(values: Float[Tensor, "n"], group: Int[Tensor, "n"]) -> Interval:
    """Return the mean of one number per anchor."""
    return jackknife_over(lambda mask: float(values[mask].mean()), group, ANCHORS)


def ratio_over_anchors(above: Float[Tensor, "n"], below: Float[Tensor, "n"], group: Int[Tensor, "n"]) -> Interval:
    """Return the sum of one number per anchor divided by the sum of another."""
    return jackknife_over(lambda mask: float(above[mask].sum() / below[mask].sum()), group, ANCHORS)
