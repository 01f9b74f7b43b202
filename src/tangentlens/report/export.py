"""Figures and the table of shares for a paper: vector graphics at the width of a column, and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import plotly.graph_objects as go
import plotly.io
import polars as pl

from tangentlens.errors import InputError, MissingExtra, check_name
from tangentlens.report.contents import Figure, Section, draw
from tangentlens.report.reading import marked, read_runs, undoubted
from tangentlens.report.sections.shares import share_table
from tangentlens.runs.files import make_directory, write_whole
from tangentlens.runs.run import Run

FORMATS = ("pdf", "svg", "png")
# Widths of one column and of two, 3.25 and 6.75 inches, in pixels of 1/96 inch; and how much lower print is.
_COLUMN, _PAGE, _LOWER = 312, 648, 0.62
# What LaTeX reads as commands.
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "†": r"\textdagger{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def export_figures(
    runs: Sequence[Run], folder: Path, sections: Iterable[Section], formats: Sequence[str] = ("pdf",)
) -> list[Path]:
    """Write every figure that the runs allow, and the table of shares as `shares.tex`; return the files.

    Args:
        runs: The runs, drawn together.
        folder: Where to write.
        sections: What a report may say.
        formats: Formats of the figures: `pdf` and `svg` are vector graphics, `png` has 300 dots per inch.
    """
    for name in formats:
        check_name("a format", name, FORMATS)
    sections, records = tuple(sections), read_runs(runs)
    figures = draw(sections, records)
    if not figures:
        raise InputError(f"{', '.join(str(run.path) for run in runs)} must hold what can be drawn, but nothing can")
    make_directory(folder)
    files = [
        folder / f"{number:02d}-{_slug(figure)}.{name}" for number, figure in enumerate(figures) for name in formats
    ]
    printed = [_printed(figure.plot) for figure in figures for _ in formats]
    _write(printed, files)
    return [*files, *_written_shares(records, folder)]


def _written_shares(records: pl.DataFrame, folder: Path) -> list[Path]:
    """Write the table of shares as LaTeX, if there are any, and return its file."""
    frames = [table.frame for table in share_table(undoubted(marked(records))) if table.frame.height]
    for frame in frames:
        write_whole(folder / "shares.tex", latex(frame).encode())
    return [folder / "shares.tex"] * len(frames)


def latex(frame: pl.DataFrame) -> str:
    r"""Return a table as LaTeX, for the package booktabs.

    >>> print(latex(pl.DataFrame({"run": ["my_run"], "share": ["0.5 [0.4, 0.6]"]})))
    \begin{tabular}{ll}
    \toprule
    run & share \\
    \midrule
    my\_run & 0.5 [0.4, 0.6] \\
    \bottomrule
    \end{tabular}
    <BLANKLINE>
    """
    rows = [" & ".join(_escaped(cell) for cell in row) + r" \\" for row in (tuple(frame.columns), *frame.iter_rows())]
    lines = [rf"\begin{{tabular}}{{{'l' * frame.width}}}", r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", ""])


def _escaped(cell: object) -> str:
    return "".join(_SPECIAL.get(character, character) for character in str(cell))


def _slug(figure: Figure) -> str:
    """Return what a figure is about, as a part of a file name."""
    about = re.sub(r"\(.*?\)", "", figure.title.partition(":")[0])
    return "-".join(re.findall(r"[a-z0-9]+", about.lower())[:8])


def _printed(plot: go.Figure) -> go.Figure:
    """Return a figure as a paper prints it: the width of a column, or of a page if it has several models."""
    columns = len({axis.domain for axis in plot.select_xaxes()})
    # What a page shows only at a click is not printed.
    printed = go.Figure([trace for trace in plot.data if trace.visible != "legendonly"], plot.layout)
    printed.update_layout(
        width=_COLUMN if columns == 1 else _PAGE,
        height=max(220, _LOWER * (plot.layout.height or 400)),
        font={"family": "Helvetica, Arial, sans-serif", "size": 9},
        margin={"l": 38, "r": 6, "t": 40, "b": 30},
    )
    return printed.update_annotations(font={"size": 9}).update_xaxes(title_font={"size": 9})


def _write(plots: Sequence[go.Figure], files: Sequence[Path]) -> None:
    """Draw figures in a browser without a window, which is started once for all."""
    if find_spec("kaleido") is None:
        raise MissingExtra(
            "figures must be drawn by kaleido, but it is not installed; pip install 'tangentlens[figures]'"
        )
    try:
        plotly.io.write_images(list(plots), list(files), scale=[300 / 96 if f.suffix == ".png" else 1 for f in files])
    except (ImportError, ValueError) as error:
        raise InputError(
            f"figures must be drawn by kaleido, but this one does not work ({_first(error)}); "
            "pip install --upgrade 'tangentlens[figures]'"
        ) from error
    except RuntimeError as error:
        raise InputError(
            f"figures must be drawn by Chrome or Chromium, but none can be started ({_first(error)}); install one, or "
            "save single figures from the report as SVG"
        ) from error


def _first(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
