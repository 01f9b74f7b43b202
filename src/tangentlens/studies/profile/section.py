"""What a report says about a profile: figure, tables, and the shape of each measure over depth."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import polars as pl
from plotly.subplots import make_subplots

from tangentlens.report.contents import Figure, Section, Table
from tangentlens.report.drawing import COLOURS, bars, labelled, log_axis, models_of, styled
from tangentlens.report.reading import (
    IN_BATCHES,
    KEY,
    Row,
    as_interval,
    interval_text,
    mark,
    rows_text,
    text_of,
    without_massive,
)
from tangentlens.runs.vocabulary import (
    ACTIVATION,
    ALL_ROWS,
    METRICS,
    SD,
    SHAPE,
    WITHOUT_MASSIVE,
    derived,
)
from tangentlens.statistics.words import relation, tally
from tangentlens.studies.profile.cards import profile_cards
from tangentlens.studies.profile.shapes import decided

_ENDS = ("value", "ci_low", "ci_high")
# How the lines of all rows, and of rows without massive ones, are drawn.
_DASH = {ALL_ROWS: "solid", WITHOUT_MASSIVE: "dash"}


def _profiled(shown: tuple[str, ...]) -> list[str]:
    return [name for name, metric in METRICS.items() if metric.shown in shown]


def profile_over_depth(records: pl.DataFrame) -> Figure | None:
    """Draw every measure over depth, all models together."""
    rows = labelled(records).filter(pl.col("quantity") == ACTIVATION, pl.col("depth").is_not_null(), IN_BATCHES)
    rows = rows.with_columns(key=KEY)
    shown = [name for name in _profiled(("table", "figure")) if name in rows["key"]]
    if not shown or rows["depth"].n_unique() < 2:
        return None
    n_rows = -(-len(shown) // 3)
    titles = [METRICS[name].axis for name in shown]
    plot = make_subplots(n_rows, 3, shared_xaxes=True, subplot_titles=titles, vertical_spacing=0.09)
    for place, name in enumerate(shown):
        row, col = place // 3 + 1, place % 3 + 1
        for colour, model in zip(cycle(COLOURS), models_of(rows), strict=False):
            of_model = rows.filter(pl.col("key") == name, pl.col("model_label") == model).sort("depth")
            for which in of_model["rows"].unique().sort():
                line = of_model.filter(rows=ALL_ROWS) if which == ALL_ROWS else without_massive(of_model)
                label = model if which == ALL_ROWS else f"{model} without massive rows"
                trace = bars(line, "depth", label, colour, _DASH[which]).update(
                    legendgroup=label, showlegend=place == 0, text=line["site"].to_list()
                )
                plot.add_trace(trace, row=row, col=col)
        if _spread(rows.filter(pl.col("key") == name)):
            log_axis(plot, METRICS[name], row, col)
        if place + 3 >= len(shown):
            # The last row may have fewer panels than the one above it.
            plot.update_xaxes(title_text="depth", showticklabels=True, row=row, col=col)
    caption = (
        "Depth is 0 before the first block and 1 after the last. Means over batches of shuffled token vectors, with "
        "95% intervals over batches. The shape of a profile (bell, valley, irregular, monotone, flat) is decided over "
        "the same batches; undecided: neither a shape nor flatness could be shown."
    )
    return Figure(_title(rows, records), caption, styled(plot, 260 * n_rows + 80))


def _spread(rows: pl.DataFrame) -> bool:
    """Return whether values are far enough apart for a logarithmic axis, which would have hardly a tick otherwise."""
    known = rows.filter(pl.col("value").is_finite(), pl.col("value") > 0)["value"].sort()
    return len(known) > 0 and known[-1] > 3 * known[0]


def _title(rows: pl.DataFrame, records: pl.DataFrame) -> str:
    rows = rows.filter(pl.col("rows") == ALL_ROWS)
    shapes = labelled(records).filter(pl.col("metric") == derived(SHAPE, "anisotropy"), pl.col("rows") == ALL_ROWS)
    of_all = records.filter(pl.col("rows") == ALL_ROWS)
    kinds = {
        model: decided(of_all.filter(pl.col("run") == run, pl.col("model") == name), "anisotropy", "", kind)[0]
        for model, run, name, kind in shapes.select("model_label", "run", "model", "detail").rows()
    }
    told = []
    for (model,), line in rows.filter(pl.col("key") == "anisotropy").group_by(["model_label"], maintain_order=True):
        values = line["value"].to_list()
        told.append(f"{model} {min(values):.2g} to {max(values):.2g} ({kinds.get(str(model), 'no shape decided')})")
    return "Anisotropy over depth: " + "; ".join(sorted(told))


def profile_tables(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate mean and standard deviation over batches, site by site, one table per model.

    A dimension that is not to be trusted in at least half of the batches has a question mark.
    """
    key = ["run", "model", "site", "key"]
    records = records.filter(pl.col("rows") == ALL_ROWS)
    is_sd = pl.col("metric").str.starts_with(f"{SD}/")
    rows = records.with_columns(key=KEY.str.strip_prefix(f"{SD}/"))
    # The trouble of a dimension has its variant: over all tokens, or with one row per type.
    trouble = KEY.str.replace("^dimension_trouble", "intrinsic_dimension")
    doubted = records.filter(pl.col("metric") == "dimension_trouble", pl.col("value") >= 0.5).select(
        *key[:-1], key=trouble, doubted=True
    )
    wide = (
        rows.filter(~is_sd)
        .join(rows.filter(is_sd).select(*key, sd="value"), on=key)
        .join(doubted, on=key, how="left")
        .filter(pl.col("key").is_in(_profiled(("table",))))
        .with_columns(text=text_of(pl.struct("value", "sd", "decided", "doubted"), _with_deviation))
        .sort("run", "model", "depth", maintain_order=True)
        .pivot("key", index=key[:-1], values="text", maintain_order=True)
    )
    columns = [
        pl.col(name).alias(f"{METRICS[name].axis} ± sd") for name in _profiled(("table",)) if name in wide.columns
    ]
    for (model,), frame in wide.select(*key[:-1], *columns).group_by(["model"], maintain_order=True):
        note = "; ?: not to be trusted" if model in doubted["model"] else ""
        yield Table(f"{model}, site by site: mean ± standard deviation over batches{note}", frame.drop("model"))


def _with_deviation(row: Row) -> str:
    return f"{row['value']:.3g} ±{row['sd']:.1g}{mark(row)}{' ?' if row['doubted'] else ''}"


def shapes(rows: pl.DataFrame) -> Iterator[str]:
    """Say what the profile of each headline measure looks like over depth, by the test over batches."""
    values = {ALL_ROWS: rows.filter(pl.col("rows") == ALL_ROWS), WITHOUT_MASSIVE: without_massive(rows)}
    for name in _profiled(("table",)):
        metric, _, variant = name.partition(":")
        shape = rows.filter(metric=derived(SHAPE, metric), variant=variant)
        if not METRICS[name].decided_by:
            # Without massive rows it is hardly another.
            shape = shape.filter(rows=ALL_ROWS)
        for row in shape.iter_rows(named=True):
            value = values[row["rows"]].filter(name == KEY, pl.col("site") == row["site"])["value"][0]
            at = f"{value:#.3g} at {row['site']}"
            same = rows.filter(pl.col("rows") == row["rows"])
            kind, margin, more = decided(same, metric, variant, row["detail"])
            told = {
                "bell": f"a bell, {at}, above the higher end by {interval_text(row)}",
                "valley": f"a valley, {at}, off the lower end by {interval_text(row)}",
                "irregular": f"irregular, {at} stands out by {interval_text(row)}; no bell, valley or monotone profile",
                "monotone": f"monotone, the last site is off the first by {interval_text(row)}",
                "flat": f"flat, all differences between sites are within {margin}; the widest is {interval_text(row)}",
                "undecided": (
                    f"undecided, neither a shape nor that all differences between sites are within {margin} could be "
                    f"shown; the widest difference is {interval_text(row)}, and {more}"
                ),
            }[kind]
            label = METRICS[name].label
            which = rows_text(row["rows"])
            yield f"{label[0].upper()}{label[1:]} over depth{which}: {told} (95% interval over batches)."


def clusters(rows: pl.DataFrame) -> Iterator[str]:
    """Say whether the space is rounder inside clusters than as a whole."""
    of_all = rows.filter(pl.col("rows") == ALL_ROWS, pl.col("metric") == "local_anisotropy")
    inside, random = (of_all.filter(variant=variant) for variant in ("", "matched"))
    both = inside.join(random, on="site", suffix="_random")
    if both.height:
        kinds = [
            relation(as_interval(row).log_over(as_interval({end: row[f"{end}_random"] for end in _ENDS})))
            for row in both.iter_rows(named=True)
        ]
        means = " and ".join(f"{both[name].sum() / both.height:#.3g}" for name in ("value", "value_random"))
        yield (f"Inside clusters, the anisotropy is {tally(kinds, 'that of as many random rows')} (means {means}).")


SECTION = Section(
    question="What shape does the space have, layer by layer?",
    command="tangentlens profile MODEL",
    cards=(profile_cards,),
    figures=(profile_over_depth,),
    tables=(profile_tables,),
    findings=(shapes, clusters),
    rows=None,
)
