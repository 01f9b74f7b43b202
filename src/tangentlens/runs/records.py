"""The records table: one long row a number, with all that says what the number is."""

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

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
        "order": pl.Float64,
        "rank": pl.Int64,
        "freq_bin": pl.String,
        "seed": pl.Int64,
        "value": pl.Float64,
        "ci_low": pl.Float64,
        "ci_high": pl.Float64,
        "ci_over": pl.String,
        "n": pl.Int64,
    }
)

# What tells one number from another; no two rows of a run agree in all of these.
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
    "freq_bin",
    "seed",
]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One number: where and when it was measured, what it is, its value, and what its interval is over."""

    model: str
    revision: str = ""
    step: int = 0
    tokens_seen: int = 0
    site: str = ""
    depth: float | None = None
    quantity: str = ""
    metric: str = ""
    variant: str = ""
    order: float | None = None
    rank: int | None = None
    freq_bin: str = "all"
    seed: int = 0
    value: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    ci_over: str | None = None
    n: int | None = None


def as_frame(run: str, records: Iterable[Record]) -> pl.DataFrame:
    """The records as a table of `SCHEMA`."""
    return pl.DataFrame([{"run": run, **vars(record)} for record in records], schema=SCHEMA)
