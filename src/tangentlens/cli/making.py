"""What commands have in common: the run of a plan is made, with its progress on the terminal, and reported."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from tangentlens.cli.console import print_report, progress_bars
from tangentlens.report.contents import Section
from tangentlens.report.page import Report, write_report
from tangentlens.runs.files import Place
from tangentlens.runs.run import Run, open_run
from tangentlens.studies import JOBS, SECTIONS


def make_run(study: str, plan: object, out: str | None, hidden: bool, given: object = None) -> Run:
    """Make the run of a plan in a folder or at a URL; `given` is what else the job takes."""
    with progress_bars(hidden, _write_while_it_runs) as watch:
        return JOBS[study].run(plan, out, watch, given)


def write(*runs: Run, out: Place | None = None, title: str = "", sections: Sequence[Section] = SECTIONS) -> Report:
    """Write the report of runs to a file, by default in the first run; `sections` is what it may say."""
    return write_report(runs, out or runs[0].path / "report.html", sections, title)


def run_and_report(study: str, plan: object, out: str | None, quiet: bool, as_json: bool, given: object = None) -> None:
    """Make the run of a plan, and print its report; `given` is what else the job takes."""
    run = make_run(study, plan, out, quiet or as_json, given)
    tell(write(run), [run.path], quiet, as_json)


def tell(page: Report, runs: Sequence[Place], quiet: bool, as_json: bool, files: Sequence[Path] = ()) -> None:
    """Print a report that was written, and where it is; `files` are others that were written."""
    if as_json:
        told = {
            "runs": [str(path) for path in runs],
            "report": str(page.path),
            "files": [str(path) for path in files],
            "findings": [asdict(finding) for finding in page.findings],
            "tables": [{"title": table.title, "rows": table.frame.to_dicts()} for table in page.tables],
        }
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    elif not quiet:
        console = Console(highlight=False)
        print_report(console, page)
        console.print(f"\nRun:    {', '.join(str(path) for path in runs)}\nReport: {page.path}", soft_wrap=True)
        if files:
            console.print(f"Files:  {len(files)} in {files[0].parent}", soft_wrap=True)


def _write_while_it_runs(path: Place) -> None:
    """Write the report of a run that is being made; at a URL, where all records would be fetched, only the last."""
    if isinstance(path, Path):
        write(open_run(path))
