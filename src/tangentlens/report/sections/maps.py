"""Maps of a training: every site at every step, as colours."""

from __future__ import annotations

import html
import math

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from tangentlens.report.contents import Figure, Section
from tangentlens.report.drawing import labelled, models_of, styled
from tangentlens.report.reading import IN_BATCHES, IS_PROXY, shares
from tangentlens.runs.vocabulary import ACTIVATION, ALL_TOKENS

# From less to more, with white where both are alike; colour-blind readers can tell the two ends apart.
_AROUND = [[0.0, "#2166AC"], [0.25, "#92C5DE"], [0.5, "#F7F7F7"], [0.75, "#F4A582"], [1.0, "#B2182B"]]
# Pixels of a site.
_HEIGHT = 14


def share_map(records: pl.DataFrame) -> Figure | None:
    """Draw the energy share of the proxy over chance at every site and step."""
    rows = shares(labelled(records)).filter(
        pl.col("order") == 1, pl.col("freq_bin") == ALL_TOKENS, pl.col("depth").is_not_null()
    )
    key = ["run", "model", "step", "site"]
    chance = rows.filter(pl.col("variant") == "random").select(*key, chance="value")
    over = rows.filter(IS_PROXY).join(chance, on=key).with_columns(pl.col("value") / pl.col("chance"))
    over = over.filter(pl.col("value") > 0).with_columns(colour=pl.col("value").log(2))
    if not _has_two_ways(over):
        return None
    reach = max(1.0, float(over["colour"].abs().max()))  # type: ignore[arg-type]
    ticks = list(range(-math.floor(reach), math.floor(reach) + 1))
    bar = {"title": {"text": "times chance"}, "tickvals": ticks, "ticktext": [f"{2.0**tick:g}" for tick in ticks]}
    plot = _maps(over, {"colorscale": _AROUND, "cmin": -reach, "cmax": reach, "colorbar": bar})
    highest, lowest = (over.sort("value").row(place, named=True) for place in (-1, 0))
    title = (
        f"Energy share over chance at every site and step: from {lowest['value']:.2g} times ({lowest['model']}, "
        f"{lowest['site']}, step {lowest['step']}) to {highest['value']:.2g} times ({highest['model']}, "
        f"{highest['site']}, step {highest['step']})"
    )
    return Figure(title, "Without intervals; the figures over training and over depth have them.", plot)


def anisotropy_map(records: pl.DataFrame) -> Figure | None:
    """Draw the anisotropy at every site and step."""
    rows = labelled(records).filter(
        pl.col("metric") == "anisotropy", pl.col("quantity") == ACTIVATION, pl.col("depth").is_not_null(), ~IN_BATCHES
    )
    rows = rows.filter(pl.col("value").is_finite()).with_columns(colour="value")
    if not _has_two_ways(rows):
        return None
    bar = {"title": {"text": "anisotropy"}}
    plot = _maps(rows, {"colorscale": "Cividis", "cmin": 0, "cmax": 1, "colorbar": bar})
    highest = rows.sort("value").row(-1, named=True)
    title = (
        f"Anisotropy at every site and step: at most {highest['value']:.2g}, at {highest['site']} of "
        f"{highest['model']}, step {highest['step']}"
    )
    return Figure(title, "Without intervals; the figures over training and over depth have them.", plot)


def _has_two_ways(rows: pl.DataFrame) -> bool:
    """Return whether there are several sites and several steps."""
    return rows["site"].n_unique() > 1 and rows["step"].n_unique() > 1


def _maps(rows: pl.DataFrame, axis: dict[str, object]) -> go.Figure:
    """Return a map for each model, all with the same colours: steps to the right, depth upwards."""
    models = models_of(rows)
    titles = [f"<b>{html.escape(model)}</b>" for model in models]
    plot = make_subplots(1, len(models), subplot_titles=titles)
    sites = rows.select("site", "depth").unique().sort("depth", "site")["site"].unique(maintain_order=True)
    for column, model in enumerate(models, start=1):
        cells = rows.filter(pl.col("model_label") == model)
        plot.add_trace(
            go.Heatmap(
                x=cells["step"].cast(pl.String).to_list(),
                y=[html.escape(site) for site in cells["site"]],
                z=cells["colour"].to_list(),
                customdata=[
                    (f"{html.escape(site)}, step {step}", f"{value:.4g}")
                    for site, step, value in cells.select("site", "step", "value").iter_rows()
                ],
                hovertemplate="%{customdata[0]}: %{customdata[1]}<extra></extra>",
                coloraxis="coloraxis",
                meta=str(model),
            ),
            row=1,
            col=column,
        )
    steps = [str(step) for step in rows["step"].unique().sort()]
    plot.update_xaxes(type="category", categoryorder="array", categoryarray=steps, title_text="training step")
    plot.update_yaxes(type="category", categoryorder="array", categoryarray=[html.escape(site) for site in sites])
    return styled(plot, 160 + _HEIGHT * max(8, len(sites))).update_layout(coloraxis=axis)


MAPS = Section(
    question="Where and when does it happen?",
    command="a Lens at several sites, or tangentlens sweep",
    figures=(share_map, anisotropy_map),
)
