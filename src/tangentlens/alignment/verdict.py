"""What a series of intervals allows to be said."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Emergence:
    """From which step an effect holds for good, and how often it held after it was first seen."""

    step: int | None
    held: int
    later: int


def emergence(steps: Sequence[int], lows: Sequence[float]) -> Emergence:
    """First step from which the lower end stays above 0; and of the steps since it was first above 0, how many are.

    >>> emergence([0, 1, 2, 4, 8], [-0.1, 0.2, -0.1, 0.3, 0.4])
    Emergence(step=4, held=3, later=4)
    """
    above = [low > 0 for low in lows]
    if not any(above):
        return Emergence(None, 0, 0)
    since = above[above.index(True) :]
    trailing = next((i for i, held in enumerate(reversed(above)) if not held), len(above))
    return Emergence(steps[len(steps) - trailing] if trailing else None, sum(since), len(since))
