"""One self-contained HTML file: findings, tables, figures, and how they were made. It needs no network."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jinja2
import plotly
import polars as pl

from tangentlens.errors import InputError
from tangentlens.report.contents import Figure, Finding, Section, Table, draw, find, key_figures, tabulate
from tangentlens.report.drawing import evenly_spaced
from tangentlens.report.reading import LEGEND, marked, read_runs
from tangentlens.runs.files import Place, make_directory, write_whole
from tangentlens.runs.remote import Remote
from tangentlens.runs.run import Run

# A title of more characters than this, which many networks make, is no heading.
_HEADING = 240
# The key figures of at most so many models are shown.
_MODELS = 4


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


@dataclass(frozen=True)
class Chapter:
    """What a page says about one question.

    Attributes:
        question: The question.
        findings: Sentences.
        tables: Tables.
        figures: Figures, but for the one that the page begins with.
    """

    question: str
    findings: list[Finding]
    tables: list[Table]
    figures: list[Figure]


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
    chapters = [_chapter(section, records) for section in sections]
    legend = LEGEND if records["decided"].any() else ""
    tables = [table for chapter in chapters for table in chapter.tables]
    # Sentences about one model stand together.
    models = list(records.select("run", "model").unique(maintain_order=True).iter_rows())
    findings = [finding for chapter in chapters for finding in chapter.findings]
    findings.sort(key=lambda finding: models.index((finding.run, finding.model)))
    report = Report(out, findings, tables, legend)
    write_whole(out, _page(title, runs, records, sections, chapters, legend).encode())
    return report


def _chapter(section: Section, records: pl.DataFrame) -> Chapter:
    one = [section]
    return Chapter(section.question, find(one, records), tabulate(one, records), draw(one, records))


def _page(
    title: str,
    runs: Sequence[Run],
    records: pl.DataFrame,
    sections: Sequence[Section],
    chapters: Sequence[Chapter],
    legend: str,
) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tangentlens", "report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"spark": spark, "spec": _spec, "words": _words}
    figures = [figure for chapter in chapters for figure in chapter.figures]
    pairs = zip(sections, chapters, strict=True)
    models = key_figures(sections, records)
    return environment.get_template("page.html.jinja").render(
        title=title or ", ".join(run.name for run in runs),
        about=_about(records, runs),
        models=models[:_MODELS],
        n_models=len(models),
        story=figures[0] if figures else None,
        chapters=[chapter for chapter in chapters if chapter.findings or chapter.tables or chapter.figures],
        missing=[section for section, chapter in pairs if not (chapter.tables or chapter.figures or chapter.findings)],
        legend=legend,
        several=len(runs) > 1,
        manifests=[(run.name, json.dumps(run.manifest, indent=2)) for run in runs],
        plotly_js=plotly.offline.get_plotlyjs(),
    )


def _about(records: pl.DataFrame, runs: Sequence[Run]) -> str:
    """Return what was run, in one line."""
    made = ", ".join(dict.fromkeys(run.manifest["made_by"] for run in runs))
    models = records["model"].unique(maintain_order=True).to_list()
    named = ", ".join(models[:4]) + (f" and {len(models) - 4} more" if len(models) > 4 else "")
    steps = records.filter(pl.col("site") != "")["step"].unique().sort()
    when = f"{len(steps)} measured steps, {steps[0]} to {steps[-1]}" if len(steps) > 1 else ""
    sites = records.filter(pl.col("depth").is_not_null())["site"].n_unique()
    created = min(str(run.manifest.get("created", ""))[:10] for run in runs)
    told = [f"{made}: {named}", when, f"{sites} site{'s' * (sites != 1)}" if sites else "", created]
    return "; ".join(part for part in told if part)


def spark(course: Sequence[tuple[int, float]]) -> str:
    """Return the points of a small line over training, in a box of 120 by 28, as SVG takes them."""
    steps, values = [step for step, _ in course], [value for _, value in course]
    places = steps if evenly_spaced(steps) else [math.log(step + 1) for step in steps]
    low, high = min(values), max(values)
    x = [120 * (place - places[0]) / ((places[-1] - places[0]) or 1) for place in places]
    y = [26 - 24 * (value - low) / ((high - low) or 1) for value in values]
    return " ".join(f"{one:.1f},{other:.1f}" for one, other in zip(x, y, strict=True))


def _spec(plot: plotly.graph_objects.Figure) -> str:
    """Return a figure as JSON that may stand in a script; the page has one template for all."""
    return str(plot.update_layout(template="none").to_json()).replace("<", "\\u003c")


def _words(figure: Figure) -> tuple[str, str]:
    """Return the heading and the caption of a figure; what makes a heading too long, after its colon, is caption."""
    about, _, numbers = figure.title.partition(": ")
    if len(figure.title) <= _HEADING or not numbers:
        return figure.title, figure.caption
    return about, f"{figure.caption} In numbers: {numbers}."
