"""One function a figure: records in, a titled figure out, or None where the records do not hold what it needs.

A new figure is a function here and its name in `FIGURES`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from tangentlens.alignment.tangent_result import PROXY
from tangentlens.lens.measures import MEAN_SITE, ONE_PER_TYPE
from tangentlens.report.reading import MEASURE, PROFILED, last_measured
from tangentlens.statistics.shape import BATCHES
from tangentlens.studies.profile import SHAPE
from tangentlens.studies.visibility import ANALYTIC, RATIO, VISIBLE

# Okabe and Ito's colours, told apart by colour-blind readers too.
VARIANTS = {
    PROXY: ("tangent proxy (semi-NMF)", "#D55E00", "solid"),
    "pca": ("pca: top-variance directions", "#0072B2", "dot"),
    "covariance": ("covariance: draws of the same variance", "#E69F00", "dash"),
    "random": ("random: chance, r/d", "#999999", "solid"),
    "normal": ("normal: random, orthogonal to the proxy", "#000000", "solid"),
}
ORDERS = {1.0: "energy share (order 1)", 2.0: "anisotropy share (order 2)"}
GEOMETRY = {
    "anisotropy": "anisotropy",
    "intrinsic_dimension": "dimension, all tokens",
    ONE_PER_TYPE: "dimension, one row per type",
}
_MODELS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_BLUES = ("#B9D6EE", "#7FB2DA", "#3C87C0", "#0B4F8A")
_KNOWN = "manifolds whose curvature is known"
OVER_SEQUENCES = (
    "95% jackknife intervals over the test sequences of the step's batch; the fitted subspaces are held fixed"
)


@dataclass(frozen=True)
class Figure:
    """A figure with a title that says what is seen and a caption that says what the bars are over."""

    title: str
    caption: str
    plot: go.Figure


def share_over_training(records: pl.DataFrame) -> Figure | None:
    """Proxy and controls over the steps."""
    rows = _shares(records).filter(pl.col("site") == MEAN_SITE, pl.col("freq_bin") == "all")
    if rows["step"].n_unique() < 2:
        return None
    plot = _grid(rows, "order", ORDERS, "variant", lambda variant, line: _band(line, *VARIANTS[variant]))
    _step_axis(plot, rows, last_row=len(ORDERS))
    return Figure(_share_title(rows), f"Mean over sites. Bands: {OVER_SEQUENCES}.", _styled(plot, 620))


def share_over_depth(records: pl.DataFrame) -> Figure | None:
    """Proxy and controls over depth at the last step."""
    rows = last_measured(_shares(records)).filter(pl.col("depth").is_not_null(), pl.col("freq_bin") == "all")
    if rows["depth"].n_unique() < 2:
        return None
    plot = _grid(
        rows.sort("depth", maintain_order=True),
        "order",
        ORDERS,
        "variant",
        lambda variant, line: [_bars(line, "site", *VARIANTS[variant])],
    )
    energy = rows.filter(pl.col("order") == 1)
    chance = energy.filter(pl.col("variant") == "random").select("run", "model", "site", chance="value")
    proxy = energy.filter(pl.col("variant") == PROXY).join(chance, on=["run", "model", "site"])
    above = proxy.filter(pl.col("ci_low") > pl.col("chance")).height
    title = f"At the last step the proxy's energy share is above r/d at {above} of {proxy.height} sites"
    draws = "for random and normal, between what 95% of their draws lie"
    return Figure(title, f"Bars: {OVER_SEQUENCES}; {draws}.", _styled(plot, 560))


def share_by_frequency(records: pl.DataFrame) -> Figure | None:
    """The share of proxy and pca by token-frequency bin, by input and by target token, at the last step."""
    rows = last_measured(_shares(records)).filter(
        pl.col("variant").is_in([PROXY, "pca"]), pl.col("freq_bin").str.contains(r"\.\d+$")
    )
    if rows.is_empty():
        return None
    # The mean over sites where every site has the bin; else (an encoder's last layer has no gradient but at masked
    # tokens) the deepest site that has it.
    rows = rows.with_columns(
        pl.when(pl.col("site") == MEAN_SITE).then(2.0).otherwise(pl.col("depth").fill_null(-1.0)).alias("preference"),
        pl.col("freq_bin").str.extract(r"^(\w+)\.", 1).alias("kind"),
        pl.col("freq_bin").str.extract(r"\.(\d+)$", 1).cast(pl.Int64).alias("bin"),
    ).filter(pl.col("preference") == pl.col("preference").max().over("run", "model", "order", "kind"))
    colours = {"target": "#009E73", "input": "#CC79A7"}

    def draw(line_key: str, line: pl.DataFrame) -> list[go.Scatter]:
        variant, kind = line_key.split(" ")
        return [_bars(line, "bin", f"{VARIANTS[variant][0]}, by {kind} token", colours[kind], VARIANTS[variant][2])]

    rows = rows.with_columns(line=pl.concat_str("variant", "kind", separator=" "))
    plot = _grid(rows.sort("bin", maintain_order=True), "order", ORDERS, "line", draw)
    bins = rows["bin"].unique().sort().to_list()
    names = ["rarest", *(str(number + 1) for number in bins[1:-1]), "most frequent"]
    plot.update_xaxes(tickvals=bins, ticktext=names)
    single = rows.filter(pl.col("site") != MEAN_SITE).select("model_label", "kind", "site").unique(maintain_order=True)
    where = "".join(f" {label} by {kind} token: at {site} only." for label, kind, site in single.rows())
    caption = (
        "Bins hold equal token mass of the corpus, so the frequent ones hold few types. Mean over sites."
        f"{where} Bars: {OVER_SEQUENCES}."
    )
    return Figure(_frequency_title(records), caption, _styled(plot, 600))


def geometry_over_depth(records: pl.DataFrame) -> Figure | None:
    """Anisotropy and intrinsic dimension of activations over depth, early and late in training."""
    rows = _labelled(records).filter(
        pl.col("quantity") == "activation",
        pl.col("metric").is_in(["anisotropy", "intrinsic_dimension"]),
        pl.col("depth").is_not_null(),
        pl.col("ci_over") != BATCHES,
    )
    if rows["depth"].n_unique() < 2:
        return None
    rows = rows.with_columns(panel=pl.when(pl.col("variant") == "").then(pl.col("metric")).otherwise(pl.col("variant")))
    steps = _spaced(rows["step"].unique().sort().to_list(), len(_BLUES))
    colours = dict(zip(steps, _BLUES[-len(steps) :], strict=True))
    plot = _grid(
        rows.filter(pl.col("step").is_in(steps)).sort("panel", "step", "depth", maintain_order=True),
        "panel",
        GEOMETRY,
        "step",
        lambda step, line: [_bars(line, "site", f"step {step}", colours[step])],
    )
    # The input's dimension is of another order than the stream's, so only a log axis shows both.
    for row in (2, 3):
        plot.update_yaxes(type="log", tickvals=[1, 2, 5, 10, 20, 50, 100, 200], row=row)
    caption = (
        "Anisotropy: 95% jackknife intervals over the step's sequences. Dimension: TwoNN on distinct rows, with 95% "
        "intervals over tokens or over types, rows linked by nearest-neighbour steps counting as one. Over all tokens, "
        "a row's neighbours are mostly other occurrences of its own token, so the middle panels tell how such "
        "occurrences spread; the lower ones, with the first occurrence of each type, how types do."
    )
    return Figure(_anisotropy_title(rows), caption, _styled(plot, 820))


def profile_over_depth(records: pl.DataFrame) -> Figure | None:
    """Every measure of a profile over depth, all models together."""
    rows = _labelled(records).filter(pl.col("ci_over") == BATCHES, pl.col("depth").is_not_null())
    rows = rows.with_columns(name=MEASURE).filter(pl.col("name").is_in(list(PROFILED)))
    if rows["depth"].n_unique() < 2:
        return None
    shown = [name for name in PROFILED if name in rows["name"]]
    n_rows = -(-len(shown) // 3)
    titles = [PROFILED[name] for name in shown]
    plot = make_subplots(n_rows, 3, shared_xaxes=True, subplot_titles=titles, vertical_spacing=0.09)
    for place, name in enumerate(shown):
        for colour, model in zip(cycle(_MODELS), _models(rows), strict=False):
            line = rows.filter(pl.col("name") == name, pl.col("model_label") == model).sort("depth")
            if line.height:
                trace = _bars(line, "depth", model, colour).update(
                    legendgroup=model, showlegend=place == 0, text=line["site"].to_list()
                )
                plot.add_trace(trace, row=place // 3 + 1, col=place % 3 + 1)
    plot.update_xaxes(title_text="depth (0: before the first block, 1: after the last)", row=n_rows, col=2)
    caption = (
        "Means over batches of shuffled token vectors, with 95% intervals over batches. The shape of a profile (bell, "
        "valley, irregular, monotone, flat) is decided over the same batches."
    )
    return Figure(_profile_title(rows, records), caption, _styled(plot, 260 * n_rows + 80))


def visible_curvature(records: pl.DataFrame) -> Figure | None:
    """What of the curvature is visible as types count more and more by their frequency; known answers as lines."""
    known = pl.col("site") == ""
    rows = _labelled(records).filter(
        pl.when(known).then(pl.col("metric").is_in([VISIBLE, VISIBLE + ANALYTIC])).otherwise(pl.col("metric") == RATIO),
        ~pl.col("variant").str.starts_with("types "),
    )
    if rows.is_empty():
        return None
    rows = rows.with_columns(
        alpha=pl.col("variant").str.extract(r"alpha=([\d.]+)", 1).cast(pl.Float64),
        panel=pl.when(known).then(pl.lit(_KNOWN)).otherwise("model_label"),
        line=pl.when(known).then("model").otherwise("site"),
    ).sort("panel", "depth", "alpha", maintain_order=True)
    panels = sorted(rows["panel"].unique(), key=lambda panel: panel != _KNOWN)
    plot = make_subplots(1, len(panels), subplot_titles=[html.escape(panel) for panel in panels])
    for column, panel in enumerate(panels, start=1):
        here = rows.filter(pl.col("panel") == panel)
        lines = _spaced(here["line"].unique(maintain_order=True).to_list(), len(_MODELS))
        for line, colour in zip(lines, _MODELS, strict=False):
            points, law = here.filter(pl.col("line") == line).partition_by("metric"), None
            if len(points) > 1:
                law = _bars(points[-1], "alpha", line, colour).update(mode="lines", error_y=None, showlegend=False)
            measured = _bars(points[0], "alpha", line, colour).update(mode="markers" if law else "lines+markers")
            plot.add_traces([trace for trace in (measured, law) if trace], rows=1, cols=column)
        known_here = panel == _KNOWN
        title = "visible curvature; lines: from the true form" if known_here else "over that of types that count alike"
        plot.update_yaxes(title_text=title, type="log" if known_here else "linear", row=1, col=column)
    plot.update_xaxes(title_text="alpha: types count by frequency^alpha")
    last = records.filter(pl.col("metric") == RATIO, pl.col("variant").str.contains("^(corpus )?alpha=1$"))
    ranges = last.group_by(pl.when(known).then(pl.lit(_KNOWN)).otherwise("model").alias("of"), maintain_order=True)
    ends = ranges.agg(low=pl.min("value"), high=pl.max("value")).to_dicts()
    told = "; ".join(f"{row['of']} {row['low']:.2f} to {row['high']:.2f}" for row in ends)
    caption = (
        "Patches around anchors: in a model, types drawn as the corpus draws tokens. Bars: 95% intervals over anchors; "
        "in a model also over which types are frequent."
    )
    what = "Curvature visible at the corpus' frequencies, over that of types that count alike"
    plot = _styled(plot, 500).update_layout(legend={"y": -0.2})
    return Figure(f"{what}: {told}", caption, plot)


def training(records: pl.DataFrame) -> Figure | None:
    """Loss over the steps."""
    rows = _labelled(records).filter(pl.col("metric") == "loss").sort("model_label", "step")
    if rows["step"].n_unique() < 2:
        return None
    plot = _grid(rows, "metric", {"loss": "nats per token"}, "metric", lambda _, line: _band(line, "loss", "#009E73"))
    _step_axis(plot, rows, last_row=1)
    ends = rows.group_by("model_label", maintain_order=True).agg(first=pl.first("value"), last=pl.last("value"))
    told = "; ".join(f"{row['model_label']} from {row['first']:.2f} to {row['last']:.2f}" for row in ends.to_dicts())
    return Figure(f"Training loss: {told}", "Loss of single training batches, without interval.", _styled(plot, 320))


FIGURES: tuple[Callable[[pl.DataFrame], Figure | None], ...] = (
    share_over_training,
    share_over_depth,
    share_by_frequency,
    geometry_over_depth,
    profile_over_depth,
    visible_curvature,
    training,
)


def draw_all(records: pl.DataFrame) -> list[Figure]:
    """Every figure that the records allow."""
    return [figure for draw in FIGURES if (figure := draw(records)) is not None]


def _labelled(records: pl.DataFrame) -> pl.DataFrame:
    """With a label per model, which names the run only if several are drawn together."""
    several = records["run"].n_unique() > 1
    label = pl.concat_str("run", pl.lit(" / "), "model") if several else pl.col("model")
    return records.with_columns(label.alias("model_label"))


def _shares(records: pl.DataFrame) -> pl.DataFrame:
    rows = _labelled(records).filter(pl.col("metric") == "share", pl.col("variant").is_in(list(VARIANTS)))
    return rows.sort(pl.col("variant").cast(pl.Enum(list(VARIANTS))), "order", "step", maintain_order=True)


def _models(rows: pl.DataFrame) -> list[str]:
    return rows["model_label"].unique(maintain_order=True).sort().to_list()


def _spaced(steps: list[Any], count: int) -> list[Any]:
    """At most `count` of the steps: the first, the last, and evenly between."""
    if len(steps) <= count:
        return steps
    return [steps[round(i * (len(steps) - 1) / (count - 1))] for i in range(count)]


def _grid(
    rows: pl.DataFrame,
    row_key: str,
    row_labels: Mapping[Any, str],
    line_key: str,
    draw: Callable[[Any, pl.DataFrame], Iterable[go.Scatter]],
) -> go.Figure:
    """A row of panels per value of `row_key`, a column per model, a line per value of `line_key`."""
    models = _models(rows)
    plot = make_subplots(
        len(row_labels),
        len(models),
        shared_xaxes=True,
        shared_yaxes="rows",
        subplot_titles=[html.escape(model) for model in models],
        vertical_spacing=0.08,
    )
    shown: set[str] = set()
    for value, label in row_labels.items():
        at = list(row_labels).index(value) + 1
        plot.update_yaxes(title_text=label, row=at, col=1)
        panels = rows.filter(pl.col(row_key) == value).group_by([line_key, "model_label"], maintain_order=True)
        for (line, model), points in panels:
            for trace in draw(line, points):
                named = bool(trace.name)
                trace.update(legendgroup=trace.legendgroup or trace.name, showlegend=named and trace.name not in shown)
                shown |= {trace.name} if named else set()
                plot.add_trace(trace, row=at, col=models.index(str(model)) + 1)
    return plot


def _step_axis(plot: go.Figure, rows: pl.DataFrame, last_row: int) -> None:
    """Steps on a log axis that has room for step 0."""
    steps = rows["step"].unique().sort().to_list()
    plot.update_xaxes(type="log", tickvals=[step + 1 for step in steps], ticktext=steps)
    plot.update_xaxes(title_text="training step (log scale)", row=last_row)


def _band(line: pl.DataFrame, label: str, colour: str, dash: str = "solid") -> Iterator[go.Scatter]:
    x = (line["step"] + 1).to_list()
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
        marker={"size": 5},
        customdata=line.select("step", "ci_low", "ci_high").rows(),
        hovertemplate="step %{customdata[0]}: %{y:.4g} [%{customdata[1]:.4g}, %{customdata[2]:.4g}]",
    )


def _bars(line: pl.DataFrame, x: str, label: str, colour: str, dash: str = "solid") -> go.Scatter:
    return go.Scatter(
        x=[html.escape(value) if isinstance(value, str) else value for value in line[x]],
        y=line["value"].to_list(),
        name=html.escape(label),
        mode="lines+markers",
        line={"color": colour, "width": 2, "dash": dash},
        error_y={
            "type": "data",
            "array": (line["ci_high"] - line["value"]).to_list(),
            "arrayminus": (line["value"] - line["ci_low"]).to_list(),
            "thickness": 1.2,
            "width": 3,
        },
    )


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _styled(plot: go.Figure, height: int) -> go.Figure:
    return plot.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 70, "r": 20, "t": 50, "b": 50},
        legend={"orientation": "h", "y": -0.12, "yanchor": "top"},
        font={"family": "system-ui, sans-serif", "size": 13},
        hovermode="closest",
    )


def _share_title(rows: pl.DataFrame) -> str:
    last = last_measured(rows).filter(pl.col("order") == 1)
    told = []
    for (model,), cells in last.group_by(["model_label"], maintain_order=True):
        value = dict(zip(cells["variant"], cells["value"], strict=True))
        others = ", ".join(f"{value[name]:.3g} {name}" for name in ("normal", "random", "pca") if name in value)
        told.append(f"{model} {value[PROXY]:.3g} (against {others})")
    return "Gradient energy in the proxy at the last step: " + "; ".join(sorted(told))


def _anisotropy_title(rows: pl.DataFrame) -> str:
    told = []
    last = last_measured(rows).filter(pl.col("metric") == "anisotropy").sort("value")
    for (model,), cells in last.group_by(["model_label"], maintain_order=True):
        low, high = cells.row(0, named=True), cells.row(-1, named=True)
        told.append(f"{model} {low['value']:.2f} ({low['site']}) to {high['value']:.2f} ({high['site']})")
    return "Anisotropy over depth at the last step: " + "; ".join(sorted(told))


def _profile_title(rows: pl.DataFrame, records: pl.DataFrame) -> str:
    shapes = _labelled(records).filter(pl.col("metric") == f"{SHAPE}anisotropy")
    kinds = dict(zip(shapes["model_label"], shapes["variant"], strict=True))
    told = []
    for (model,), line in rows.filter(pl.col("name") == "anisotropy").group_by(["model_label"], maintain_order=True):
        values = line["value"].to_list()
        told.append(f"{model} {min(values):.2g} to {max(values):.2g} ({kinds.get(str(model), 'no shape decided')})")
    return "Anisotropy over depth: " + "; ".join(sorted(told))


def _frequency_title(records: pl.DataFrame) -> str:
    rows = last_measured(_labelled(records).filter(pl.col("metric") == "frequency_log_ratio")).filter(
        pl.col("variant") == PROXY,
        pl.col("site") == MEAN_SITE,
        pl.col("order") == 1,
        pl.col("freq_bin") == "target",
    )
    told = [f"{row['model_label']} {math.exp(row['value']):.2f} times" for row in rows.to_dicts()]
    return "Energy share on the most frequent targets against the rarest: " + (", ".join(sorted(told)) or "see below")
