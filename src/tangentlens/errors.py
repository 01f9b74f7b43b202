"""The errors for input that cannot be used. Anything else that is raised is a bug."""

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral
from typing import Any


class InputError(ValueError):
    """The error for input that cannot be used; its message says what must hold, what came, and what to do."""


class StorageError(InputError):
    """The error for results that cannot be written, as on a full disk: whatever else is measured would be lost too."""


class MissingExtra(InputError, ImportError):
    """The error for a feature whose optional package is not installed; its message names the extra that installs it."""


def check_whole(least: int, **settings: Any) -> None:
    """Raise if a setting is not a whole number of at least `least`.

    Args:
        least: The smallest value that is allowed.
        **settings: The values by name, as the error shall call them.
    """
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise InputError(f"{name} must be a whole number of at least {least}, but is {value!r}")


def check_name(what: str, name: str, known: Iterable[str]) -> None:
    """Raise if a name is not known, with the known name that is nearest to it.

    Args:
        what: What the name is of, as the error shall call it.
        name: The name.
        known: All names.
    """
    known = list(known)
    if name not in known:
        near = get_close_matches(name, known, n=1)
        instead = f"did you mean {near[0]}?" if near else "choose one of these"
        raise InputError(f"{what} must be one of {', '.join(known)}, but is {name!r}; {instead}")
