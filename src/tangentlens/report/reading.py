"""How records are read and told: what findings, tables and figures share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from tangentlens.lens.measures import ONE_PER_TYPE
from tangentlens.runs.run import Run
from tangentlens.statistics.interval import Interval

# What of a profile is told and shown, and how it is called there.
PROFILED = {
    "anisotropy": "anisotropy",
    "mean_cosine": "mean cosine",
    "intrinsic_dimension": "dimension",
    f"intrinsic_dimension:{ONE_PER_TYPE}": "dimension of types",
    "manifold_entropy": "entropy (nats)",
    "effective_rank": "effective rank",
    "isoscore": "IsoScore",
    "local_anisotropy": "anisotropy inside clusters",
    "local_anisotropy:matched": "anisotropy of as many random rows",
}
# A measure's name in `PROFILED`, from its columns in the records.
MEASURE = pl.concat_str("metric", "variant", separator=":").str.strip_suffix(":")
# Those that have a sentence on their shape, and a column in the table.
HEADLINES = tuple(PROFILED)[:5]

Row = dict[str, Any]


def read_runs(runs: Sequence[Run]) -> pl.DataFrame:
    """The records of all runs, under their names, or under their paths where two have the same name."""
    names = [run.name for run in runs]
    clash = len(set(names)) < len(names)
    labels = [str(run.path) if clash else run.name for run in runs]
    return pl.concat([run.records.with_columns(run=pl.lit(label)) for run, label in zip(runs, labels, strict=True)])


def last_measured(rows: pl.DataFrame) -> pl.DataFrame:
    """Only the last step of each model; to be asked of rows of one metric, which not every step may have."""
    return rows.filter(pl.col("step") == pl.col("step").max().over("run", "model"))


def interval_text(row: Row) -> str:
    """A value with its interval; one that is known exactly, as chance is, has none."""
    exact = row["ci_low"] == row["ci_high"]
    return f"{row['value']:#.3g}" if exact else repr(Interval(row["value"], row["ci_low"], row["ci_high"]))


def ratio_text(row: Row) -> str:
    """A ratio with its interval, from its logarithm."""
    return repr(Interval(row["value"], row["ci_low"], row["ci_high"]).exp())
