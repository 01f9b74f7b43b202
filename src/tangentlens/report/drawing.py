"""How lines, bands and grids of panels are drawn, alike in all figures."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from tangentlens.runs.vocabulary import VARIANTS, Metric, Style, proxy_style

# Okabe and Ito's colours, for lines that are models or sites.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# As many steps as an axis can name.
_TICKS = 14
# From early to late.
BLUES = ("#B9D6EE", "#7FB2DA", "#3C87C0", "#0B4F8A")
# The controls that a legend shows from the start; the others appear when they are clicked on.
_PROMINENT = ("pca", "covariance", "random", "normal")


def labelled(records: pl.DataFrame) -> pl.DataFrame:
    """Return the records with a label for each model, which names the run only if several are drawn together."""
    several = records["run"].n_unique() > 1
    label = pl.concat_str("run", pl.lit(" / "), "model") if several else pl.col("model")
    return records.with_columns(label.alias("model_label"))


def models_of(rows: pl.DataFrame) -> list[str]:
    """Return the labels of all models, sorted."""
    return rows["model_label"].unique(maintain_order=True).sort().to_list()


def spaced(values: list[Any], count: int) -> list[Any]:
    """Return at most `count` of the values: the first, the last, and evenly spaced ones between.

    >>> spaced([1, 2, 3, 4, 5], 3)
    [1, 3, 5]
    """
    if len(values) <= count:
        return values
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


def spaced_in_logarithm(steps: list[int], count: int) -> list[int]:
    """Return at most `count` of the steps, as evenly spaced on a logarithmic axis as they allow.

    >>> spaced_in_logarithm([0, 1, *range(1000, 144_000, 1000)], 4)
    [0, 1000, 3000, 143000]
    """
    if len(steps) <= count:
        return steps
    wanted = [math.log(steps[-1] + 1) * place / (count - 1) for place in range(count)]
    return sorted({min(steps, key=lambda step: abs(math.log(step + 1) - at)) for at in wanted})


def style_of(line: pl.DataFrame, is_proxy: bool) -> Style:
    """Return how the subspace of a line is drawn."""
    name = str(line["variant"][0])
    return proxy_style(name) if is_proxy else VARIANTS[name]


def shown_at_first(trace: go.Scatter, name: str, is_proxy: bool) -> go.Scatter:
    """Return the trace; those of less common controls are hidden until their entry in the legend is clicked on."""
    return trace if is_proxy or name in _PROMINENT else trace.update(visible="legendonly")


def grid(
    rows: pl.DataFrame,
    row_key: str,
    row_labels: Mapping[Any, str],
    line_key: str,
    draw: Callable[[Any, pl.DataFrame], Iterable[go.Scatter]],
) -> go.Figure:
    """Return a grid of panels: a row per value of `row_key`, a column per model, a line per value of `line_key`."""
    models = models_of(rows)
    plot = make_subplots(
        len(row_labels),
        len(models),
        shared_xaxes=True,
        shared_yaxes="rows",
        subplot_titles=[f"<b>{html.escape(model)}</b>" for model in models],
        vertical_spacing=0.3 / (len(row_labels) + 2),
    )
    # Above the names of the rows.
    plot.update_annotations(yshift=22)
    shown: set[str] = set()
    for value, label in row_labels.items():
        at = list(row_labels).index(value) + 1
        _name_row(plot, at, label)
        panels = rows.filter(pl.col(row_key) == value).group_by([line_key, "model_label"], maintain_order=True)
        for (line, model), points in panels:
            for trace in draw(line, points):
                named = bool(trace.name)
                trace.update(legendgroup=trace.legendgroup or trace.name, showlegend=named and trace.name not in shown)
                shown |= {trace.name} if named else set()
                # The name of the panel, for the saved numbers.
                trace.update(meta=f"{model}: {label}")
                plot.add_trace(trace, row=at, col=models.index(str(model)) + 1)
    return plot


def _name_row(plot: go.Figure, row: int, label: str) -> None:
    """Write the name of a row of panels above it: turned by 90 degrees, names of low panels would overlap."""
    top = plot.layout["yaxis" if row == 1 else plot.get_subplot(row, 1).yaxis.plotly_name].domain[1]
    place = {"x": 0, "xref": "paper", "xanchor": "left", "y": top, "yref": "paper", "yanchor": "bottom"}
    plot.add_annotation(text=html.escape(label), showarrow=False, font={"size": 13}, yshift=3, **place)


def log_axis(plot: go.Figure, metric: Metric, row: int, col: int | None = None) -> None:
    """Make the axis of a metric logarithmic if the vocabulary says so."""
    if metric.log:
        plot.update_yaxes(type="log", tickvals=[1, 2, 5, 10, 20, 50, 100, 200], row=row, col=col)


def step_axis(plot: go.Figure, rows: pl.DataFrame, last_row: int) -> None:
    """Put steps on an axis: a linear one if they are evenly spaced, else a logarithmic one that has room for step 0."""
    steps = rows["step"].unique().sort().to_list()
    even = evenly_spaced(steps)
    shown = (spaced if even else spaced_in_logarithm)(steps, _TICKS)
    # Steps are drawn one further, because a logarithm of 0 is nowhere.
    axis = {"type": "linear" if even else "log", "tickvals": [step + 1 for step in shown], "ticktext": shown}
    plot.update_xaxes(**axis)
    plot.update_xaxes(title_text=f"training step{'' if even else ' (log scale)'}", row=last_row)


def evenly_spaced(steps: list[int]) -> bool:
    """Return whether steps are at nearly equal distances; the last one may come early, at the end of a training.

    >>> evenly_spaced([0, 50, 100, 150, 173]), evenly_spaced([0, 1, 2, 4, 8, 16])
    (True, False)
    """
    gaps = [after - before for before, after in pairwise(steps)]
    whole = gaps[:-1] or gaps
    return max(whole) <= 1.5 * min(whole) and gaps[-1] <= 1.5 * max(whole)


def band(line: pl.DataFrame, label: str, colour: str, dash: str = "solid") -> Iterator[go.Scatter]:
    """Yield a line over steps with its interval as a band."""
    x, label = (line["step"] + 1).to_list(), html.escape(label)
    if line["ci_low"].is_not_null().all():
        edge = [*line["ci_high"].to_list(), *reversed(line["ci_low"].to_list())]
        faint = {"fillcolor": _faint(colour), "line": {"width": 0}, "hoverinfo": "skip"}
        yield go.Scatter(x=x + x[::-1], y=edge, fill="toself", mode="lines", legendgroup=label, **faint)
    yield go.Scatter(
        x=x,
        y=line["value"].to_list(),
        name=label,
        mode="lines+markers",
        line={"color": colour, "width": 2, "dash": dash},
        marker={"size": 5, "symbol": _symbols(line)},
        customdata=_exactly(line, "step"),
        hovertemplate="step %{customdata[0]}: %{customdata[1]}",
    )


def bars(line: pl.DataFrame, x: str, label: str, colour: str, dash: str = "solid") -> go.Scatter:
    """Return a line with its intervals as bars."""
    return go.Scatter(
        x=[html.escape(value) if isinstance(value, str) else value for value in line[x]],
        y=line["value"].to_list(),
        name=html.escape(label),
        mode="lines+markers",
        line={"color": colour, "width": 2, "dash": dash},
        marker={"size": 7, "symbol": _symbols(line)},
        customdata=_exactly(line, x),
        hovertemplate="%{customdata[0]}: %{customdata[1]}",
        error_y={
            "type": "data",
            "array": (line["ci_high"] - line["value"]).to_list(),
            "arrayminus": (line["value"] - line["ci_low"]).to_list(),
            "thickness": 1.2,
            "width": 3,
        },
    )


def styled(plot: go.Figure, height: int) -> go.Figure:
    """Return the figure with the fonts, margins and legend that all figures have."""
    return plot.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 55, "r": 15, "t": 60, "b": 50},
        # Below the title of the axis, however high the figure is.
        legend={"orientation": "h", "y": -70 / (height - 110), "yanchor": "top"},
        font={"family": "system-ui, sans-serif", "size": 13},
        hovermode="closest",
    )


def _exactly(line: pl.DataFrame, x: str) -> list[tuple[str, str, float | None, float | None]]:
    """Return what a page shows and saves of each point: where it lies, its value with its interval, and both ends."""
    points = line.select(x, "value", "ci_low", "ci_high").rows()
    return [
        (
            html.escape(str(where) if isinstance(where, str | int) else f"{where:.4g}"),
            f"{value:.4g}" if low is None or high is None else f"{value:.4g} [{low:.4g}, {high:.4g}]",
            low,
            high,
        )
        for where, value, low, high in points
    ]


def _symbols(line: pl.DataFrame) -> list[str]:
    """Return the marker of each point: hollow for numbers that a few rows decide, if that is known."""
    few = line["decided"] if "decided" in line.columns else [False] * line.height
    return ["circle-open" if decided else "circle" for decided in few]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"
