"""What a function returns that measures a model: its run, with the tables, figures and findings of the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import plotly.graph_objects as go
import plotly.io
import polars as pl

from tangentlens.lazy import cached_property
from tangentlens.report.contents import Figure, ModelCards, Section, Table, draw, find, key_figures, tabulate
from tangentlens.report.page import Report, write_report
from tangentlens.report.reading import read_runs
from tangentlens.report.showing import cards_html, display_html, in_notebook, open_page
from tangentlens.runs.files import Place, as_place
from tangentlens.runs.run import Run


class Result:
    """A run with everything that a report says about it. In a notebook it shows itself.

    Args:
        run: The run.
        sections: What a report may say.

    Attributes:
        run: The run; `run.records` is every number of it.
    """

    def __init__(self, run: Run, sections: Iterable[Section]) -> None:
        self.run = run
        self._sections = tuple(sections)

    @cached_property
    def _records(self) -> pl.DataFrame:
        return read_runs([self.run])

    @cached_property
    def key_figures(self) -> list[ModelCards]:
        """The key figures of every model that has any: numbers with their intervals and verdicts."""
        return key_figures(self._sections, self._records)

    @cached_property
    def tables(self) -> list[Table]:
        """Every table of the report, each with a `title` and a `frame`."""
        return tabulate(self._sections, self._records)

    @cached_property
    def figures(self) -> list[Figure]:
        """Every figure of the report, each with a `title`, a `caption` and a `plot`."""
        return draw(self._sections, self._records)

    @cached_property
    def findings(self) -> list[str]:
        """Every sentence of the report; with several models, nulls among them, each begins with whose it is."""
        found = find(self._sections, self._records)
        several = len({finding.model for finding in found}) > 1
        return [f"{finding.model}: {finding.text}" if several else finding.text for finding in found]

    @property
    def table(self) -> pl.DataFrame:
        """The main table; the records where there is none."""
        return self.tables[0].frame if self.tables else self.run.records

    @property
    def figure(self) -> go.Figure | None:
        """The main figure; None if the run allows none."""
        return self.figures[0].plot if self.figures else None

    def report(self, out: str | Place | None = None) -> Report:
        """Write the report, by default into the run's directory, and return it."""
        return write_report([self.run], as_place(out or self.run.path / "report.html"), self._sections)

    def show(self) -> None:
        """Show key figures, main figure and findings in a notebook; elsewhere, write the report and open it."""
        if in_notebook():
            display_html(self._html(self.figures[:1], []))
        else:
            open_page(self.report().path)

    def __repr__(self) -> str:
        found = "".join(f"\n- {text}" for text in self.findings)
        return f"Result({str(self.run.path)!r}){found}"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the key figures, the findings, the figures and the main table."""
        return self._html(self.figures, self.tables[:1])

    def _html(self, figures: Sequence[Figure], tables: Sequence[Table]) -> str:
        found = "".join(f"<li>{escape(text)}</li>" for text in self.findings)
        drawn = [
            f"<h4>{escape(figure.title)}</h4>"
            + plotly.io.to_html(figure.plot, config={"responsive": True}, full_html=False, include_plotlyjs=number == 0)
            + f"<p>{escape(figure.caption)}</p>"
            for number, figure in enumerate(figures)
        ]
        tabled = "".join(f"<h4>{escape(table.title)}</h4>{table.frame._repr_html_()}" for table in tables)
        return f"{cards_html(self.key_figures)}<ul>{found}</ul>{''.join(drawn)}{tabled}"
