"""The one error that means: what you gave cannot be used. Everything else that is raised is a bug."""

from numbers import Integral
from typing import Any


class InputError(ValueError):
    """What must hold, what came instead, and what to do about it, in one line."""


def check_whole(least: int, **settings: Any) -> None:
    """Whole numbers of at least `least`."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise InputError(f"{name} must be a whole number of at least {least}, but is {value!r}")
