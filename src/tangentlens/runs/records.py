"""The table of records: one row per number, with everything that identifies it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from tangentlens.runs.vocabulary import ALL_ROWS, ALL_TOKENS, known
from tangentlens.statistics.interval import Interval

SCHEMA = pl.Schema(
    {
        "run": pl.String,
        "model": pl.String,
        "revision": pl.String,
        "step": pl.Int64,
        "tokens_seen": pl.Int64,
        "site": pl.String,
        "depth": pl.Float64,
        "quantity": pl.String,
        "metric": pl.String,
        "variant": pl.String,
        "detail": pl.String,
        "order": pl.Float64,
        "rank": pl.Int64,
        "alpha": pl.Float64,
        "freq_bin": pl.String,
        "rows": pl.String,
        "seed": pl.Int64,
        "value": pl.Float64,
        "ci_low": pl.Float64,
        "ci_high": pl.Float64,
        "ci_over": pl.String,
        "n": pl.Int64,
    }
)

# What identifies a number: no two records agree in all of these.
KEY = [
    "model",
    "revision",
    "step",
    "site",
    "quantity",
    "metric",
    "variant",
    "order",
    "rank",
    "alpha",
    "freq_bin",
    "rows",
    "seed",
]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One number in the records.

    Attributes:
        model: The model's name in the run.
        revision: The model's revision, if it has any.
        step: The training step; 0 for a finished model.
        tokens_seen: How many tokens the model had been trained on.
        site: The site's name, or `mean` for the mean over sites.
        depth: The site's place between 0, before the first block, and 1, after the last.
        quantity: What was measured: activation, gradient, parameter_gradient, update, movement or loss.
        metric: What the number is; a name in the vocabulary.
        variant: The subspace, or another variant of the metric.
        detail: A word or sentence that belongs to the number: a verdict, a shape, a reason.
        order: The order of a share.
        rank: The rank of a subspace, or the dimension of tangent planes.
        alpha: The exponent with which token types are weighted by their frequency.
        freq_bin: The frequency bin, such as `input.0` or `target.3`, or `all`.
        rows: Which rows it is of: `all`, or `without_massive`.
        seed: The seed of everything that was drawn.
        value: The number.
        ci_low: The lower end of its 95% interval, if it has one.
        ci_high: The upper end.
        ci_over: The source of variation that the interval covers.
        n: How many rows, tokens or draws are behind it.
    """

    model: str
    revision: str = ""
    step: int = 0
    tokens_seen: int = 0
    site: str = ""
    depth: float | None = None
    quantity: str = ""
    metric: str = ""
    variant: str = ""
    detail: str = ""
    order: float | None = None
    rank: int | None = None
    alpha: float | None = None
    freq_bin: str = ALL_TOKENS
    rows: str = ALL_ROWS
    seed: int = 0
    value: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    ci_over: str | None = None
    n: int | None = None

    def estimate(self, metric: str, interval: Interval, **about: Any) -> Record:
        """Return a record like this one that holds an estimate with its interval."""
        return replace(self, metric=metric, **interval.columns(), **about)

    def unmeasured(self, reason: str) -> Record:
        """Return a record like this one that says why nothing could be measured."""
        return replace(self, metric="unmeasured", detail=reason, value=1.0)


def as_frame(run: str, records: Iterable[Record]) -> pl.DataFrame:
    """Return the records as a table of `SCHEMA`; two of them under one key, or an unknown metric, are a bug."""
    rows = [{"run": run, **vars(record)} for record in records]
    keys = Counter(tuple(row[name] for name in KEY) for row in rows)
    unknown = {metric for metric in {row["metric"] for row in rows} if not known(metric)}
    if unknown:
        raise ValueError(f"metrics must be in the vocabulary, but these are not: {', '.join(sorted(unknown))}")
    if len(keys) < len(rows):
        raise ValueError(f"records must differ in their keys, but several have this one: {keys.most_common(1)[0][0]}")
    return pl.DataFrame(rows, schema=SCHEMA)
