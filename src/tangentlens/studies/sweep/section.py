"""What a report says about a sweep: what is missing or suspicious, how proxies turn, and what they predict."""

from __future__ import annotations

from collections.abc import Iterator

import plotly.graph_objects as go
import polars as pl

from tangentlens.alignment.prediction import GRADIENTS_NOW, GRADIENTS_THEN
from tangentlens.report.contents import Figure, Section, Table
from tangentlens.report.drawing import band, grid, labelled, step_axis, style_of, styled
from tangentlens.report.reading import IS_PROXY, as_interval, interval_text, last_measured, shares
from tangentlens.report.sections.shares import with_lines
from tangentlens.runs.vocabulary import (
    ALL_TOKENS,
    CHECKPOINT,
    FLAGGED,
    LATER_GRADIENT,
    LOSS,
    MEAN_SITE,
    OTHER_TOKENS,
    PROXY,
    SAME_WEIGHTS,
)
from tangentlens.statistics.words import compare

# Lines that are no subspace of the vocabulary: gradients themselves.
_GRADIENTS = {
    GRADIENTS_THEN: ("leading gradients of the checkpoint before", "#009E73", "dash"),
    GRADIENTS_NOW: ("leading gradients of the checkpoint itself", "#56B4E9", "dot"),
}
_PANELS = {1.0: "energy share (order 1)", 2.0: "anisotropy share (order 2)"}


def turning(records: pl.DataFrame) -> Figure | None:
    """Draw the overlap of subspaces with those of the checkpoint before."""
    rows = with_lines(labelled(records).filter(pl.col("metric") == "overlap", pl.col("site") == MEAN_SITE))
    if rows["step"].n_unique() < 2:
        return None

    def draw(name: str, line: pl.DataFrame) -> Iterator[go.Scatter]:
        style = style_of(line, name == PROXY)
        return band(line, style.label, style.colour, style.dash)

    plot = grid(rows.sort("step"), "metric", {"overlap": "overlap"}, "line", draw)
    plot.update_yaxes(range=[0, 1.02])
    step_axis(plot, rows, last_row=1)
    told = []
    for (model,), steps in (
        rows.filter(pl.col("line") == PROXY).sort("step").group_by("model_label", maintain_order=True)
    ):
        first, last = steps.row(0, named=True), steps.row(-1, named=True)
        told.append(f"{model} {first['value']:.2f} (step {first['step']}), {last['value']:.2f} (step {last['step']})")
    caption = (
        "Mean squared cosine of the angles between a subspace and that of the checkpoint before, mean over sites: 1 if "
        "it has not turned, rank / width for random directions. A fit to other sequences turns a subspace too. "
        "Without interval."
    )
    return Figure(
        f"Overlap of the proxy with that of the checkpoint before: {'; '.join(told)}", caption, styled(plot, 360)
    )


def prediction(records: pl.DataFrame) -> Figure | None:
    """Draw what subspaces of the checkpoint before take of a checkpoint's gradients."""
    rows = shares(labelled(records), quantity=LATER_GRADIENT).filter(
        pl.col("site") == MEAN_SITE, pl.col("freq_bin") == ALL_TOKENS, pl.col("order").is_in(list(_PANELS))
    )
    rows = rows.with_columns(line=pl.when(IS_PROXY).then(pl.lit(PROXY)).otherwise("variant")).sort("step")
    if rows["step"].n_unique() < 2:
        return None

    def draw(name: str, line: pl.DataFrame) -> Iterator[go.Scatter]:
        if name in _GRADIENTS:
            return band(line, *_GRADIENTS[name])
        style = style_of(line, name == PROXY)
        return band(line, style.label, style.colour, style.dash)

    plot = grid(rows, "order", _PANELS, "line", draw)
    step_axis(plot, rows, last_row=len(_PANELS))
    last = last_measured(rows.filter(pl.col("line") == PROXY, pl.col("order") == 1.0))
    told = "; ".join(f"{row['model_label']} {interval_text(row)}" for row in last.iter_rows(named=True))
    caption = (
        "Share of a checkpoint's gradients in subspaces of the checkpoint before, mean over sites. Bands: 95% "
        "jackknife intervals over the test sequences; the subspaces are held fixed."
    )
    return Figure(f"Later gradients in the earlier proxy, at the last checkpoint: {told}", caption, styled(plot, 620))


def troubles(records: pl.DataFrame) -> Iterator[Table]:
    """List the checkpoints that failed, and those that may not be what their names say."""
    rows = records.filter(pl.col("quantity") == CHECKPOINT, pl.col("metric").is_in([FLAGGED, "unmeasured"]))
    state = (
        pl.when(pl.col("metric") == "unmeasured")
        .then(pl.lit("not measured"))
        .when(pl.col("variant").is_in([SAME_WEIGHTS, OTHER_TOKENS]))
        .then(pl.lit("left out"))
        .otherwise(pl.lit("suspicious"))
    )
    frame = rows.sort("run", "model", "step").select(
        "run",
        "model",
        "step",
        pl.col("revision").alias("checkpoint"),
        state.alias("state"),
        pl.col("detail").alias("why"),
    )
    yield Table("Checkpoints that are missing or suspicious", frame)


def counted(rows: pl.DataFrame) -> Iterator[str]:
    """Say how many checkpoints were measured, how many are left out of all sentences, and how many are suspicious."""
    of_sweep = rows.filter(pl.col("metric").is_in(["earlier_step", FLAGGED])).height
    if not of_sweep:
        return
    flagged = rows.filter(pl.col("metric") == FLAGGED)
    # Numbers of checkpoints that are left out do not come here.
    counted = rows.filter(pl.col("quantity") == LOSS)["step"].n_unique()
    left_out = flagged.filter(pl.col("variant").is_in([SAME_WEIGHTS, OTHER_TOKENS]))["step"]
    suspicious = flagged.filter(~pl.col("step").is_in(left_out.implode()))["step"].n_unique()
    yield f"{counted + left_out.n_unique()} checkpoints were measured."
    if left_out.len():
        yield (
            f"{left_out.n_unique()} of them are not what their names say: their weights equal those of another step, "
            "or they saw other tokens. They are drawn, but no sentence, table or verdict counts them."
        )
    if suspicious:
        yield (
            f"{suspicious} of them may not be what their names say. They are drawn and counted with the others, so "
            "read the table of missing and suspicious checkpoints before any trend."
        )


def predicted(rows: pl.DataFrame) -> Iterator[str]:
    """Say how much of the last checkpoint's gradients the proxy of the one before takes."""
    means = rows.filter(pl.col("site") == MEAN_SITE, pl.col("freq_bin") == ALL_TOKENS, pl.col("order") == 1.0)
    share = last_measured(shares(means, quantity=LATER_GRADIENT)).filter(IS_PROXY)
    ratios = last_measured(shares(means, "log_ratio", LATER_GRADIENT))
    for row in share.iter_rows(named=True):
        told = "; ".join(compare(one["variant"], as_interval(one)) for one in ratios.iter_rows(named=True))
        yield (
            f"The proxy of the checkpoint before takes {interval_text(row)} of the energy of the gradients at step "
            f"{row['step']}, averaged over sites: {told}."
        )


SECTION = Section(
    question="Are the checkpoints what they seem, and what happens between them?",
    command="tangentlens sweep CHECKPOINTS",
    figures=(turning, prediction),
    tables=(troubles,),
    findings=(counted, predicted),
)
