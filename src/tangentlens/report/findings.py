"""Findings: plain sentences, each with its interval, from the records of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
from scipy import stats

from tangentlens.alignment.intervals import Interval
from tangentlens.alignment.tangent_test import PROXY
from tangentlens.alignment.verdict import emergence
from tangentlens.measures import MEAN_SITE

CONTROLS = ("normal", "random", "pca")

Row = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """One sentence about one model."""

    run: str
    model: str
    text: str


def findings(records: pl.DataFrame) -> list[Finding]:
    """Every sentence the records of one or more runs support, model by model."""
    found = []
    for (run, model), rows in records.group_by(["run", "model"], maintain_order=True):
        found += [Finding(str(run), str(model), text) for text in _sentences(rows)]
    return found


def _sentences(rows: pl.DataFrame) -> Iterator[str]:
    last = rows.filter(pl.col("step") == pl.col("step").max())
    yield from _loss(rows)
    for order, what in ((1.0, "energy"), (2.0, "anisotropy")):
        yield from _share(last, order, what)
    yield from _emergence(rows)
    yield from _above_chance(rows)
    yield from _frequency(last)
    yield from _change(rows, "anisotropy", MEAN_SITE, "Anisotropy of the activations, on average over sites,")
    middle = _middle_site(rows)
    if middle:
        yield from _change(rows, "intrinsic_dimension", middle, f"Intrinsic dimension of the activations at {middle}")


def _loss(rows: pl.DataFrame) -> Iterator[str]:
    loss = rows.filter(pl.col("metric") == "loss").sort("step")
    if loss.height > 1:
        first, last = loss.row(0, named=True), loss.row(-1, named=True)
        yield (
            f"Training loss went from {first['value']:.2f} (step {first['step']}) to {last['value']:.2f} "
            f"(step {last['step']}) nats per predicted token."
        )


def _share(last: pl.DataFrame, order: float, what: str) -> Iterator[str]:
    rows = last.filter(pl.col("site") == MEAN_SITE, pl.col("order") == order, pl.col("freq_bin") == "all")
    shares = {row["variant"]: row for row in rows.filter(pl.col("metric") == "share").iter_rows(named=True)}
    ratios = {row["variant"]: row for row in rows.filter(pl.col("metric") == "log_ratio").iter_rows(named=True)}
    if PROXY not in shares:
        return
    proxy = shares[PROXY]
    yield (
        f"At step {proxy['step']} the rank-{proxy['rank']} proxy takes {_interval(proxy)} of the gradient's {what} on "
        f"average over sites (chance {shares['random']['value']:.3g}): "
        + "; ".join(_comparison(name, ratios[name]) for name in CONTROLS if name in ratios)
        + "."
    )


def _comparison(control: str, ratio: Row) -> str:
    low, high = ratio["ci_low"], ratio["ci_high"]
    word = "more than" if low > 0 else "less than" if high < 0 else "not told apart from"
    return f"{word} {control} ({_ratio(ratio)} times)"


def _emergence(rows: pl.DataFrame) -> Iterator[str]:
    ratios = rows.filter(
        pl.col("metric") == "log_ratio",
        pl.col("site") == MEAN_SITE,
        pl.col("variant") == "normal",
        pl.col("order") == 1,
        pl.col("freq_bin") == "all",
    ).sort("step")
    if ratios.height < 3:
        return
    seen = emergence(ratios["step"].to_list(), ratios["ci_low"].to_list())
    if seen.step is None:
        yield "Its energy share does not stay above the normal control's."
    else:
        yield (
            f"Its energy share stays above the normal control's from step {seen.step} on; since it was first above, "
            f"it was so at {seen.held} of {seen.later} measured steps."
        )


def _above_chance(rows: pl.DataFrame) -> Iterator[str]:
    """An interval over sequences takes the proxy as given; this asks whether a random one would have done as well."""
    p_values = rows.filter(
        pl.col("metric") == "p_value", pl.col("variant") == "random", pl.col("order") == 1, pl.col("freq_bin") == "all"
    )
    steps = p_values["step"].unique().sort().to_list()
    if len(steps) < 2:
        return
    counts = []
    for step in (steps[0], steps[-1]):
        values = p_values.filter(pl.col("step") == step)["value"].to_numpy()
        above = int((stats.false_discovery_control(values) < 0.05).sum())
        counts.append(f"{above} of {len(values)} sites at step {step}")
    yield (
        f"A random subspace would be unlikely to take that much energy at {counts[0]} and at {counts[1]} "
        "(5% level, Benjamini-Hochberg over sites)."
    )


def _frequency(last: pl.DataFrame) -> Iterator[str]:
    for kind in ("target", "input"):
        rows = last.filter(
            pl.col("metric") == "frequency_log_ratio",
            pl.col("site") == MEAN_SITE,
            pl.col("order") == 1,
            pl.col("freq_bin") == kind,
        )
        for row in rows.iter_rows(named=True):
            word = "above" if row["ci_low"] > 0 else "below" if row["ci_high"] < 0 else "not told apart from"
            yield (
                f"By {kind} token, the proxy's energy share on the most frequent quarter of the text is {word} that on "
                f"the rarest ({_ratio(row)} times)."
            )


def _change(rows: pl.DataFrame, metric: str, site: str, what: str) -> Iterator[str]:
    series = rows.filter(pl.col("metric") == metric, pl.col("quantity") == "activation", pl.col("site") == site).sort(
        "step"
    )
    if series.height < 2:
        return
    first, last = series.row(0, named=True), series.row(-1, named=True)
    apart = first["ci_high"] < last["ci_low"] or last["ci_high"] < first["ci_low"]
    direction = "rises" if first["value"] < last["value"] else "falls"
    yield (
        f"{what} {direction + ' from' if apart else 'is not told apart between'} {_interval(first)} "
        f"(step {first['step']}) {'to' if apart else 'and'} {_interval(last)} (step {last['step']})."
    )


def _middle_site(rows: pl.DataFrame) -> str | None:
    """The measured site nearest to half the depth."""
    known = rows.filter(pl.col("metric") == "intrinsic_dimension", pl.col("depth").is_not_null())
    if known.is_empty():
        return None
    return str(known.sort((pl.col("depth") - 0.5).abs(), maintain_order=True)["site"][0])


def _interval(row: Row) -> str:
    return repr(Interval(row["value"], row["ci_low"], row["ci_high"]))


def _ratio(row: Row) -> str:
    return repr(Interval(math.exp(row["value"]), math.exp(row["ci_low"]), math.exp(row["ci_high"])))


def share_table(records: pl.DataFrame) -> pl.DataFrame:
    """Proxy beside controls at each model's last step, on average over sites, as text with intervals."""
    key = ["run", "model", "step", "order", "variant"]
    rows = records.filter(pl.col("site") == MEAN_SITE, pl.col("freq_bin") == "all").filter(
        pl.col("step") == pl.col("step").max().over("run", "model")
    )
    estimate = pl.struct("value", "ci_low", "ci_high")
    shares = rows.filter(pl.col("metric") == "share").select(*key, share=_told(estimate, _interval))
    ratios = rows.filter(pl.col("metric") == "log_ratio").select(*key, ratio=_told(estimate, _ratio))
    return (
        shares.join(ratios, on=key, how="left")
        .sort("run", "model", "order", pl.col("variant").cast(pl.Enum([PROXY, *CONTROLS])))
        .select(
            "run",
            "model",
            "step",
            pl.col("order").replace_strict({1.0: "energy", 2.0: "anisotropy"}).alias("share of"),
            pl.col("variant").alias("subspace"),
            "share",
            pl.col("ratio").fill_null("").alias("proxy / it"),
        )
    )


def _told(estimate: pl.Expr, tell: Callable[[Row], str]) -> pl.Expr:
    return estimate.map_elements(tell, return_dtype=pl.String)
