"""The command for reports: one HTML file of one or several runs, and figures for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tangentlens.cli.commands import app
from tangentlens.cli.making import tell, write
from tangentlens.cli.options import Json, Quiet
from tangentlens.report.export import export_figures
from tangentlens.runs.files import Place, as_place
from tangentlens.runs.remote import Remote
from tangentlens.runs.run import runs_in
from tangentlens.studies import SECTIONS


@app.command(epilog="Example: tangentlens report runs/demo --figures figures --format pdf,svg")
def report(
    runs: Annotated[list[str], typer.Argument(help="Run directories or URLs; several are drawn together.")],
    out: Annotated[
        str | None,
        typer.Option(help="The HTML file; report.html in the run by default, and for several runs report-A-B.html."),
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Also write every figure into this folder.")] = None,
    formats: Annotated[str, typer.Option("--format", help="Formats of the figures: pdf, svg, png.")] = "pdf",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML file, and print the findings."""
    places = [as_place(path) for path in runs]
    found = [run for path in places for run in runs_in(path)]
    page = write(*found, out=_file(places) if out is None else as_place(out))
    files = [] if figures is None else export_figures(found, figures, SECTIONS, formats.split(","))
    tell(page, places, quiet, as_json, files)


def _file(places: Sequence[Place]) -> Place:
    """Return where the report of runs goes: into the run or the folder of runs; that of several beside the first."""
    first = places[0]
    if len(places) == 1:
        return first / "report.html"
    beside = first if isinstance(first, Remote) else first.absolute()
    return beside.with_name(f"report-{'-'.join(place.name for place in places[:4])}.html")
