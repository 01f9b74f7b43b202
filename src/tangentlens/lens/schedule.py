"""When to look: schedules as data. A number (every so many steps), a list of steps, or the name of a known schedule."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Literal

from tangentlens.errors import InputError

Schedule = int | Sequence[int] | Literal["log", "pythia"]


def _is_power_of_two(step: int) -> bool:
    return step & (step - 1) == 0


# 0 counts as a power of two here: both begin before the first update.
NAMED: dict[str, Callable[[int], bool]] = {
    "log": _is_power_of_two,
    "pythia": lambda step: (step <= 512 and _is_power_of_two(step)) or step % 1000 == 0,
}


def as_schedule(every: Any) -> Schedule:
    """A schedule as it is written into a manifest; what is none is refused.

    >>> as_schedule(range(3))
    [0, 1, 2]
    """
    if isinstance(every, str) and every in NAMED:
        return every  # type: ignore[return-value]
    if not isinstance(every, bool) and isinstance(every, Integral) and int(every) >= 1:
        return int(every)
    steps = [] if isinstance(every, str) else _whole_numbers(every)
    if steps and min(steps) >= 0:
        return steps
    raise InputError(
        "every must be a whole number of at least 1, a list of steps from 0 on, or one of "
        f"{', '.join(map(repr, NAMED))}, but is {every!r}"
    )


def _whole_numbers(values: Any) -> list[int]:
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        return []


def is_due(schedule: Schedule, step: int) -> bool:
    """Whether a step is in the schedule.

    >>> [step for step in range(3001) if is_due("pythia", step)]
    [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 3000]
    """
    if isinstance(schedule, str):
        return NAMED[schedule](step)
    return step % schedule == 0 if isinstance(schedule, int) else step in schedule


def log_steps(last: int) -> list[int]:
    """A log-spaced schedule with an end: 0, 1, 2, 4, 8, ... and `last`.

    >>> log_steps(100)
    [0, 1, 2, 4, 8, 16, 32, 64, 100]
    """
    return sorted({0, last, *(2**power for power in range(last.bit_length()) if 2**power < last)})
