"""What a report is made of: sections with figures, tables and findings, each a function of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import plotly.graph_objects as go
import polars as pl

from tangentlens.report.reading import marked, undoubted
from tangentlens.runs.vocabulary import ALL_ROWS
from tangentlens.statistics.words import Relation


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        title: One sentence that says what is seen, with numbers.
        caption: What is drawn, and what bars and bands are over.
        plot: The figure itself.
        key: What the figure stays known by while its run grows: the name of the function that draws it.
    """

    title: str
    caption: str
    plot: go.Figure
    key: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: What its entries are.
        frame: The entries.
        on_page_only: Whether it is too long for a terminal.
    """

    title: str
    frame: pl.DataFrame
    on_page_only: bool = False


@dataclass(frozen=True)
class Finding:
    """One sentence about one model of one run."""

    run: str
    model: str
    text: str


Sign = Literal["more", "less", "equal", "open"]
# What a comparison says, as a sign.
SIGNS: dict[Relation, Sign] = {
    "above": "more",
    "below": "less",
    "equivalent": "equal",
    "undecided": "open",
    "no interval": "open",
}


@dataclass(frozen=True)
class Card:
    """A key figure of one model: a number with its interval, what may be said of it, and its course.

    Attributes:
        title: What the number is.
        value: The number, as people read it.
        interval: Its interval; empty if it has none.
        verdict: What may be said of it, in a few words.
        sign: Whether that is more, less or as much as what it is compared with; 'open' if nothing was shown.
        course: The number at each step, or at each site from the first to the last, for a small line; empty if there is
            only one.
    """

    title: str
    value: str
    interval: str
    verdict: str
    sign: Sign
    course: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True)
class ModelCards:
    """The key figures of one model of one run."""

    run: str
    model: str
    cards: list[Card]


@dataclass(frozen=True)
class Section:
    """What a report says about one subject. Whatever the records do not allow is left out.

    Its functions get records with the column `decided`: whether a few rows decide a number.

    Attributes:
        question: The question that it answers.
        command: What makes the records that it needs, for reports of runs that lack them.
        cards: Each takes the records of one model of one run and returns key figures.
        figures: Each takes the records of all runs and returns a figure, or None.
        tables: Each takes the records of all runs and returns tables.
        findings: Each takes the records of one model of one run and returns sentences.
        rows: Its functions get only records of these rows, by default of all rows. With None they get the records
            without massive rows, too, and tell them apart by the column `rows`.
    """

    question: str
    command: str
    cards: tuple[Callable[[pl.DataFrame], Iterable[Card]], ...] = ()
    figures: tuple[Callable[[pl.DataFrame], Figure | None], ...] = ()
    tables: tuple[Callable[[pl.DataFrame], Iterable[Table]], ...] = ()
    findings: tuple[Callable[[pl.DataFrame], Iterable[str]], ...] = ()
    rows: str | None = ALL_ROWS

    def chosen(self, records: pl.DataFrame) -> pl.DataFrame:
        """Return those of the records that its functions get."""
        return records if self.rows is None else records.filter(pl.col("rows") == self.rows)


def key_figures(sections: Iterable[Section], records: pl.DataFrame) -> list[ModelCards]:
    """Return the cards of every model that has any, without checkpoints as in `tabulate`."""
    sections, records = tuple(sections), undoubted(marked(records))
    models = [
        ModelCards(
            str(run),
            str(model),
            [card for section in sections for make in section.cards for card in make(section.chosen(rows))],
        )
        for (run, model), rows in _by_model(records)
    ]
    return [model for model in models if model.cards]


def _by_model(records: pl.DataFrame) -> Iterator[tuple[tuple[Any, ...], pl.DataFrame]]:
    """Yield the records of each model of each run; those of a single one as they are, which spares a copy."""
    models = records.select("run", "model").unique().rows()
    yield from [(models[0], records)] if len(models) == 1 else records.group_by(["run", "model"], maintain_order=True)


def draw(sections: Iterable[Section], records: pl.DataFrame) -> list[Figure]:
    """Return every figure that the records allow."""
    records = marked(records)
    makers = [(section, make) for section in sections for make in section.figures]
    figures = ((make, make(section.chosen(records))) for section, make in makers)
    return [replace(figure, key=_name_of(make)) for make, figure in figures if figure is not None]


def _name_of(make: Callable[[pl.DataFrame], Figure | None]) -> str:
    # Not every function has a name: a partial one has none.
    return getattr(make, "__name__", "figure")


def tabulate(sections: Iterable[Section], records: pl.DataFrame) -> list[Table]:
    """Return every table that the records allow; checkpoints that are not what their names say do not count."""
    records = undoubted(marked(records))
    tables = (table for section in sections for make in section.tables for table in make(section.chosen(records)))
    return [table for table in tables if table.frame.height]


def find(sections: Iterable[Section], records: pl.DataFrame) -> list[Finding]:
    """Return every sentence that the records allow, model by model, without checkpoints as in `tabulate`."""
    sections, records = tuple(sections), undoubted(marked(records))
    return [
        Finding(str(run), str(model), text)
        for (run, model), rows in _by_model(records)
        for section in sections
        for say in section.findings
        for text in say(section.chosen(rows))
    ]
