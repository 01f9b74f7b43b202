"""An estimate and how sure one can be of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval, and what varies behind that interval."""

    value: float
    low: float
    high: float
    over: str = "sequences"

    def exp(self) -> Interval:
        """The interval of a ratio, from that of its logarithm."""
        return Interval(math.exp(self.value), math.exp(self.low), math.exp(self.high), self.over)

    def from_log_odds(self) -> Interval:
        """The interval of a share, from that of its log-odds; it lies between 0 and 1."""
        value, low, high = torch.tensor([self.value, self.low, self.high], dtype=torch.float64).sigmoid().tolist()
        return Interval(value, low, high, self.over)

    def times(self, factor: float) -> Interval:
        """In units of which the old one has `factor`."""
        return Interval(self.value * factor, self.low * factor, self.high * factor, self.over)

    def root(self, least: float = 0.0) -> Interval:
        """The interval of a length from that of its square; noise may leave less than 0, and rounding `least`."""
        ends = (self.value, self.low, self.high)
        value, low, high = (math.sqrt(end) if end > least**2 else 0.0 for end in ends)
        return Interval(value, low, high, self.over)

    def holding(self, other: Interval) -> Interval:
        """The same estimate, with an interval that holds the other's as well."""
        return Interval(self.value, min(self.low, other.low), max(self.high, other.high), self.over)

    def columns(self) -> dict[str, Any]:
        """As tables and records name them."""
        return {"value": self.value, "ci_low": self.low, "ci_high": self.high, "ci_over": self.over}

    def __repr__(self) -> str:
        return f"{self.value:#.3g} [{self.low:#.3g}, {self.high:#.3g}]"
