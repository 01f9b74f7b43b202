"""The one error for input that cannot be used. Anything else that is raised is a bug."""

from numbers import Integral
from typing import Any


class InputError(ValueError):
    """The error for input that cannot be used; its message says what must hold, what came, and what to do."""


def check_whole(least: int, **settings: Any) -> None:
    """Raise if a setting is not a whole number of at least `least`.

    Args:
        least: The smallest value that is allowed.
        **settings: The values by name, as the error shall call them.
    """
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise InputError(f"{name} must be a whole number of at least {least}, but is {value!r}")
