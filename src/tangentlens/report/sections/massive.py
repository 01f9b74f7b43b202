"""Massive rows: where they are, when they appeared, and which numbers they decide."""

from __future__ import annotations

from collections.abc import Iterator

import plotly.graph_objects as go
import polars as pl

from tangentlens.report.contents import Figure, Section, Table
from tangentlens.report.drawing import bars, grid, labelled, styled
from tangentlens.report.reading import ESTIMATE, IS_PROXY, KEY, interval_text, last_measured, text_of, without_massive
from tangentlens.runs.vocabulary import (
    ACTIVATION,
    ALL_ROWS,
    ALL_TOKENS,
    GRADIENT,
    HELD_BY_TOP,
    MEAN_SITE,
    WITHOUT_MASSIVE,
)
from tangentlens.statistics.evidence import BATCHES

_LINES = {ALL_ROWS: ("all rows", "#D55E00", "solid"), WITHOUT_MASSIVE: ("without massive rows", "#0072B2", "dash")}
_PANELS = {"anisotropy": "anisotropy", "share": "energy share of the proxy"}


def with_and_without(records: pl.DataFrame) -> Figure | None:
    """Draw anisotropy and energy share over depth at the last step, of all rows and without massive ones."""
    known = labelled(records).filter((pl.col("rows") == WITHOUT_MASSIVE).any().over("run", "model"))
    without = without_massive(known).with_columns(rows=pl.lit(WITHOUT_MASSIVE))
    both = pl.concat([known.filter(pl.col("rows") == ALL_ROWS), without])
    rows = last_measured(_headline(both)).filter(pl.col("depth").is_not_null()).sort("depth", maintain_order=True)
    if rows["depth"].n_unique() < 2:
        return None
    panels = {metric: label for metric, label in _PANELS.items() if metric in rows["metric"]}

    def draw(which: str, line: pl.DataFrame) -> Iterator[go.Scatter]:
        yield bars(line, "site", *_LINES[which])

    caption = (
        f"A row is massive if it is more than {_threshold(records)} times as long as the median row of its site. 95% "
        "intervals over batches, or over the sequences of the step."
    )
    return Figure(_title(rows), caption, styled(grid(rows, "metric", panels, "rows", draw), 120 + 300 * len(panels)))


def _headline(records: pl.DataFrame) -> pl.DataFrame:
    """Return the anisotropy of activations and the energy share of the proxy, of all tokens."""
    of_activations = (pl.col("metric") == "anisotropy") & (pl.col("quantity") == ACTIVATION)
    of_gradients = (pl.col("metric") == "share") & (pl.col("quantity") == GRADIENT)
    of_proxy = of_gradients & IS_PROXY & (pl.col("order") == 1) & (pl.col("freq_bin") == ALL_TOKENS)
    return records.filter(of_activations | of_proxy)


def _title(rows: pl.DataFrame) -> str:
    told = []
    spread = rows.filter(pl.col("metric") == "anisotropy")
    for (model,), lines in spread.group_by(["model_label"], maintain_order=True):
        most = [lines.filter(pl.col("rows") == which)["value"].sort()[-1] for which in _LINES]
        told.append(f"{model} up to {most[0]:#.3g} with its massive rows and {most[1]:#.3g} without")
    return "Anisotropy over depth: " + "; ".join(sorted(told))


def massive_table(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate the massive rows of each site at the last step, with the anisotropy with and without them."""
    key = ["run", "model", "site"]
    rows = last_measured(records.filter(pl.col("quantity") == ACTIVATION)).with_columns(key=KEY)

    def column(name: str, metric: str, which: str, text: pl.Expr) -> pl.DataFrame:
        of_metric = rows.filter(pl.col("key") == metric, pl.col("rows") == which)
        return of_metric.select(*key, text.alias(name))

    frame = rows.filter(pl.col("key") == "massive_rows", pl.col("rows") == ALL_ROWS, pl.col("value") > 0)
    frame = frame.sort("run", "model", "depth", maintain_order=True).select(
        *key, pl.col("value").round(1).alias("massive rows"), pl.col("detail").alias("where")
    )
    number = text_of(pl.struct("value"), lambda row: f"{row['value']:.3g}")
    for name, metric, which, text in (
        ("longest / median", "massive_ratio", ALL_ROWS, number),
        ("anisotropy", "anisotropy", ALL_ROWS, text_of(ESTIMATE, interval_text)),
        ("held by the top 1%", f"{HELD_BY_TOP}:anisotropy", ALL_ROWS, number),
        ("anisotropy without", "anisotropy", WITHOUT_MASSIVE, text_of(ESTIMATE, interval_text)),
    ):
        frame = frame.join(column(name, metric, which, text), on=key, how="left", maintain_order="left")
    order = [
        *key,
        "massive rows",
        "longest / median",
        "anisotropy",
        "held by the top 1%",
        "anisotropy without",
        "where",
    ]
    title = f"Massive rows: more than {_threshold(records)} times as long as the median row of their site"
    yield Table(title, frame.select(order))


def _threshold(records: pl.DataFrame) -> str:
    """Return how many times as long as the median row a massive row is; runs may differ."""
    known = records.filter(pl.col("metric") == "massive_threshold")["value"].unique().sort()
    return " or ".join(f"{value:g}" for value in known)


def born(rows: pl.DataFrame) -> Iterator[str]:
    """Say at which step massive activations appeared."""
    counts = rows.filter(
        pl.col("metric") == "massive_rows", pl.col("rows") == ALL_ROWS, pl.col("site") != MEAN_SITE
    ).sort("step", "depth", maintain_order=True)
    if counts["step"].n_unique() < 2 or not counts["value"].max():
        return
    first = counts.filter(pl.col("value") > 0).row(0, named=True)
    before = counts.filter(pl.col("step") < first["step"])["step"].sort()
    since = f"and were not there at step {before[-1]}" if len(before) else "which is the first measured step"
    yield (
        f"Massive activations appeared at step {first['step']}, first at {first['site']} ({first['value']:.0f} rows "
        f"more than {_threshold(rows)} times as long as the median row), {since}."
    )


def decides(rows: pl.DataFrame) -> Iterator[str]:
    """Say which part of the anisotropy massive rows hold, and what it is without them."""
    last = last_measured(rows.filter(pl.col("quantity") == ACTIVATION, pl.col("site") != MEAN_SITE))
    counts = last.filter(pl.col("metric") == "massive_rows", pl.col("rows") == ALL_ROWS)
    some = counts.filter(pl.col("value") > 0)
    spread = last.filter(pl.col("metric") == "anisotropy")
    both = spread.filter(pl.col("rows") == ALL_ROWS).join(
        spread.filter(pl.col("rows") == WITHOUT_MASSIVE), on="site", suffix="_without"
    )
    both = both.filter(pl.col("site").is_in(some["site"].to_list()))
    if not both.height:
        return
    worst = both.sort((pl.col("value") - pl.col("value_without")).abs()).row(-1, named=True)
    there = some.filter(pl.col("site") == worst["site"]).row(0, named=True)
    without = interval_text({name: worst[f"{name}_without"] for name in ("value", "ci_low", "ci_high", "decided")})
    number = f"{there['value']:.3g} rows" + (" a batch" if there["ci_over"] == BATCHES else "")
    where = f", {there['detail']}" if there["detail"] else ""
    yield (
        f"Massive rows, more than {_threshold(rows)} times as long as the median row, are at {some.height} of "
        f"{counts.height} sites. At {worst['site']} the anisotropy is {interval_text(worst)} with them and {without} "
        f"without. There they are {number}{where}."
    )


MASSIVE = Section(
    question="Do a few tokens decide?",
    command="any command, on a model with massive activations",
    figures=(with_and_without,),
    tables=(massive_table,),
    findings=(born, decides),
    rows=None,
)
