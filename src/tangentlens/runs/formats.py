"""Runs of earlier formats, read as if they were of the present one.

In format 1, words stood in `variant` that are in `detail` and `alpha` now. Formats 1 and 2 knew no rows but all, and no
positions that a lens skips.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from tangentlens.runs.vocabulary import ALL_ROWS, ANALYTIC, AUDIT, NULL, P_VALUE_OF, PROXY, SD, SHAPE, derived

# The present format.
FORMAT = 3
# Commands that named themselves in the configuration, and settings that only the demo has together.
_COMMANDS = ("profile", "audit", "visibility")
_DEMO = {"models", "learning_rate", "mask_rate", "vocabulary", "layers"}
_VERDICT = "says: "
# At the end of a variant, or before a reason.
_ALPHA = r"^(?:(corpus|types|dealt) )?alpha=([\d.]+)(?:$|: )"
# The name of the proxy, of which format 1 had only one.
_SEMI_NMF = "semi_nmf"
# Settings that a lens did not have yet, with the values that give what it did.
_LENS = {"proxy": _SEMI_NMF, "skip_first": 0, "massive": 10.0}
# The same for the plans of commands.
_PLANS = {"skip_first": 0, "bos": False, "massive": 10.0}
# Commands that had no choice of the format of weights, and always took float32.
_FLOAT32 = ("test", "audit", "visibility")
# Trainings that could not keep their checkpoints.
_TRAININGS = ("train", "demo")


def upgraded_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest of any format in the present one."""
    if manifest["format"] == FORMAT:
        return manifest | {"config": _with_defaults(manifest["made_by"], manifest["config"])}
    lenses = {name: {**_LENS, **settings} for name, settings in manifest.get("lenses", {}).items()}
    # Format 1 kept what made the run in the configuration, or not at all.
    config = dict(manifest["config"])
    made_by = manifest.get("made_by", "demo" if config.keys() >= _DEMO else "lens")
    if "made_by" not in manifest and config.get("command") in _COMMANDS:
        made_by = config.pop("command")
    if made_by in ("profile", "audit"):
        config = {**_PLANS, **config}
    upgraded = {"format": FORMAT, "made_by": made_by, "config": _with_defaults(made_by, config)}
    return manifest | upgraded | ({"lenses": lenses} if lenses else {})


def _with_defaults(made_by: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration that also says what its command had no choice of when the run was made."""
    before = {"dtype": "float32"} if made_by in _FLOAT32 else {"keep": False} if made_by in _TRAININGS else {}
    return {**before, **config}


def upgraded_records(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the records of a part of any format in the present one."""
    frame = frame if "detail" in frame.columns else _from_format_1(frame)
    return frame if "rows" in frame.columns else frame.with_columns(rows=pl.lit(ALL_ROWS))


def _from_format_1(frame: pl.DataFrame) -> pl.DataFrame:
    """Return records with the words of format 1 in columns of their own."""
    metric, variant = pl.col("metric"), pl.col("variant")
    audit, shape, alpha = metric == AUDIT, metric.str.starts_with("shape_of_"), variant.str.contains(_ALPHA)
    verdict = audit & variant.str.starts_with(_VERDICT)
    proxy = metric.is_in(["share", "token_share", "frequency_log_ratio", "window_share"]) & (variant == _SEMI_NMF)
    return frame.with_columns(
        detail=pl.when(metric == "unmeasured")
        .then(variant)
        .when(verdict)
        .then(variant.str.strip_prefix(_VERDICT))
        .when(shape)
        .then(variant.str.extract(r"(\w+)$", 1))
        .when(proxy)
        .then(pl.lit(PROXY))
        .otherwise(pl.lit("")),
        alpha=pl.when(alpha).then(variant.str.extract(_ALPHA, 2).cast(pl.Float64)),
        variant=pl.when(alpha)
        .then(variant.str.extract(_ALPHA, 1).fill_null("").replace("dealt", "permuted"))
        .when((metric == "unmeasured") | verdict)
        .then(pl.lit(""))
        .when(audit)
        .then(variant.str.replace(r"^.*?: ", "").str.replace("dealt", "permuted"))
        .when(shape)
        .then(variant.str.replace(r":?\w+$", ""))
        .otherwise(variant),
        ci_over=pl.col("ci_over").replace("deals", "permutations"),
        metric=pl.when(verdict)
        .then(pl.lit(derived(AUDIT, "verdict")))
        .when(audit)
        .then(pl.concat_str(pl.lit(f"{AUDIT}/"), variant.str.extract(r"^(.*?): ", 1)))
        .otherwise(
            metric.str.replace(r"^shape_of_(.*)$", f"{SHAPE}/$1")
            .str.replace(r"^(.*)_sd$", f"{SD}/$1")
            .str.replace(r"^(visible_.*)_analytic$", f"{ANALYTIC}/$1")
            .str.replace(r"^(.*)_dealt$", f"{NULL}/$1")
            .str.replace(r"^((?:visible|frequency)_.*)_p_value$", f"{P_VALUE_OF}/$1")
        ),
    )
