"""Early warning: which live number foretells a worse end loss, beyond what the loss itself foretells, and how early."""

from __future__ import annotations

from collections.abc import Iterator

import plotly.graph_objects as go
import polars as pl

from tangentlens.report.contents import Figure, Section, Table
from tangentlens.report.drawing import COLOURS, bars, styled
from tangentlens.runs.vocabulary import ACTIVATION
from tangentlens.statistics.correlation import with_interval
from tangentlens.statistics.interval import Interval
from tangentlens.studies.claims.claim import CORRELATION_MARGIN
from tangentlens.studies.claims.estimands import NETWORK, Select, by_step
from tangentlens.studies.claims.twins import HELD_OUT_LOSS

# What a lens tells live, from the batches of the training.
LIVE = {
    "tangent share over chance": Select("log_ratio", "random", order=1.0, site=None),
    "intrinsic dimension": Select("intrinsic_dimension", quantity=ACTIVATION, site=None),
    "anisotropy": Select("anisotropy", quantity=ACTIVATION, site=None),
    "length of gradients": Select("rms_norm", site=None),
}
_LOSS = "loss itself"
# The end is known at the end; what counts is what was known in this part of the training.
_EARLY = 0.5


def foretold(records: pl.DataFrame) -> dict[str, dict[int, Interval]]:
    """Return how each live number at a due step correlates with the loss at the end, across networks.

    All numbers but the loss are correlated given the held-out loss of the same step: what they add to it. Networks with
    the same number of steps are compared; those of the largest such set. Step 0 is left out.

    Returns:
        Rank correlations by number and step, with 95% intervals over networks.
    """
    if "null" not in records.columns:
        # These records do not say whose they are.
        return {}
    losses = by_step(HELD_OUT_LOSS.rows(records))
    if losses.is_empty():
        return {}
    ends = losses.group_by(NETWORK, maintain_order=True).agg(
        end=pl.col("value").sort_by("step").last(), last=pl.col("step").max()
    )
    most = ends["last"].value_counts(sort=True)["last"][0]
    ends = ends.filter(pl.col("last") == most)
    known = losses.select(*NETWORK, "step", loss="value").join(ends, on=NETWORK, maintain_order="left")
    # Before the first update, networks of one seed are the same network.
    known = known.filter(pl.col("step").is_between(1, _EARLY * most))
    found: dict[str, dict[int, Interval]] = {_LOSS: _by_step(known, "loss", None)}
    for name, select in LIVE.items():
        values = by_step(select.rows(records)).select(*NETWORK, "step", number="value")
        found[name] = _by_step(known.join(values, on=[*NETWORK, "step"], maintain_order="left"), "number", "loss")
    return {name: steps for name, steps in found.items() if steps}


def _by_step(rows: pl.DataFrame, number: str, given: str | None) -> dict[int, Interval]:
    found = {}
    for (step,), at in rows.sort("step").group_by(["step"], maintain_order=True):
        third = None if given is None else at[given].to_numpy()
        one = with_interval(at[number].to_numpy(), at["end"].to_numpy(), third)
        if one is not None:
            found[int(step)] = one
    return found


def since(steps: dict[int, Interval]) -> int | None:
    """Return the step from which all intervals lie beyond the smallest correlation that matters, on the same side."""
    first, side = None, 0
    for step, one in sorted(steps.items()):
        now = int(one.ci_low > CORRELATION_MARGIN) - int(one.ci_high < -CORRELATION_MARGIN)
        first = (step if now != side else first) if now else None
        side = now
    return first


def warning_figure(records: pl.DataFrame) -> Figure | None:
    """Draw the correlations over the first half of the training."""
    found = foretold(records)
    if not found:
        return None
    plot = go.Figure()
    for number, (name, steps) in enumerate(found.items()):
        rows = [(step + 1, one.value, one.ci_low, one.ci_high) for step, one in steps.items()]
        line = pl.DataFrame(rows, schema=["step", "value", "ci_low", "ci_high"], orient="row")
        colour = "#6E6E6E" if name == _LOSS else COLOURS[number % len(COLOURS)]
        plot.add_trace(bars(line, "step", name, colour, "dot" if name == _LOSS else "solid"))
    plot.update_xaxes(title_text="step + 1", type="log")
    plot.update_yaxes(title_text="rank correlation with the loss at the end", range=[-1.05, 1.05])
    caption = (
        "Across networks. Every number but the loss itself is correlated given the loss at the same step: what it "
        "tells beyond the loss. Bars: 95% intervals over networks."
    )
    told = [f"{name} from step {first}" for name, steps in found.items() if (first := since(steps)) is not None]
    title = f"Foretells the loss at the end in the first half of {_counted(records)}: {'; '.join(told) or 'nothing'}"
    return Figure(title, caption, styled(plot, 420))


def _counted(records: pl.DataFrame) -> str:
    return f"{by_step(HELD_OUT_LOSS.rows(records)).select(NETWORK).n_unique()} trainings"


def warning_table(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate the correlations by step."""
    found = foretold(records)
    if found:
        steps = sorted({step for of_number in found.values() for step in of_number})
        rows = [
            {"number": name}
            | {f"step {step}": repr(of_number[step]) if step in of_number else "" for step in steps}
            | {"foretells from step": "" if (first := since(of_number)) is None else str(first)}
            for name, of_number in found.items()
        ]
        title = "Rank correlation with the loss at the end, given the loss at the step; 95% intervals over networks"
        yield Table(title, pl.DataFrame(rows))


WARNINGS = Section(
    question="Which live number is an early warning?",
    command="tangentlens study downstream",
    figures=(warning_figure,),
    tables=(warning_table,),
    rows=None,
)
