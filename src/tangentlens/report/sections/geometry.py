"""Anisotropy, intrinsic dimension and other measures of activations over training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from tangentlens.geometry.measures import ONE_PER_TYPE
from tangentlens.report.contents import SIGNS, Card, Figure, Section, Sign
from tangentlens.report.drawing import BLUES, COLOURS, band, bars, grid, labelled, log_axis, spaced, step_axis, styled
from tangentlens.report.reading import (
    IN_BATCHES,
    KEY,
    Row,
    as_interval,
    course_of,
    interval_text,
    last_measured,
    range_text,
)
from tangentlens.runs.vocabulary import ACTIVATION, MEAN_SITE, METRICS
from tangentlens.statistics.words import WORDS, Relation, relation

# The measures that a lens takes, and their rows of the figures.
_WATCHED = [name for name, metric in METRICS.items() if metric.in_lens and metric.shown != "records"]


def _watched(records: pl.DataFrame) -> pl.DataFrame:
    """Return the measures of activations that a lens takes, of trainings and checkpoints."""
    of_activation = (pl.col("quantity") == ACTIVATION) & pl.col("key").is_in(_WATCHED)
    return labelled(records).with_columns(key=KEY).filter(of_activation, ~IN_BATCHES)


def geometry_over_training(records: pl.DataFrame) -> Figure | None:
    """Draw the measures of activations over the steps, each at three sites: early, half-way, late."""
    rows = _watched(records).filter(pl.col("depth").is_not_null())
    if rows["step"].n_unique() < 2:
        return None
    sites = rows.select("site", "depth").unique().sort("depth", "site")["site"].unique(maintain_order=True).to_list()
    shown = dict(zip(spaced(sites, 3), COLOURS, strict=False))
    panels = {name: METRICS[name].axis for name in _WATCHED if name in rows["key"]}
    plot = grid(
        rows.filter(pl.col("site").is_in(list(shown))).sort("depth", "step", maintain_order=True),
        "key",
        panels,
        "site",
        lambda site, line: band(line, site, shown[site]),
    )
    step_axis(plot, rows, last_row=len(panels))
    for row, name in enumerate(panels, start=1):
        log_axis(plot, METRICS[name], row)
    told = []
    for (model,), line in rows.filter(key="anisotropy").group_by(["model_label"], maintain_order=True):
        ends = line.group_by("step").agg(pl.mean("value")).sort("step")["value"]
        told.append(f"{model} {ends[0]:.2f} to {ends[-1]:.2f}")
    caption = (
        f"At {', '.join(shown)}. Bands: 95% intervals, of anisotropy over the step's sequences, of dimensions over "
        "tokens or types."
    )
    return Figure(
        f"Anisotropy from the first to the last step, mean over sites: {'; '.join(sorted(told))}",
        caption,
        styled(plot, 100 + 240 * len(panels)),
    )


def geometry_over_depth(records: pl.DataFrame) -> Figure | None:
    """Draw the measures of activations over depth, early and late in training."""
    rows = _watched(records).filter(pl.col("depth").is_not_null())
    if rows["depth"].n_unique() < 2:
        return None
    steps = spaced(rows["step"].unique().sort().to_list(), len(BLUES))
    colours = dict(zip(steps, BLUES[-len(steps) :], strict=True))
    panels = {name: METRICS[name].axis for name in _WATCHED if name in rows["key"]}
    plot = grid(
        rows.filter(pl.col("step").is_in(steps)).sort("key", "step", "depth", maintain_order=True),
        "key",
        panels,
        "step",
        lambda step, line: [bars(line, "site", f"step {step}", colours[step])],
    )
    for row, name in enumerate(panels, start=1):
        log_axis(plot, METRICS[name], row)
    caption = (
        "Anisotropy: 95% jackknife intervals over the step's sequences. Dimension: TwoNN on distinct rows, with 95% "
        "intervals over tokens or over types, in which rows linked by nearest-neighbour steps count as one. Over all "
        "tokens, a row's neighbours are mostly other occurrences of its own token, so that dimension describes how "
        "such occurrences spread; the dimension of types, with one row per type, describes how types spread."
    )
    return Figure(_title(rows), caption, styled(plot, 100 + 240 * len(panels)))


def _title(rows: pl.DataFrame) -> str:
    told = []
    last = last_measured(rows).filter(pl.col("metric") == "anisotropy").sort("value")
    for (model,), cells in last.group_by(["model_label"], maintain_order=True):
        low, high = cells.row(0, named=True), cells.row(-1, named=True)
        told.append(f"{model} {low['value']:.2f} ({low['site']}) to {high['value']:.2f} ({high['site']})")
    return "Anisotropy over depth at the last step: " + "; ".join(sorted(told))


def anisotropy_card(rows: pl.DataFrame) -> Iterator[Card]:
    """Show the anisotropy, averaged over sites."""
    yield from _card(rows, "anisotropy", MEAN_SITE, "Anisotropy, mean over sites")


def dimension_card(rows: pl.DataFrame) -> Iterator[Card]:
    """Show the intrinsic dimension half-way through the network."""
    middle = _middle_site(rows)
    doubted = _doubted(rows).filter(pl.col("variant") == "", pl.col("site") == middle).height > 0
    for card in _card(rows, "intrinsic_dimension", middle, f"Intrinsic dimension at {middle}"):
        yield replace(card, sign="open", verdict="not to be trusted, see the findings") if doubted else card


def _card(rows: pl.DataFrame, metric: str, site: str, title: str) -> Iterator[Card]:
    # Whether a model was measured in batches is seen from all of its records.
    series = _series(rows.filter(~IN_BATCHES), metric, "", site).filter(pl.col("value").is_finite())
    if series.is_empty():
        return
    first, last = series.row(0, named=True), series.row(-1, named=True)
    sign: Sign = "open"
    verdict = f"step {last['step']}"
    if series.height > 1:
        kind = _relation(last, first)
        sign = SIGNS[kind]
        verdict = f"{WORDS[kind]} {first['value']:.3g} at step {first['step']}"
    yield Card(title, f"{last['value']:.3g}", range_text(last), verdict, sign, course_of(series))


def change(rows: pl.DataFrame) -> Iterator[str]:
    """Say how anisotropy and dimension change over training."""
    yield from _changes(rows, "anisotropy", "", MEAN_SITE, "Anisotropy of the activations, averaged over sites,")
    middle = _middle_site(rows)
    for variant, what in (("", "over all tokens"), (ONE_PER_TYPE, "with one row per token type")):
        about = f"Intrinsic dimension of the activations at {middle}, {what},"
        yield from _changes(rows, "intrinsic_dimension", variant, middle, about)


def _changes(rows: pl.DataFrame, metric: str, variant: str, site: str, what: str) -> Iterator[str]:
    series = _series(rows, metric, variant, site)
    if series.height < 2:
        return
    first, last = series.row(0, named=True), series.row(-1, named=True)
    highest, lowest = (series.sort("value").row(place, named=True) for place in (-1, 0))
    for turn, name, kind in ((highest, "peak", "below"), (lowest, "low", "above")):
        if _relation(first, turn) == _relation(last, turn) == kind:
            yield f"{what} goes from {_at(first)} to a {name} of {_at(turn)} and ends at {_at(last)}."
            return
    kind = _relation(last, first)
    if kind in ("above", "below"):
        yield f"{what} {'rises' if kind == 'above' else 'falls'} from {_at(first)} to {_at(last)}."
    else:
        yield f"{what} is {_at(last)}, {WORDS[kind]} {_at(first)}."


def _series(rows: pl.DataFrame, metric: str, variant: str, site: str) -> pl.DataFrame:
    """Return a measure of the activations of a site, step by step."""
    return rows.filter(
        pl.col("metric") == metric,
        pl.col("quantity") == ACTIVATION,
        pl.col("site") == site,
        pl.col("variant") == variant,
    ).sort("step")


def _relation(a: Row, b: Row) -> Relation:
    """Return what may be said of two positive numbers, each with its own interval: the widest ratio they allow."""
    return relation(as_interval(a).log_over(as_interval(b)))


def _at(row: Row) -> str:
    return f"{interval_text(row)} (step {row['step']})"


def _middle_site(rows: pl.DataFrame) -> str:
    """Return the measured site nearest to half the depth; empty if there is none."""
    known = rows.filter(pl.col("metric") == "intrinsic_dimension", pl.col("depth").is_not_null())
    return "" if known.is_empty() else str(known.sort((pl.col("depth") - 0.5).abs(), maintain_order=True)["site"][0])


def _doubted(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the sites whose dimension is not to be trusted at the last step."""
    last = last_measured(rows.filter(pl.col("metric") == "dimension_trouble"))
    return last.filter(pl.col("value").is_finite(), pl.col("value") >= 0.5)


def untrusted(rows: pl.DataFrame) -> Iterator[str]:
    """Say at which sites a dimension is not to be trusted, at the last step."""
    last = last_measured(rows.filter(pl.col("metric") == "dimension_trouble"))
    doubted = _doubted(rows)
    misfits = last_measured(rows.filter(pl.col("metric") == "dimension_misfit"))
    for variant, what in (("", "over all tokens"), (ONE_PER_TYPE, "with one row per token type")):
        sites = last.filter(pl.col("variant") == variant, pl.col("value").is_finite())
        bad = doubted.filter(pl.col("variant") == variant)["site"].to_list()
        if bad:
            off = misfits.filter(pl.col("variant") == variant, pl.col("site").is_in(bad))["value"].to_list()
            where = f" ({', '.join(bad)})" if len(bad) < sites.height else ""
            yield (
                f"Intrinsic dimension {what} is not to be trusted at {len(bad)} of {sites.height} sites{where}: it "
                f"depends on the scale or on rounding, or the rows have no single dimension "
                f"(misfit {min(off):.2g} to {max(off):.2g}; an error of the dimension by 20% makes 0.067)."
            )


GEOMETRY = Section(
    question="What shape does the space take during training?",
    command="a Lens in a training, or tangentlens sweep",
    cards=(anisotropy_card, dimension_card),
    figures=(geometry_over_training, geometry_over_depth),
    findings=(change, untrusted),
)
