"""How runs differ: every further run minus the first, with intervals."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tangentlens.report.contents import Figure, Section, Table
from tangentlens.report.drawing import COLOURS, band, grid, step_axis, styled
from tangentlens.report.reading import IN_BATCHES, IS_PROXY, Row, as_interval, last_measured
from tangentlens.runs.vocabulary import ACTIVATION, ALL_TOKENS, GRADIENT, LOSS, MEAN_SITE
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.words import relation, word

# What is compared: means over sites, and the loss.
_COMPARED = {
    "energy share of the proxy": (
        (pl.col("metric") == "share")
        & (pl.col("quantity") == GRADIENT)
        & (pl.col("order") == 1)
        & (pl.col("freq_bin") == ALL_TOKENS)
        & (pl.col("site") == MEAN_SITE)
        & IS_PROXY
    ),
    "anisotropy": (
        (pl.col("metric") == "anisotropy")
        & (pl.col("quantity") == ACTIVATION)
        & (pl.col("site") == MEAN_SITE)
        & ~IN_BATCHES
    ),
    "loss": (pl.col("metric") == LOSS) & (pl.col("variant") == ""),
}
_NUMBERS = ("value", "ci_low", "ci_high")


def differences(records: pl.DataFrame) -> pl.DataFrame:
    """Return how each run differs from the first, at every step that both have: what, between which, by how much."""
    runs = records["run"].unique(maintain_order=True).to_list()
    if len(runs) < 2:
        return pl.DataFrame(schema={"what": pl.String, "step": pl.Int64})
    kept = [records.filter(chosen).with_columns(what=pl.lit(what)) for what, chosen in _COMPARED.items()]
    rows = pl.concat(kept).filter(pl.col("value").is_finite())
    first = _one_model(rows.filter(pl.col("run") == runs[0]))
    found = [_pairs(first, _one_model(rows.filter(pl.col("run") == run)), runs[0], run) for run in runs[1:]]
    return pl.concat(found)


def _one_model(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows in which the only model of a run is called by no name, so that it has a partner in every run."""
    return rows.with_columns(model=pl.lit("")) if rows["model"].n_unique() == 1 else rows


def _pairs(first: pl.DataFrame, other: pl.DataFrame, one: str, another: str) -> pl.DataFrame:
    key = ["what", "model", "step"]
    joined = other.select(*key, *_NUMBERS).join(
        first.select(*key, *_NUMBERS), on=key, suffix="_first", maintain_order="left"
    )
    of_model = pl.when(pl.col("model") == "").then(pl.lit("")).otherwise(pl.concat_str(pl.lit(", "), "model"))
    told = pl.concat_str(pl.lit(f"{another} minus {one}"), of_model)
    apart = [_difference(row).columns() for row in joined.iter_rows(named=True)]
    numbers = pl.DataFrame(apart, schema=dict.fromkeys(_NUMBERS, pl.Float64) | {"ci_over": pl.String})
    return joined.select("what", "step", told.alias("model_label"), first="value_first").hstack(numbers)


def _difference(row: Row) -> Interval:
    first = {name: row[f"{name}_first"] for name in _NUMBERS}
    return as_interval(row).minus(as_interval(first))


def difference_over_training(records: pl.DataFrame) -> Figure | None:
    """Draw how each run differs from the first over the steps that both have."""
    rows = differences(records)
    if rows["step"].n_unique() < 2:
        return None
    panels = {what: what for what in _COMPARED if what in rows["what"]}
    plot = grid(
        rows.with_columns(line=pl.lit("difference")).sort("step", maintain_order=True),
        "what",
        panels,
        "line",
        lambda name, line: band(line, name, COLOURS[1]),
    )
    plot.add_hline(0, line={"color": "#A3A3A3", "width": 1})
    step_axis(plot, rows, last_row=len(panels))
    caption = (
        "Differences at the steps that both runs have, means over sites. Bands: 95% intervals, as if the sequences of "
        "the two runs were independent; where both see the same sequences, they are too wide. The loss has no interval."
    )
    last = _last(rows).filter(pl.col("what") != "loss")
    told = "; ".join(f"{row['what']}, {row['model_label']}: {as_interval(row)}" for row in last.iter_rows(named=True))
    return Figure(f"Differences at the last common step: {told}", caption, styled(plot, 130 + 220 * len(panels)))


def difference_table(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate the differences at the last step that both runs have."""
    rows = _last(differences(records))
    if rows.is_empty():
        return
    told = [
        (row["what"], row["model_label"], row["step"], repr(as_interval(row)), _verdict(row))
        for row in rows.iter_rows(named=True)
    ]
    frame = pl.DataFrame(told, schema=["what", "between", "step", "difference", "verdict"], orient="row")
    yield Table("How runs differ at the last step that both have; 95% intervals over sequences", frame)


def _last(rows: pl.DataFrame) -> pl.DataFrame:
    if rows.is_empty():
        return rows
    key = rows.with_columns(run=pl.col("what"), model=pl.col("model_label"))
    return last_measured(key)


def _verdict(row: Row) -> str:
    """Return what may be said of a difference from the first run; it counts as none within 5% of that run's number."""
    return word(relation(as_interval(row), margin=0.05 * abs(row["first"])))


COMPARISON = Section(
    question="How do the runs differ?",
    command="tangentlens report RUN OTHER_RUN",
    figures=(difference_over_training,),
    tables=(difference_table,),
)
