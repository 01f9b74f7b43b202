"""Tables: one function a table, of texts with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable

import polars as pl

from tangentlens.alignment.tangent_result import PROXY, WHAT
from tangentlens.alignment.tangent_test import CONTROLS
from tangentlens.lens.measures import MEAN_SITE
from tangentlens.report.reading import HEADLINES, MEASURE, PROFILED, Row, interval_text, last_measured, ratio_text
from tangentlens.statistics.corrections import holm
from tangentlens.statistics.shape import BATCHES
from tangentlens.studies.visibility import CORRELATION, P_VALUE, RATIO

VISIBILITY = (
    "curvature visible at the corpus' frequencies over that of even types, its p-value against frequencies dealt out "
    "at random, the correlation of frequency with distance, and the tangent planes: their dimension, of that of patches"
    ", and whether they stand out"
)


def share_table(records: pl.DataFrame) -> pl.DataFrame:
    """Proxy beside controls at each model's last measured step, on average over sites, as text with intervals."""
    key = ["run", "model", "step", "order", "variant"]
    rows = records.filter(pl.col("site") == MEAN_SITE, pl.col("freq_bin") == "all")
    estimate = pl.struct("value", "ci_low", "ci_high")
    shares = last_measured(rows.filter(pl.col("metric") == "share")).select(*key, share=_told(estimate, interval_text))
    ratios = rows.filter(pl.col("metric") == "log_ratio").select(*key, ratio=_told(estimate, ratio_text))
    return (
        shares.join(ratios, on=key, how="left")
        .sort("run", "model", "order", pl.col("variant").cast(pl.Enum([PROXY, *CONTROLS])))
        .select(
            "run",
            "model",
            "step",
            pl.col("order").replace_strict(WHAT).alias("share of"),
            pl.col("variant").alias("subspace"),
            "share",
            pl.col("ratio").fill_null("").alias("proxy / it"),
        )
    )


def controls_table(records: pl.DataFrame) -> pl.DataFrame:
    """Site by site, the proxy's energy share beside that of every control, where a run has no mean over sites."""
    key = ["run", "model", "site"]
    rows = records.filter(pl.col("freq_bin") == "all", pl.col("order") == 1)
    shares = rows.filter(pl.col("metric") == "share").filter(~(pl.col("site") == MEAN_SITE).any().over("run", "model"))
    told = shares.with_columns(
        told=_told(
            pl.struct("variant", "value", "ci_low", "ci_high"),
            lambda row: interval_text(row) if row["variant"] == PROXY else f"{row['value']:.3g}",
        )
    )
    wide = told.sort("run", "model", "depth", maintain_order=True).pivot(
        "variant", index=key, values="told", maintain_order=True
    )
    tests = rows.filter(pl.col("metric") == "p_value", pl.col("variant") == "random")
    return wide.join(_corrected(tests), on=key, how="left", maintain_order="left")


def profile_table(records: pl.DataFrame) -> pl.DataFrame:
    """Site by site, the mean and standard deviation over batches of the headlines of a profile."""
    key = ["run", "model", "site"]
    rows = records.filter(pl.col("ci_over") == BATCHES).with_columns(name=MEASURE)
    sds = records.with_columns(name=MEASURE.str.replace("_sd", "", literal=True)).filter(
        pl.col("metric").str.ends_with("_sd")
    )
    told = (
        rows.join(sds.select(*key, "name", sd="value"), on=[*key, "name"], how="left")
        .filter(pl.col("name").is_in(HEADLINES))
        .with_columns(told=_told(pl.struct("value", "sd"), lambda row: f"{row['value']:.3g} ±{row['sd']:.1g}"))
    )
    columns = [name for name in HEADLINES if name in told["name"]]
    wide = told.sort("run", "model", "depth", maintain_order=True).pivot(
        "name", index=key, values="told", maintain_order=True
    )
    return wide.select(*key, *(pl.col(name).alias(PROFILED[name]) for name in columns))


def visibility_table(records: pl.DataFrame) -> pl.DataFrame:
    """Site by site, visible curvature at the corpus' frequencies over that of even types, and whether it means much."""
    key = ["run", "model", "site"]
    rows = records.filter(pl.col("site") != "").sort("run", "model", "depth", maintain_order=True)

    def column(name: str, metric: str, variant: str, tell: Callable[[Row], str]) -> pl.DataFrame:
        here = rows.filter(pl.col("metric") == metric, pl.col("variant") == variant)
        return here.select(*key, _told(pl.struct("value", "ci_low", "ci_high", "rank"), tell).alias(name))

    def told_ratio(row: Row) -> str:
        return "all may be flat" if math.isnan(row["value"]) else interval_text(row)

    ratio = column("ratio", RATIO, "corpus alpha=1", told_ratio)
    tests = rows.filter(pl.col("metric") == RATIO + P_VALUE, pl.col("variant") == "corpus alpha=1")
    for other in (
        _corrected(tests),
        column("correlation", CORRELATION, "corpus", interval_text),
        column("dimension", "intrinsic_dimension", "of patches", lambda row: f"{row['rank']} of {row['value']:.0f}"),
        column("planes", "resolved", "", lambda row: "stand out" if row["value"] else "do not"),
    ):
        ratio = ratio.join(other, on=key, how="left", maintain_order="left")
    return ratio.fill_null("")


def _corrected(tests: pl.DataFrame) -> pl.DataFrame:
    """P-values by site, corrected over the sites of a model."""
    p_value = pl.col("value").map_batches(holm, return_dtype=pl.Float64).over("run", "model")
    corrected = tests.select("run", "model", "site", p_value)
    return corrected.with_columns(_told(pl.struct("value"), lambda row: f"{row['value']:.2g}").alias("p (Holm)")).drop(
        "value"
    )


def _told(estimate: pl.Expr, tell: Callable[[Row], str]) -> pl.Expr:
    return estimate.map_elements(tell, return_dtype=pl.String)
