"""What long work says while it runs: one type for trainings, studies and sweeps."""

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """How far a task is.

    Attributes:
        task: What is being worked on, such as the name of a model.
        done: How many of `total` steps, sites or batches are done.
        total: How many there are.
        note: Anything worth showing beside it, such as the site or the loss.
    """

    task: str
    done: int
    total: int
    note: str = ""


Watch = Callable[[Progress], None]


def unwatched(progress: Progress) -> None:
    """Ignore the progress."""
