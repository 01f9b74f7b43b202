"""How records are read and put into words: what all sections share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from tangentlens.runs.run import Run
from tangentlens.runs.vocabulary import ALL_TOKENS, GRADIENT, MEAN_SITE, PROXY, SD
from tangentlens.statistics.corrections import holm
from tangentlens.statistics.interval import Interval

# The key of a metric in the vocabulary, from its columns in the records.
KEY = pl.concat_str("metric", "variant", separator=":").str.strip_suffix(":")
# Whether a record is of the proxy, and not of a control.
IS_PROXY = pl.col("detail") == PROXY
# Whether a model was measured in several batches, as profiles are, and not in the steps of a training.
IN_BATCHES = pl.col("metric").str.starts_with(f"{SD}/").any().over("run", "model")

Row = dict[str, Any]


def read_runs(runs: Sequence[Run]) -> pl.DataFrame:
    """Return the records of all runs, under their names, or under their paths where two have the same name."""
    names = [run.name for run in runs]
    clash = len(set(names)) < len(names)
    labels = [str(run.path) if clash else run.name for run in runs]
    return pl.concat([run.records.with_columns(run=pl.lit(label)) for run, label in zip(runs, labels, strict=True)])


def last_measured(rows: pl.DataFrame) -> pl.DataFrame:
    """Return only the last step of each model, given rows of one metric, which not every step may have."""
    return rows.filter(pl.col("step") == pl.col("step").max().over("run", "model"))


def shares(records: pl.DataFrame, metric: str = "share") -> pl.DataFrame:
    """Return shares of gradients, or ratios of such shares, of all tokens and of frequency bins."""
    return records.filter(pl.col("quantity") == GRADIENT, pl.col("metric") == metric)


def mean_shares(records: pl.DataFrame, metric: str, order: float = 1.0) -> pl.DataFrame:
    """Return shares, or ratios of shares, of all tokens, on average over sites."""
    return shares(records, metric).filter(
        pl.col("site") == MEAN_SITE, pl.col("order") == order, pl.col("freq_bin") == ALL_TOKENS
    )


def as_interval(row: Row) -> Interval:
    """Return the estimate in a row of the records; an end that is missing there is NaN."""
    low, high = (math.nan if row[end] is None else row[end] for end in ("ci_low", "ci_high"))
    return Interval(row["value"], low, high, row.get("ci_over") or "")


def interval_text(row: Row) -> str:
    """Return a value with its interval; a value that is known exactly, as chance is, has none."""
    exact = row["ci_low"] is not None and row["ci_low"] == row["ci_high"]
    return f"{row['value']:#.3g}" if exact else repr(as_interval(row))


def ratio_text(row: Row) -> str:
    """Return a ratio with its interval, given its logarithm."""
    return repr(as_interval(row).exp())


def text_of(estimate: pl.Expr, tell: Callable[[Row], str]) -> pl.Expr:
    """Return a column of texts made from a struct of columns."""
    return estimate.map_elements(tell, return_dtype=pl.String)


def corrected_p_values(tests: pl.DataFrame) -> pl.DataFrame:
    """Return p-values by site, corrected by Holm over the sites of a model, as text."""
    p_value = pl.col("value").map_batches(holm, return_dtype=pl.Float64).over("run", "model")
    corrected = tests.filter(pl.col("value").is_finite()).select("run", "model", "site", p_value)
    text = text_of(pl.struct("value"), lambda row: f"{row['value']:.2g}")
    return corrected.with_columns(text.alias("p (Holm)")).drop("value")
