"""Alarms: warnings when a live number rises above a limit, or falls far below its highest value so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tangentlens.errors import InputError

# What it means if a scalar is above its limit, where that has a name.
_MEANS = {"massive_rows": "massive activations appeared: "}


@dataclass(eq=False)
class Alarm:
    """A warning when a scalar is above a limit, or below a fraction of its highest value so far.

    Attributes:
        scalar: One of the lens's `scalars`, such as `anisotropy` or `intrinsic_dimension`.
        above: Warn if the scalar is higher than this.
        falls_to: Warn if the scalar is lower than this fraction of its highest value so far.
        highest: The highest value so far.

    >>> collapse = Alarm("intrinsic_dimension", falls_to=0.5)
    >>> [collapse.message({"intrinsic_dimension": value}) for value in (8.0, 10.0)]
    [None, None]
    >>> collapse.message({"intrinsic_dimension": 4.0})
    'intrinsic_dimension is 4, below 0.5 times its highest value so far, 10'
    """

    scalar: str
    above: float = math.inf
    falls_to: float = 0.0
    highest: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        if self.above == math.inf and self.falls_to == 0:
            raise InputError(
                f"an alarm must have a limit, but that of {self.scalar} has none; pass above= or falls_to="
            )

    def message(self, scalars: Mapping[str, float]) -> str | None:
        """Update the highest value and return the warning, or None if there is nothing to warn of."""
        value = scalars.get(self.scalar, math.nan)
        self.highest = max(self.highest, value) if value == value else self.highest
        if value > self.above:
            return f"{_MEANS.get(self.scalar, '')}{self.scalar} is {value:.3g}, above {self.above:g}"
        if value < self.falls_to * self.highest:
            return (
                f"{self.scalar} is {value:.3g}, below {self.falls_to:g} times its highest value so far, "
                f"{self.highest:.3g}"
            )
        return None


def ring(
    alarms: Iterable[Alarm], scalars: Mapping[str, float], before: Mapping[str, float]
) -> tuple[dict[str, float], list[str]]:
    """Return the state of every alarm, and the messages of those that have just begun.

    Without its scalar, an alarm keeps its state: the absence of a measurement is no all-clear.

    Args:
        alarms: The alarms.
        scalars: The scalars of this step, as far as they could be measured.
        before: The states after the last due step.

    Returns:
        The states, 1 or 0 by `alarm/scalar`, and the messages.
    """
    states: dict[str, float] = {}
    messages = []
    for alarm in alarms:
        name = f"alarm/{alarm.scalar}"
        message = alarm.message(scalars)
        states[name] = float(message is not None) if alarm.scalar in scalars else before.get(name, 0.0)
        if message is not None and not before.get(name):
            messages.append(message)
    return states, messages
