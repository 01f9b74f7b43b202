"""How the training itself went: the loss, and what could not be measured."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tangentlens.report.contents import Figure, Section
from tangentlens.report.drawing import band, grid, labelled, step_axis, styled
from tangentlens.runs.vocabulary import ALL_ROWS, HELD_OUT, LOSS


def loss_over_training(records: pl.DataFrame) -> Figure | None:
    """Draw the loss over the steps."""
    rows = labelled(records).filter(pl.col("metric") == LOSS, pl.col("variant") == "").sort("model_label", "step")
    if rows["step"].n_unique() < 2:
        return None
    plot = grid(rows, "metric", {LOSS: "nats per token"}, "metric", lambda _, line: band(line, LOSS, "#009E73"))
    step_axis(plot, rows, last_row=1)
    ends = rows.group_by("model_label", maintain_order=True).agg(first=pl.first("value"), last=pl.last("value"))
    told = "; ".join(f"{row['model_label']} from {row['first']:.2f} to {row['last']:.2f}" for row in ends.to_dicts())
    of = "the text that all checkpoints read" if _is_of_checkpoints(rows) else "single training batches"
    return Figure(f"{_name(rows)}: {told}", f"Loss of {of}, without interval.", styled(plot, 320))


def _is_of_checkpoints(rows: pl.DataFrame) -> bool:
    """Return whether losses are those of finished checkpoints, all on the same text."""
    return bool((rows["detail"] == HELD_OUT).all())


def _name(rows: pl.DataFrame) -> str:
    return "Loss on the text" if _is_of_checkpoints(rows) else "Training loss"


def loss(rows: pl.DataFrame) -> Iterator[str]:
    """Say where the loss began and ended."""
    series = rows.filter(pl.col("metric") == LOSS, pl.col("variant") == "").sort("step")
    if series.height > 1:
        first, last = series.row(0, named=True), series.row(-1, named=True)
        yield (
            f"{_name(series)} went from {first['value']:.2f} (step {first['step']}) to {last['value']:.2f} "
            f"(step {last['step']}) nats per predicted token."
        )


def unmeasured(rows: pl.DataFrame) -> Iterator[str]:
    """Say what could not be measured, and why."""
    reasons = rows.filter(pl.col("metric") == "unmeasured").sort("step")
    for (which,), missing in reasons.group_by(["rows"], maintain_order=True):
        steps = ", ".join(str(step) for step in missing["step"].unique().sort())
        # A finished model has no steps but 0.
        when = "" if steps == "0" else f" at steps {steps}"
        what = "This model" if (missing["site"] == "").all() else "Some sites"
        without = "" if which == ALL_ROWS else " without massive rows"
        yield f"{what} could not be measured{without}{when}. First reason: {missing['detail'][0]}."


TRAINING = Section(
    question="How did the training go?",
    command="a Lens in a training, or tangentlens sweep",
    figures=(loss_over_training,),
    findings=(loss, unmeasured),
    rows=None,
)
