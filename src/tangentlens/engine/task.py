"""A task, what it needs, and how it is attempted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb

from tangentlens.errors import InputError, StorageError


@dataclass(frozen=True)
class Needs:
    """What a task needs of the machine that does it.

    Attributes:
        cpus: Number of cores; on a cluster also the number of threads that PyTorch uses.
        gpus: Number of GPUs; a fraction lets several tasks share one.
        memory: Bytes of memory; 0 if that is not known.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0

    def __str__(self) -> str:
        """Return what is needed in words."""
        memory = f", {self.memory / 2**30:.1f} GiB of memory" if self.memory else ""
        return f"{self.cpus:g} cores, {self.gpus:g} GPUs{memory}"


@dataclass(frozen=True)
class Task:
    """Work that can be done anywhere, and twice without harm.

    Attributes:
        key: Its name, which no other task has.
        work: Does it. It is sent to other processes, so that it must be a function of a module, or a partial of one.
        needs: What it needs.
    """

    key: str
    work: Callable[[], None]
    needs: Needs = field(default_factory=Needs)


# Told of each task that has ended, with the reason if it failed, else an empty text.
Ended = Callable[[Task, str], None]


def attempt(work: Callable[[], None]) -> str:
    """Do the work of a task, and return why it failed, or an empty text.

    What concerns every task, such as a full disk, is raised.
    """
    try:
        work()
    except StorageError:
        raise
    except InputError as error:
        return " ".join(str(error).split())
    # A model that somebody else made may raise anything, and must not end the work on all others.
    except Exception as error:
        place = extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())
        return f"{type(error).__name__}: {said} ({Path(place.filename).name}, line {place.lineno})"
    return ""
