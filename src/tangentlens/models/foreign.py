"""Failures of code that others wrote: of a model, or of what loads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tangentlens.errors import InputError
from tangentlens.models.memory import is_out_of_memory


@contextmanager
def explained(tell: Callable[[str], InputError]) -> Iterator[None]:
    """Make an error of input of whatever is raised, unless memory ran out.

    Args:
        tell: Makes the error, given the reason in one line.
    """
    try:
        yield
    except InputError:
        raise
    # A model, and transformers for a broken or unusual repository, may raise any exception.
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise tell(reason[:300]) from error
