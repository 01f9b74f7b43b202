"""What long work says while it runs: one type for trainings, studies and sweeps."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tangentlens.runs.files import Place


class Progress(NamedTuple):
    """How far a task is.

    Attributes:
        task: What is being worked on, such as the name of a model.
        done: How many of `total` steps, sites or batches are done.
        total: How many there are.
        note: Anything worth showing beside it, such as the site or the loss.
        row: The row of a table of the task's results that has just changed, such as the name of a site.
        cells: What stands in that row, by column.
        readable: The run, if a report of it has just become possible or better.
    """

    task: str
    done: int
    total: int
    note: str = ""
    row: str = ""
    cells: Mapping[str, str] = {}
    readable: Place | None = None


Watch = Callable[[Progress], None]


def unwatched(progress: Progress) -> None:
    """Ignore the progress."""
