"""How records are read and put into words: what all sections share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from tangentlens.runs.run import Run
from tangentlens.runs.vocabulary import (
    ACTIVATION,
    ALL_ROWS,
    ALL_TOKENS,
    CHECKPOINT,
    FLAGGED,
    GRADIENT,
    HELD_BY_TOP,
    HELD_OUT,
    MEAN_SITE,
    METRICS,
    MOVEMENT,
    NULLS,
    OTHER_TOKENS,
    PROXY,
    SAME_WEIGHTS,
    SD,
    SHAPE,
    WITHOUT_MASSIVE,
)
from tangentlens.statistics.corrections import holm
from tangentlens.statistics.influence import DECIDES, TOP
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.words import Relation, relation

# The key of a metric in the vocabulary, from its columns in the records.
KEY = pl.concat_str("metric", "variant", separator=":").str.strip_suffix(":")
# Whether a record is of the proxy, and not of a control.
IS_PROXY = pl.col("detail") == PROXY
# Whether a model was measured in several batches, as profiles are, and not in the steps of a training.
IN_BATCHES = pl.col("metric").str.starts_with(f"{SD}/").any().over("run", "model")

# What the manifest says of a network.
_FACTS = {
    "network": pl.String,
    "kind": pl.String,
    "family": pl.String,
    "treatment": pl.String,
    "trained_seed": pl.Int64,
    "epoch": pl.Int64,
    "token_entropy": pl.Float64,
    "weights": pl.String,
}

# What marks a number that a few rows decide, and what the mark means.
MARK = "†"
LEGEND = (
    f"{MARK} The top {TOP:.0%} of the rows, or for gradients of the tokens, hold more than half of this number. "
    "Figures show it with a hollow marker."
)
# What the text of an estimate is made from.
ESTIMATE = pl.struct("value", "ci_low", "ci_high", "decided")

Row = dict[str, Any]


def read_runs(runs: Sequence[Run]) -> pl.DataFrame:
    """Return the records of all runs, under their names, or under their paths where two have the same name.

    Columns say which network a record is of, and what the manifest says of it: `network`, `null` (empty for the network
    itself, and `held-out text` for the network on text that it was not trained on), `kind`, `family` (networks that
    differ in their seed alone), `treatment` (what was done to its training beyond the plain recipe), `trained_seed`,
    `epoch` (its number of steps), `token_entropy` (of the distribution that it was trained on, in nats), `weights`
    (their hash) and `last_step`, the last step of the network in the run.

    Frequency bins of single sites come at the last step alone: they are most of the records of a long run, and no
    report shows them over training.
    """
    names = [run.name for run in runs]
    clash = len(set(names)) < len(names)
    labels = [str(run.path) if clash else run.name for run in runs]
    return pl.concat(
        [_with_facts(run).with_columns(run=pl.lit(label)) for run, label in zip(runs, labels, strict=True)]
    )


def _with_facts(run: Run) -> pl.DataFrame:
    """Return the records of a run with what its manifest says of their networks."""
    suffix = rf" \(({'|'.join((*NULLS, HELD_OUT))})\)$"
    records = _shown(run.records).with_columns(
        network=pl.col("model").str.replace(suffix, ""), null=pl.col("model").str.extract(suffix).fill_null("")
    )
    rows = [
        {
            "network": name,
            "kind": facts.get("kind", ""),
            "family": facts.get("family", ""),
            "treatment": facts.get("treatment", ""),
            "trained_seed": facts.get("trained_seed"),
            "epoch": facts.get("epoch"),
            "token_entropy": facts.get("token_entropy"),
            "weights": facts.get("weights_sha256", ""),
        }
        for name, facts in run.manifest.get("models", {}).items()
    ]
    facts = pl.DataFrame(rows, schema=_FACTS)
    joined = records.join(facts, on="network", how="left", maintain_order="left")
    return joined.with_columns(
        pl.col("kind", "family", "treatment", "weights").fill_null(""), last_step=pl.col("step").max().over("network")
    )


def _shown(records: pl.DataFrame) -> pl.DataFrame:
    """Return the records without the frequency bins of single sites at steps before the last one of their metric."""
    of_site = (pl.col("freq_bin") != ALL_TOKENS) & (pl.col("site") != MEAN_SITE)
    last = records.group_by("model", "quantity", "metric", "rows").agg(last=pl.max("step"))
    joined = records.join(last, on=["model", "quantity", "metric", "rows"], how="left", maintain_order="left")
    return joined.filter(~of_site | (pl.col("step") == pl.col("last"))).drop("last")


def marked(records: pl.DataFrame) -> pl.DataFrame:
    """Return the records with a column `decided`: whether the top 1% of rows or tokens hold more than half of a number.

    For a mean over sites, it is whether they do at any site. Records that have the column are returned as they are.
    """
    if "decided" in records.columns:
        return records
    of_activation = pl.col("quantity") == ACTIVATION
    key = ["run", "model", "revision", "step", "rows", "quantity", "freq_bin", "what"]
    # What is decided: a measure's own part for activations, the order of the share for gradients.
    what = (
        pl.when(of_activation)
        .then(KEY.replace_strict({name: metric.decided_by for name, metric in METRICS.items()}, default=""))
        .when(pl.col("metric").is_in(["share", "log_ratio"]), IS_PROXY | (pl.col("metric") == "log_ratio"))
        .then(pl.col("order").cast(pl.String))
        .otherwise(pl.lit(""))
    )
    # In a filter, NaN is larger than any number.
    decides = pl.col("value").is_finite() & (pl.col("value") > DECIDES)
    held = records.filter(pl.col("metric") == HELD_BY_TOP, decides).with_columns(
        what=pl.when(of_activation).then("variant").otherwise(pl.col("order").cast(pl.String))
    )
    anywhere = held.with_columns(site=pl.lit(MEAN_SITE))
    few = pl.concat([held, anywhere]).select(*key, "site", decided=pl.lit(True)).unique()
    joined = records.with_columns(what=what).join(few, on=[*key, "site"], how="left", maintain_order="left")
    return joined.with_columns(pl.col("decided").fill_null(False)).drop("what")


def without_massive(records: pl.DataFrame) -> pl.DataFrame:
    """Return records of rows that are not massive: those without massive rows at sites that have any, else of all."""
    without = pl.col("rows") == WITHOUT_MASSIVE
    # The site of a shape is where it stands out, which need not have massive rows.
    of_site = without & ~pl.col("metric").str.starts_with(SHAPE)
    # The probe has rows of its own, and its massive ones say nothing about those of the step.
    key = ["run", "model", "revision", "step", "site", pl.col("quantity") == MOVEMENT]
    return records.filter(without | ~of_site.any().over(key))


def undoubted(records: pl.DataFrame) -> pl.DataFrame:
    """Return the records without those of checkpoints that are not what their names say, but with the word of that.

    These are checkpoints of a sweep whose weights are those of another step, or that saw other tokens. A rise of the
    loss is a suspicion only: their numbers stay.
    """
    flagged = (pl.col("metric") == FLAGGED) & pl.col("variant").is_in([SAME_WEIGHTS, OTHER_TOKENS])
    # Most runs have none, and to look at every step of every model takes long.
    if not records.select(flagged.any()).item():
        return records
    told = pl.col("quantity") == CHECKPOINT
    return records.filter(told | ~flagged.any().over("run", "model", "step"))


def rows_text(rows: str) -> str:
    """Return what to add to the name of something, given the rows that it was measured on; nothing for all rows."""
    return "" if rows == ALL_ROWS else ", without massive rows"


def last_measured(rows: pl.DataFrame) -> pl.DataFrame:
    """Return only the last step of each model, given rows of one metric, which not every step may have."""
    return rows.filter(pl.col("step") == pl.col("step").max().over("run", "model"))


def shares(records: pl.DataFrame, metric: str = "share", quantity: str = GRADIENT) -> pl.DataFrame:
    """Return shares of gradients, or ratios of such shares, of all tokens and of frequency bins."""
    return records.filter(pl.col("quantity") == quantity, pl.col("metric") == metric)


def mean_shares(records: pl.DataFrame, metric: str, order: float = 1.0) -> pl.DataFrame:
    """Return shares, or ratios of shares, of all tokens, on average over sites."""
    return shares(records, metric).filter(
        pl.col("site") == MEAN_SITE, pl.col("order") == order, pl.col("freq_bin") == ALL_TOKENS
    )


def as_interval(row: Row) -> Interval:
    """Return the estimate in a row of the records; an end that is missing there is NaN."""
    low, high = (math.nan if row[end] is None else row[end] for end in ("ci_low", "ci_high"))
    return Interval(row["value"], low, high, row.get("ci_over") or "")


def relations(log_ratios: pl.DataFrame) -> list[Relation]:
    """Return what may be said of each log-ratio."""
    return [relation(as_interval(row)) for row in log_ratios.iter_rows(named=True)]


def interval_text(row: Row) -> str:
    """Return a value with its interval; a value that is known exactly, as chance is, has none."""
    exact = row["ci_low"] is not None and row["ci_low"] == row["ci_high"]
    return (f"{row['value']:#.3g}" if exact else repr(as_interval(row))) + mark(row)


def range_text(row: Row) -> str:
    """Return the interval of a row as text; empty if it has none."""
    return "" if row["ci_low"] is None or row["ci_high"] is None else f"[{row['ci_low']:.3g}, {row['ci_high']:.3g}]"


def course_of(rows: pl.DataFrame) -> tuple[tuple[int, float], ...]:
    """Return the value at each step; nothing if there is only one."""
    return tuple(rows.select("step", "value").iter_rows()) if rows.height > 1 else ()


def mark(row: Row) -> str:
    """Return the mark of a number that a few rows decide; empty for others."""
    return MARK if row.get("decided") else ""


def ratio_text(row: Row) -> str:
    """Return a ratio with its interval, given its logarithm."""
    return repr(as_interval(row).exp()) + mark(row)


def text_of(estimate: pl.Expr, tell: Callable[[Row], str]) -> pl.Expr:
    """Return a column of texts made from a struct of columns."""
    return estimate.map_elements(tell, return_dtype=pl.String)


def corrected_p_values(tests: pl.DataFrame) -> pl.DataFrame:
    """Return p-values by site, corrected by Holm over the sites of a model, as text."""
    p_value = pl.col("value").map_batches(holm, return_dtype=pl.Float64).over("run", "model")
    corrected = tests.filter(pl.col("value").is_finite()).select("run", "model", "site", p_value)
    text = text_of(pl.struct("value"), lambda row: f"{row['value']:.2g}")
    return corrected.with_columns(text.alias("p (Holm)")).drop("value")
