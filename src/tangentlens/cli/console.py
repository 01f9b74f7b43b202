"""What the terminal shows: progress bars, tables and errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby

import polars as pl
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from tangentlens.report.page import Report
from tangentlens.runs.files import Place
from tangentlens.runs.progress import Progress, Watch

# Columns up to this width are short, as numbers with their intervals are. All others together need at least the second.
_SHORT, _REST = 28, 40
# Reports of a run that is not finished may take this part of the time.
_REPORTING = 0.05


@contextmanager
def progress_bars(hidden: bool, readable: Callable[[Place], object] = lambda run: None) -> Iterator[Watch]:
    """Yield what draws one bar per task, and under them the results of the present one, as they come.

    Args:
        hidden: Whether to draw nothing.
        readable: Called with a run of which a report has just become possible or better; seldom if it takes long.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    bars, results, show = Bars(*columns, console=console), _Results(), _Seldom(readable)
    tasks: dict[str, TaskID] = {}

    def watch(progress: Progress) -> None:
        if progress.task not in tasks:
            tasks[progress.task] = bars.add_task(escape(progress.task), total=progress.total, note="")
        bars.update(tasks[progress.task], completed=progress.done, total=progress.total, note=escape(progress.note))
        results.add(progress)
        if progress.readable is not None:
            show(progress.readable)

    if hidden:
        yield watch
        return
    if not console.is_terminal:
        # Where nobody watches, the final bars are printed, and no table.
        with bars:
            yield watch
        return
    with Live(Group(bars, results), console=console, refresh_per_second=4, vertical_overflow="crop"):
        try:
            yield watch
        finally:
            # The report prints the same table.
            results.rows.clear()


class _Seldom:
    """Calls something the first time, and then only as often as leaves most of the time to everything else."""

    def __init__(self, call: Callable[[Place], object]) -> None:
        self.call, self.next = call, 0.0

    def __call__(self, run: Place) -> None:
        """Call it, unless it is too early."""
        start = time.monotonic()
        if start >= self.next:
            self.call(run)
            end = time.monotonic()
            self.next = end + (end - start) / _REPORTING


class _Results:
    """The table of the results of the present task, which fills up."""

    def __init__(self) -> None:
        self.task = ""
        self.rows: dict[str, Mapping[str, str]] = {}

    def add(self, progress: Progress) -> None:
        """Take the row that has changed, if one has."""
        if progress.task != self.task:
            self.task = progress.task
            self.rows.clear()
        if progress.row:
            self.rows[progress.row] = progress.cells

    def __rich__(self) -> Table | str:
        if not self.rows:
            return ""
        table = Table(title=escape(self.task), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        names = list(dict.fromkeys(name for cells in self.rows.values() for name in cells))
        for name in ("", *names):
            table.add_column(name)
        for row, cells in self.rows.items():
            table.add_row(escape(row), *(cells.get(name, "") for name in names))
        return table


def print_table(console: Console, title: str, frame: pl.DataFrame) -> None:
    """Print a table; the run is a column only if there are several.

    If long texts would be squeezed beside many columns, each row is a paragraph instead.
    """
    shown = frame if "run" in frame.columns and frame["run"].n_unique() > 1 else frame.drop("run", strict=False)
    cells = [[escape(str(cell)) for cell in row] for row in shown.iter_rows()]
    widths = [max(map(len, column)) for column in zip(shown.columns, *cells, strict=True)]
    short = [width for width in widths if width <= _SHORT]
    if len(short) < len(widths) and sum(short) + 3 * len(short) > console.width - _REST:
        console.print(f"[italic]{escape(title)}[/italic]")
        for first, *others in cells:
            told = (f"{name} {cell}" for name, cell in zip(shown.columns[1:], others, strict=True) if cell)
            console.print(f"\n[bold]{first}[/bold]")
            console.print(Padding("; ".join(told), (0, 0, 0, 4)))
        console.print()
        return
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in shown.columns:
        table.add_column(name, overflow="fold")
    for row in cells:
        table.add_row(*row)
    console.print(table)


def print_report(console: Console, page: Report) -> None:
    """Print what a report says: its tables but the long ones, the findings of each model, and what the marks mean."""
    for table in page.tables:
        if not table.on_page_only:
            print_table(console, table.title, table.frame)
    for (run, model), sentences in groupby(page.findings, key=lambda finding: (finding.run, finding.model)):
        console.print(f"\n[bold]{escape(model)}[/bold] ({escape(run)})")
        bullets = Table.grid(padding=(0, 1))
        for finding in sentences:
            bullets.add_row(" •", escape(finding.text))
        console.print(bullets)
    if page.legend:
        console.print(f"\n{page.legend}")
