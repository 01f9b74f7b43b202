"""Early warnings: a number of the live ones that rises past a limit, or falls far below where it has been."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tangentlens.errors import InputError


@dataclass(eq=False)
class Alarm:
    """Tells when a scalar is `above` a limit, or has fallen below the share `falls_to` of its highest so far.

    Args:
        scalar: One of the lens's `scalars`, such as `anisotropy` or `intrinsic_dimension`.
        above: Warn if it is higher than this.
        falls_to: Warn if it is lower than this share of the highest value seen.

    >>> collapse = Alarm("intrinsic_dimension", falls_to=0.5)
    >>> [collapse.message({"intrinsic_dimension": value}) for value in (8.0, 10.0)]
    [None, None]
    >>> collapse.message({"intrinsic_dimension": 4.0})
    'intrinsic_dimension is 4, below 0.5 of the 10 it has been at'
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
        """What there is to warn of, or None."""
        value = scalars.get(self.scalar, math.nan)
        self.highest = max(self.highest, value) if value == value else self.highest
        if value > self.above:
            return f"{self.scalar} is {value:.3g}, above {self.above:g}"
        if value < self.falls_to * self.highest:
            return f"{self.scalar} is {value:.3g}, below {self.falls_to:g} of the {self.highest:.3g} it has been at"
        return None


def ring(
    alarms: Iterable[Alarm], scalars: Mapping[str, float], before: Mapping[str, float]
) -> tuple[dict[str, float], list[str]]:
    """Which alarms last, as `alarm/scalar` of 1 or 0, and what there is to say of those that begin.

    No measurement is no all-clear: without scalars, what was told `before` stands.
    """
    told: dict[str, float] = {}
    begun = []
    for alarm in alarms:
        name = f"alarm/{alarm.scalar}"
        message = alarm.message(scalars) if scalars else None
        told[name] = float(message is not None) if scalars else before.get(name, 0.0)
        if message is not None and not before.get(name):
            begun.append(message)
    return told, begun
