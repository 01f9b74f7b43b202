"""What commands have in common: the run of a plan is made, with its progress on the terminal, and reported."""

from __future__ import annotations

from pathlib import Path

from tangentlens.cli.console import progress_bars
from tangentlens.report.page import Report, write_report
from tangentlens.runs.files import Place
from tangentlens.runs.run import Run, open_run
from tangentlens.studies import JOBS, SECTIONS


def make_run(study: str, plan: object, out: str | None, hidden: bool, given: object = None) -> Run:
    """Make the run of a plan in a folder or at a URL; `given` is what else the job takes."""
    with progress_bars(hidden, _write_while_it_runs) as watch:
        return JOBS[study].run(plan, out, watch, given)


def write(*runs: Run, out: Place | None = None, title: str = "") -> Report:
    """Write the report of runs to a file, by default in the first run."""
    return write_report(runs, out or runs[0].path / "report.html", SECTIONS, title)


def _write_while_it_runs(path: Place) -> None:
    """Write the report of a run that is being made; at a URL, where all records would be fetched, only the last."""
    if isinstance(path, Path):
        write(open_run(path))
