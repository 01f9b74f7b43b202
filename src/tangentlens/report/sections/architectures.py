"""What a part of the network does to its representations: each variation minus its baseline of the same seed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import plotly.graph_objects as go
import polars as pl

from tangentlens.models.variations import PLAIN, VARIATIONS
from tangentlens.report.contents import Figure, Section, Table
from tangentlens.report.drawing import COLOURS, bars, styled
from tangentlens.report.reading import without_massive
from tangentlens.runs.vocabulary import ACTIVATION, ALL_TOKENS, GRADIENT, MEAN_SITE
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.judging import Effect
from tangentlens.statistics.words import DIFFERENCE, relation

# What is compared with what, where it is not with the plain decoder. An encoder is a masked decoder without the causal
# mask; a masked decoder is a plain one that learns to predict masked tokens in place of the next one.
_COMPARED_WITH = {"encoder": "masked decoder"}
_KINDS = (*VARIATIONS, "masked decoder", "encoder")
_ANISOTROPY = (pl.col("metric") == "anisotropy") & (pl.col("quantity") == ACTIVATION)
_MIDDLE = pl.col("depth").is_between(1 / 3, 2 / 3)
_ENDS = pl.max_horizontal(pl.col("value").sort_by("depth").first(), pl.col("value").sort_by("depth").last())
# What is compared: which records, what is made of those of a network over depth, and the difference that matters.
_COMPARED = {
    "anisotropy": (_ANISOTROPY, pl.col("value").mean(), 0.02),
    "height of the bell": (_ANISOTROPY, pl.col("value").filter(_MIDDLE).mean() - _ENDS, 0.02),
    "ln(share of the proxy / chance)": (
        (pl.col("metric") == "log_ratio")
        & (pl.col("variant") == "random")
        & (pl.col("quantity") == GRADIENT)
        & (pl.col("order") == 1),
        pl.col("value").mean(),
        0.05,
    ),
    "ln(intrinsic dimension)": (
        (pl.col("metric") == "intrinsic_dimension") & (pl.col("variant") == "") & (pl.col("quantity") == ACTIVATION),
        pl.col("value").log().mean(),
        0.05,
    ),
}


def _at_sites(records: pl.DataFrame) -> pl.DataFrame:
    """Return the records of variations at their sites at the last step, without massive rows."""
    if "kind" not in records.columns or PLAIN not in records["kind"]:
        # These records do not say whose they are, or there is nothing to compare with.
        return records.clear().with_columns(kind=pl.lit(""), trained_seed=pl.lit(0))
    chosen = records.filter(
        pl.col("kind").is_in(_KINDS),
        pl.col("null") == "",
        pl.col("treatment") == "",
        pl.col("freq_bin") == ALL_TOKENS,
        pl.col("site") != MEAN_SITE,
        pl.col("depth").is_not_null(),
        pl.col("step") == pl.col("last_step"),
        pl.col("value").is_finite(),
    )
    return without_massive(chosen)


def differences(records: pl.DataFrame) -> dict[str, dict[str, Interval]]:
    """Return how each variation differs from its baseline of the same seed, with 95% intervals over seeds."""
    rows = _at_sites(records)
    found: dict[str, dict[str, Interval]] = {}
    for what, (chosen, made, _) in _COMPARED.items():
        values = rows.filter(chosen).group_by("kind", "run", "trained_seed", maintain_order=True).agg(value=made)
        baselines = values.select("run", "trained_seed", baseline="kind", expected="value")
        varied = values.filter(pl.col("kind") != PLAIN).with_columns(
            baseline=pl.col("kind").replace_strict(_COMPARED_WITH, default=PLAIN)
        )
        both = varied.join(baselines, on=["run", "trained_seed", "baseline"], maintain_order="left")
        apart = both.with_columns(apart=pl.col("value") - pl.col("expected")).drop_nulls("apart")
        for (kind,), of_kind in apart.group_by(["kind"], maintain_order=True):
            if of_kind.height > 1:
                found.setdefault(str(kind), {})[what] = Effect.of([of_kind["apart"].to_list()]).interval(0.95)
    return {kind: found[kind] for kind in _KINDS if kind in found}


def anisotropy_of_variations(records: pl.DataFrame) -> Figure | None:
    """Draw anisotropy over depth, means over the seeds of each variation."""
    rows = _at_sites(records).filter(_ANISOTROPY)
    if rows["kind"].n_unique() < 2:
        return None
    plot = go.Figure()
    for number, kind in enumerate(name for name in _KINDS if name in rows["kind"]):
        line = _over_depth(rows.filter(pl.col("kind") == kind))
        colour = "#6E6E6E" if kind == PLAIN else COLOURS[(number - 1) % len(COLOURS)]
        plot.add_trace(bars(line, "depth", kind, colour, "solid" if number <= len(COLOURS) else "dash"))
    plot.update_xaxes(title_text="depth (0 before the first block, 1 after the last)")
    plot.update_yaxes(title_text="anisotropy")
    title = f"Anisotropy over depth, beside that of the plain decoder: {_compared(differences(records))}"
    caption = "Means over seeds at the last step, without massive rows. Bars: 95% intervals over seeds."
    return Figure(title, caption, styled(plot, 460))


def _compared(found: dict[str, dict[str, Interval]]) -> str:
    """Return which variations have a higher or lower anisotropy, and how many are not decided."""
    margin = _COMPARED["anisotropy"][2]
    told: dict[str, list[str]] = {}
    for kind, one in found.items():
        if "anisotropy" in one:
            word = DIFFERENCE[relation(one["anisotropy"], margin=margin)]
            told.setdefault(word, []).append(f"{_named(kind)} {one['anisotropy']!r}")
    decided = [f"{word}: {', '.join(told.pop(word))}" for word in ("higher", "lower") if word in told]
    return "; ".join([*decided, *(f"{word}: {len(kinds)}" for word, kinds in told.items())]) or "not compared"


def _over_depth(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the mean over networks at each depth, with an interval if there are two or more."""
    means = [
        (depth, _mean(at["value"].to_list()))
        for (depth,), at in rows.sort("depth").group_by(["depth"], maintain_order=True)
    ]
    return pl.DataFrame(
        [(depth, one.value, one.ci_low, one.ci_high) for depth, one in means],
        schema=["depth", "value", "ci_low", "ci_high"],
        orient="row",
    )


def _mean(values: list[float]) -> Interval:
    return Effect.of([values]).interval(0.95) if len(values) > 1 else Interval(values[0], math.nan, math.nan)


def variation_table(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate the differences, each with what may be said of it."""
    found = differences(records)
    if found:
        rows = [
            {"variation": _named(kind)}
            | {what: _told(told.get(what), margin) for what, (_, _, margin) in _COMPARED.items()}
            for kind, told in found.items()
        ]
        title = "Each variation minus the plain decoder of the same seed, at the last step; 95% intervals over seeds"
        yield Table(title, pl.DataFrame(rows))


def _named(kind: str) -> str:
    """Return what to call a variation, with what it is compared with if that is not the plain decoder."""
    return f"{kind} (against {_COMPARED_WITH[kind]})" if kind in _COMPARED_WITH else kind


def _told(difference: Interval | None, margin: float) -> str:
    return "" if difference is None else f"{difference!r}, {DIFFERENCE[relation(difference, margin=margin)]}"


ABLATIONS = Section(
    question="What makes the shape: which part of the network?",
    command="tangentlens study architectures",
    figures=(anisotropy_of_variations,),
    tables=(variation_table,),
    rows=None,
)
