"""Emergence: from which training step on an effect holds."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Emergence:
    """When an effect appears, and how persistent it is.

    It holds at a step where its interval lies above 0. At other steps it is not shown, which is not the same as absent.

    Attributes:
        step: The first step from which the effect holds at every later step; None if there is none.
        held: At how many of the `later` steps it holds.
        later: The number of steps from the first one at which it holds.
    """

    step: int | None
    held: int
    later: int


def emergence(steps: Sequence[int], lows: Sequence[float]) -> Emergence:
    """Return the first step from which the lower end of the interval stays above 0, and how often it does later.

    >>> emergence([0, 1, 2, 4, 8], [-0.1, 0.2, -0.1, 0.3, 0.4])
    Emergence(step=4, held=3, later=4)
    """
    above = [low > 0 for low in lows]
    if not any(above):
        return Emergence(None, 0, 0)
    since = above[above.index(True) :]
    trailing = next((i for i, held in enumerate(reversed(above)) if not held), len(above))
    return Emergence(steps[len(steps) - trailing] if trailing else None, sum(since), len(since))
