"""One self-contained HTML file: findings, tables, figures, and how they were made. It needs no network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jinja2
import plotly
import plotly.io

from tangentlens.errors import InputError
from tangentlens.report.contents import Figure, Finding, Section, Table, draw, find, tabulate
from tangentlens.report.reading import LEGEND, marked, read_runs
from tangentlens.runs.files import Place, make_directory, write_whole
from tangentlens.runs.remote import Remote
from tangentlens.runs.run import Run

# A title of more characters than this, which many networks make, is no heading.
_HEADING = 240


@dataclass(frozen=True)
class Report:
    """A written report.

    Attributes:
        path: The HTML file, in a folder or at a URL.
        findings: Its sentences.
        tables: Its tables.
        legend: What the mark of numbers that a few rows decide means; empty if no number has it.
    """

    path: Place
    findings: list[Finding]
    tables: list[Table]
    legend: str


def write_report(runs: Sequence[Run], out: Place, sections: Iterable[Section], title: str = "") -> Report:
    """Write what the runs hold into the file `out`.

    Args:
        runs: The runs, drawn together.
        out: The HTML file.
        sections: What the report may say; a section for which the runs hold no records is left out.
        title: The title of the page; empty for the names of the runs.
    """
    records = marked(read_runs(runs))
    if records.is_empty():
        raise InputError(f"{', '.join(str(run.path) for run in runs)} must hold records, but nothing was measured yet")
    if not isinstance(out, Remote) and out.is_dir():
        raise InputError(f"the report must be a file, but {out} is a folder; name a file in it, such as report.html")
    make_directory(out.parent)
    sections = tuple(sections)
    legend = LEGEND if records["decided"].any() else ""
    report = Report(out, find(sections, records), tabulate(sections, records), legend)
    write_whole(out, _page(title, runs, report, draw(sections, records)).encode())
    return report


def _page(title: str, runs: Sequence[Run], report: Report, figures: list[Figure]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tangentlens", "report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.jinja").render(
        title=title or ", ".join(run.name for run in runs),
        findings=report.findings,
        tables=report.tables,
        legend=report.legend,
        figures=[(*_words(figure), _div(figure.plot, i)) for i, figure in enumerate(figures)],
        manifests=[(run.name, json.dumps(run.manifest, indent=2)) for run in runs],
        plotly_js=plotly.offline.get_plotlyjs(),
    )


def _words(figure: Figure) -> tuple[str, str]:
    """Return the heading and the caption of a figure; what makes a heading too long, after its colon, is caption."""
    about, _, numbers = figure.title.partition(": ")
    if len(figure.title) <= _HEADING or not numbers:
        return figure.title, figure.caption
    return about, f"{figure.caption} In numbers: {numbers}."


def _div(plot: plotly.graph_objects.Figure, number: int) -> str:
    return plotly.io.to_html(
        plot,
        full_html=False,
        include_plotlyjs=False,
        div_id=f"figure-{number}",
        config={"displaylogo": False, "responsive": True, "modeBarButtons": [["toImage", "zoom2d", "resetScale2d"]]},
    )
