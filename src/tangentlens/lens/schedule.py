"""Schedules: when to measure. A schedule is a number n (every n steps), a list of steps, or a name."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Literal

from tangentlens.errors import InputError

Schedule = int | Sequence[int] | Literal["log", "pythia"]


def _is_power_of_two(step: int) -> bool:
    """Return whether a step is 0 or a power of two."""
    return step & (step - 1) == 0


# 0 counts as a power of two here, so both schedules begin before the first update.
NAMED: dict[str, Callable[[int], bool]] = {
    "log": _is_power_of_two,
    "pythia": lambda step: (step <= 512 and _is_power_of_two(step)) or step % 1000 == 0,
}


def as_schedule(every: Any) -> Schedule:
    """Return a schedule in the form in which it is written to a manifest, or raise if it is not a schedule.

    Args:
        every: A whole number, an iterable of steps, or a name in `NAMED`.

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
        f"{', '.join(map(repr, NAMED))}, but is {every!r}; choose one of these"
    )


def _whole_numbers(values: Any) -> list[int]:
    """Return the values as whole numbers; an empty list if that is not possible."""
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        return []


def is_due(schedule: Schedule, step: int) -> bool:
    """Return whether a step is in the schedule.

    >>> [step for step in range(3001) if is_due("pythia", step)]
    [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 3000]
    """
    if isinstance(schedule, str):
        return NAMED[schedule](step)
    return step % schedule == 0 if isinstance(schedule, int) else step in schedule


def log_steps(last: int) -> list[int]:
    """Return a log-spaced schedule with an end: 0, 1, 2, 4, 8, ... and `last`.

    >>> log_steps(100)
    [0, 1, 2, 4, 8, 16, 32, 64, 100]
    """
    return sorted({0, last, *(2**power for power in range(last.bit_length()))})
