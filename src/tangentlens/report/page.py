"""One self-contained HTML file: findings, table, figures, and how it was made. It needs no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import plotly
import plotly.io
import polars as pl

from tangentlens.errors import InputError
from tangentlens.report.figures import draw_all
from tangentlens.report.findings import Finding, findings
from tangentlens.report.reading import read_runs
from tangentlens.report.tables import VISIBILITY, controls_table, profile_table, share_table, visibility_table
from tangentlens.runs.files import make_directory, write_whole
from tangentlens.runs.run import Run


@dataclass(frozen=True)
class Table:
    """A table with what its entries are."""

    title: str
    frame: pl.DataFrame


@dataclass(frozen=True)
class Report:
    """Where the page is, and what it says."""

    path: Path
    findings: list[Finding]
    tables: list[Table]


def write_report(runs: Sequence[Run], out: Path) -> Report:
    """Draw what the runs hold into the file `out`."""
    records = read_runs(runs)
    if records.is_empty():
        raise InputError(f"{', '.join(str(run.path) for run in runs)} must hold records, but nothing was measured yet")
    if out.is_dir():
        raise InputError(f"the report must be a file, but {out} is a folder; name a file in it, such as report.html")
    make_directory(out.parent)
    tables = [
        Table("Share of the gradient, mean over sites; 95% intervals over sequences", share_table(records)),
        Table("Energy share by site, beside every control; p-values corrected over sites", controls_table(records)),
        *(
            Table(f"{model}, site by site: mean ± standard deviation over batches", frame.drop("model"))
            for (model,), frame in profile_table(records).group_by(["model"], maintain_order=True)
        ),
        *(
            Table(f"{model}: {VISIBILITY}", frame.drop("model"))
            for (model,), frame in visibility_table(records).group_by(["model"], maintain_order=True)
        ),
    ]
    report = Report(out, findings(records), [table for table in tables if table.frame.height])
    write_whole(out, _page(runs, records, report).encode())
    return report


def _page(runs: Sequence[Run], records: pl.DataFrame, report: Report) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tangentlens", "report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.jinja").render(
        title=", ".join(run.name for run in runs),
        findings=report.findings,
        tables=report.tables,
        figures=[(figure.title, figure.caption, _div(figure.plot, i)) for i, figure in enumerate(draw_all(records))],
        manifests=[(run.name, json.dumps(run.manifest, indent=2)) for run in runs],
        plotly_js=plotly.offline.get_plotlyjs(),
    )


def _div(plot: plotly.graph_objects.Figure, number: int) -> str:
    return plotly.io.to_html(
        plot,
        full_html=False,
        include_plotlyjs=False,
        div_id=f"figure-{number}",
        config={"displaylogo": False, "responsive": True, "modeBarButtons": [["toImage", "zoom2d", "resetScale2d"]]},
    )
