"""An estimate with its 95% interval: the one form in which every uncertain number is returned."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import scipy
from jaxtyping import Float
from torch import Tensor

# The largest number whose exponential is a float.
_LARGEST = math.log(sys.float_info.max)


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval.

    Attributes:
        value: The estimate; NaN if the data allow none.
        ci_low: The lower end of the interval; NaN, like the upper end, if the data allow no interval.
        ci_high: The upper end of the interval.
        ci_over: The source of variation that the interval covers, such as sequences, anchors or control draws.

    >>> Interval(0.7, 0.6, 0.8)
    0.700 [0.600, 0.800]
    """

    value: float
    ci_low: float
    ci_high: float
    ci_over: str = "sequences"

    @property
    def low(self) -> float:
        """The earlier name of `ci_low`."""
        return self.ci_low

    @property
    def high(self) -> float:
        """The earlier name of `ci_high`."""
        return self.ci_high

    def exp(self) -> Interval:
        """Return the interval of a ratio, given that of its logarithm; at most the largest float."""
        value, low, high = (math.exp(min(end, _LARGEST)) for end in (self.value, self.ci_low, self.ci_high))
        return Interval(value, low, high, self.ci_over)

    def log(self) -> Interval:
        """Return the interval of the logarithm, given that of a ratio; an end at 0 or below becomes -inf."""
        value, low, high = (_logarithm(end) for end in (self.value, self.ci_low, self.ci_high))
        return Interval(value, low, high, self.ci_over)

    def log_over(self, other: Interval) -> Interval:
        """Return ln(self / other) with the widest interval that the two allow; neither can be negative.

        >>> Interval(0.6, 0.5, 0.7).log_over(Interval(0.2, 0.1, 0.25)).exp()
        3.00 [2.00, 7.00]
        """
        one, two = self.log(), other.log()
        return Interval(one.value - two.value, one.ci_low - two.ci_high, one.ci_high - two.ci_low, self.ci_over)

    def from_log_odds(self) -> Interval:
        """Return the interval of a share, given that of its log-odds; it lies between 0 and 1."""
        value, low, high = scipy.special.expit([self.value, self.ci_low, self.ci_high]).tolist()
        return Interval(value, low, high, self.ci_over)

    def times(self, factor: float) -> Interval:
        """Return the same interval in another unit: every number is multiplied by `factor`, which may be negative.

        >>> Interval(0.7, 0.6, 0.8).times(-1)
        -0.700 [-0.800, -0.600]
        """
        low, high = sorted((self.ci_low * factor, self.ci_high * factor))
        return Interval(self.value * factor, low, high, self.ci_over)

    def minus(self, other: Interval) -> Interval:
        """Return the difference of two independent estimates, from the reach of each to either side (Newcombe 1998).

        >>> Interval(0.7, 0.6, 0.8).minus(Interval(0.3, 0.3, 0.3))
        0.400 [0.300, 0.500]
        """
        value = self.value - other.value
        low = value - math.hypot(self.value - self.ci_low, other.ci_high - other.value)
        high = value + math.hypot(self.ci_high - self.value, other.value - other.ci_low)
        return Interval(value, low, high, self.ci_over)

    def root(self, least: float = 0.0) -> Interval:
        """Return the interval of a length, given that of its square.

        Noise can make an estimated square negative, and rounding can leave up to `least` of a length that is 0: both
        become 0.
        """
        ends = (self.value, self.ci_low, self.ci_high)
        value, low, high = (math.sqrt(end) if end > least**2 else 0.0 for end in ends)
        return Interval(value, low, high, self.ci_over)

    def holding(self, other: Interval) -> Interval:
        """Return the same estimate with an interval that also contains the interval of `other`."""
        return Interval(self.value, min(self.ci_low, other.ci_low), max(self.ci_high, other.ci_high), self.ci_over)

    def columns(self) -> dict[str, Any]:
        """Return the four numbers under the names that tables and records use; ends that are not known are None."""
        low, high = (None if math.isnan(end) else end for end in (self.ci_low, self.ci_high))
        return {"value": self.value, "ci_low": low, "ci_high": high, "ci_over": self.ci_over}

    def __repr__(self) -> str:
        if math.isnan(self.value):
            return "not estimable"
        if math.isnan(self.ci_low) or math.isnan(self.ci_high):
            return f"{self.value:#.3g} (no interval)"
        return f"{self.value:#.3g} [{self.ci_low:#.3g}, {self.ci_high:#.3g}]"


def exactly(value: float) -> Interval:
    """Return a number that is known exactly, as chance is, as an interval of no length."""
    return Interval(value, value, value, "")


def _logarithm(number: float) -> float:
    return math.log(number) if number > 0 else math.nan if math.isnan(number) else -math.inf


@lru_cache(maxsize=1024)
def student(level: float, degrees: float) -> float:
    """Return the number t for which Student's law with `degrees` of freedom puts `level` between -t and t.

    >>> round(student(0.95, 10), 3)
    2.228
    """
    return float(scipy.special.stdtrit(degrees, (1 + level) / 2))


def mean_interval(values: Float[Tensor, "n"], over: str, level: float = 0.95) -> Interval:
    """Return the mean of independent values with Student's interval at `level`.

    >>> import torch
    >>> mean_interval(torch.tensor([1.0, 2.0, 3.0, 6.0]), over="batches")
    3.00 [-0.437, 6.44]
    """
    n, mean = len(values), float(values.mean())
    reach = student(level, n - 1) * float(values.std()) / math.sqrt(n)
    return Interval(mean, mean - reach, mean + reach, over)
