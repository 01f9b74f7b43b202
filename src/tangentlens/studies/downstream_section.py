"""What geometry tells of probes on frozen activations, across networks and over training, also at equal loss."""

from __future__ import annotations

import html
from collections.abc import Iterator

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from tangentlens.report.contents import Figure, Section, Table
from tangentlens.report.drawing import COLOURS, styled
from tangentlens.statistics.correlation import with_interval
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.judging import Effect
from tangentlens.studies.claims.claim import Estimand
from tangentlens.studies.claims.downstream import GEOMETRY, SKILL
from tangentlens.studies.claims.estimands import NETWORK, change_correlation, last, rank_correlation
from tangentlens.studies.claims.twins import HELD_OUT_LOSS

_SKILL, _LOSS = "skill of probes", "loss"


def at_the_end(records: pl.DataFrame) -> pl.DataFrame:
    """Return the skill of probes, the loss and the geometry of each network at its last step, a column each."""
    if "null" not in records.columns:
        # These records do not say whose they are.
        return pl.DataFrame(schema={"run": pl.String, "network": pl.String, "group": pl.String})
    what: dict[str, Estimand] = {_SKILL: last(SKILL), _LOSS: last(HELD_OUT_LOSS)}
    what |= {name: last(select) for name, select in GEOMETRY.items()}
    treated = (
        pl.when(pl.col("treatment") == "").then("kind").otherwise(pl.concat_str("kind", "treatment", separator=" "))
    )
    found = records.select(*NETWORK, group=treated.str.replace(r" [\d.]+$", "")).unique(NETWORK, maintain_order=True)
    for name, number in what.items():
        found = found.join(
            number(records).rename({"effect": name}),
            on=NETWORK,
            how="inner" if name == _SKILL else "left",
            maintain_order="left",
        )
    return found


def across_networks(ends: pl.DataFrame, name: str, given: str | None = None) -> Interval | None:
    """Return the rank correlation of a number with the skill of probes across networks; None if they are too few."""
    known = ends.drop_nulls([name, _SKILL, *([given] if given else [])])
    third = None if given is None else known[given].to_numpy()
    return with_interval(known[name].to_numpy(), known[_SKILL].to_numpy(), third)


def probes_and_geometry(records: pl.DataFrame) -> Figure | None:
    """Draw the skill of probes against the geometry of networks at their last step, a point for each network."""
    ends = at_the_end(records)
    shown = [name for name in GEOMETRY if ends.height and ends[name].drop_nulls().len()]
    if ends.height < 3 or not shown:
        return None
    plot = make_subplots(1, len(shown), shared_yaxes=True, horizontal_spacing=0.03)
    groups = ends["group"].unique(maintain_order=True).to_list()
    for column, name in enumerate(shown, start=1):
        for number, group in enumerate(groups):
            of_group = ends.filter(pl.col("group") == group)
            trace = go.Scatter(
                x=of_group[name],
                y=of_group[_SKILL],
                mode="markers",
                name=html.escape(group),
                legendgroup=group,
                showlegend=column == 1,
                text=[html.escape(f"{run}, {network}") for run, network in of_group.select(NETWORK).iter_rows()],
                marker={
                    "color": COLOURS[number % len(COLOURS)],
                    "symbol": ("circle", "square", "diamond", "cross")[number // len(COLOURS) % 4],
                    "size": 7,
                },
            )
            plot.add_trace(trace, row=1, col=column)
        plot.update_xaxes(title_text=name, row=1, col=column)
    plot.update_yaxes(title_text=_SKILL, row=1, col=1)
    told = [
        (words, across_networks(ends, "anisotropy", given))
        for words, given in (("", None), (", given the loss", _LOSS))
    ]
    said = "; ".join(f"rank correlation with anisotropy{words} {one!r}" for words, one in told if one is not None)
    caption = (
        "Each point is a network at its last step, on held-out text, means over sites and tasks. Chance has skill 0. "
        "Brackets are 95% intervals over networks."
    )
    return Figure(f"Skill of probes in {ends.height} networks; {said}", caption, styled(plot, 420))


def correlation_table(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate rank correlations with the skill of probes: across networks, and over the steps of each training."""
    ends = at_the_end(records)
    if ends.height < 3:
        return
    rows = [
        {
            "number": name,
            "across networks": _told(across_networks(ends, name)),
            "across networks, given the loss": _told(across_networks(ends, name, _LOSS)),
            "over training": _told(_over_training(records, rank_correlation(select, SKILL))),
            "changes, given those of the loss": _told(
                _over_training(records, change_correlation(select, SKILL, HELD_OUT_LOSS))
            ),
        }
        for name, select in GEOMETRY.items()
    ]
    title = (
        f"Rank correlation with the skill of probes, {ends.height} networks; 95% intervals over networks. Over "
        "training, and of changes between due steps: the mean over trainings"
    )
    yield Table(title, pl.DataFrame(rows))


def _over_training(records: pl.DataFrame, correlation: Estimand) -> Interval | None:
    effects = correlation(records)["effect"].to_list()
    return Effect.of([effects]).interval(0.95) if len(effects) > 1 else None


def _told(found: Interval | None) -> str:
    return "" if found is None else repr(found)


PROBES = Section(
    question="What is the geometry good for: do probes do better?",
    command="tangentlens study downstream",
    figures=(probes_and_geometry,),
    tables=(correlation_table,),
    rows=None,
)
