"""One HTML page: findings, tables, figures, and how they were made. As a file, it needs no network."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from warnings import WarningMessage

import jinja2
import plotly
import polars as pl

from tangentlens.errors import InputError
from tangentlens.report.contents import Figure, Finding, Section, Table, draw, find, key_figures, tabulate
from tangentlens.report.cost import costs
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

    @property
    def is_empty(self) -> bool:
        """Whether the runs hold no records for it."""
        return not (self.findings or self.tables or self.figures)


@dataclass(frozen=True)
class Live:
    """What a page has that follows its runs while they grow. A page in a file has none of this.

    Attributes:
        version: The version of what it shows, as the server compares it.
        nonce: What scripts must carry to be run: names from outside cannot know it.
        root: The address of the server's first page, from this one.
        is_one_of_many: Whether there is a list of runs to go back to.
        warned: Warnings, among them those that come while the runs are read.
    """

    version: str
    nonce: str
    root: str
    is_one_of_many: bool = False
    warned: Sequence[WarningMessage] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """The text of a page, and what it says.

    Attributes:
        text: The HTML.
        findings: Its sentences, model by model.
        tables: Its tables.
        legend: What the mark of numbers that a few rows decide means; empty if no number has it.
    """

    text: str
    findings: list[Finding]
    tables: list[Table]
    legend: str


class NothingMeasuredError(InputError):
    """The error for runs that hold no records yet."""


def write_report(runs: Sequence[Run], out: Place, sections: Iterable[Section], title: str = "") -> Report:
    """Write what the runs hold into the file `out`.

    Args:
        runs: The runs, drawn together.
        out: The HTML file.
        sections: What the report may say; a section for which the runs hold no records is left out.
        title: The title of the page; empty for the names of the runs.
    """
    if not isinstance(out, Remote) and out.is_dir():
        raise InputError(f"the report must be a file, but {out} is a folder; name a file in it, such as report.html")
    page = page_of(runs, sections, title)
    make_directory(out.parent)
    write_whole(out, page.text.encode())
    return Report(out, page.findings, page.tables, page.legend)


def page_of(runs: Sequence[Run], sections: Iterable[Section], title: str = "", live: Live | None = None) -> Page:
    """Return the page of what the runs hold.

    Args:
        runs: The runs, drawn together.
        sections: What the page may say; a section for which the runs hold no records is left out.
        title: The title of the page; empty for the names of the runs.
        live: What the page needs to follow the runs; None for a page that needs nothing but itself.
    """
    records = marked(read_runs(runs))
    if records.is_empty():
        raise NothingMeasuredError(
            f"{', '.join(str(run.path) for run in runs)} must hold records, but nothing was measured yet"
        )
    sections = tuple(sections)
    chapters = [_chapter(section, records) for section in sections]
    legend = LEGEND if records["decided"].any() else ""
    tables = [table for chapter in chapters for table in chapter.tables]
    # Sentences about one model stand together.
    models = list(records.select("run", "model").unique(maintain_order=True).iter_rows())
    findings = [finding for chapter in chapters for finding in chapter.findings]
    findings.sort(key=lambda finding: models.index((finding.run, finding.model)))
    return Page(_text(title, runs, records, sections, chapters, legend, live), findings, tables, legend)


def _chapter(section: Section, records: pl.DataFrame) -> Chapter:
    one = [section]
    return Chapter(section.question, find(one, records), tabulate(one, records), draw(one, records))


def _text(
    title: str,
    runs: Sequence[Run],
    records: pl.DataFrame,
    sections: Sequence[Section],
    chapters: Sequence[Chapter],
    legend: str,
    live: Live | None,
) -> str:
    figures = [figure for chapter in chapters for figure in chapter.figures]
    models = key_figures(sections, records)
    return template("page.html.jinja").render(
        title=title or ", ".join(run.name for run in runs),
        about=_about(records, runs),
        models=models[:_MODELS],
        n_models=len(models),
        story=figures[0] if figures else None,
        chapters=[chapter for chapter in chapters if not chapter.is_empty],
        missing=[section for section, chapter in zip(sections, chapters, strict=True) if chapter.is_empty],
        legend=legend,
        several=len(runs) > 1,
        costs=list(costs(runs)),
        manifests=[(run.name, json.dumps(run.manifest, indent=2)) for run in runs],
        plotly_js="" if live else plotly_js(),
        last_step=records["step"].max(),
        live=live,
    )


@cache
def plotly_js() -> str:
    """Return the part of plotly.js that draws on axes: a third of the whole, which other charts would need."""
    return files("tangentlens.report").joinpath("plotly-cartesian.min.js").read_text(encoding="utf-8")


@cache
def template(name: str) -> jinja2.Template:
    """Return a template of this folder, in which all text is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tangentlens", "report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"spark": spark, "spec": _spec, "words": _words}
    return environment.get_template(name)


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
