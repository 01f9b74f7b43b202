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

    def columns(self) -> dict[str, Any]:
        """As tables and records name them."""
        return {"value": self.value, "ci_low": self.low, "ci_high": self.high, "ci_over": self.over}

    def __repr__(self) -> str:
        return f"{self.value:#.3g} [{self.low:#.3g}, {self.high:#.3g}]"
