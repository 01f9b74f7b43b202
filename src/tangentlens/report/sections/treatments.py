"""What a change of the training does to the representations, and what it costs in loss, over the seeds of each."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from tangentlens.report.contents import Figure, Section, Table
from tangentlens.report.drawing import COLOURS, styled
from tangentlens.report.reading import without_massive
from tangentlens.runs.vocabulary import ACTIVATION, ALL_TOKENS, GRADIENT, LOSS, MEAN_SITE
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.judging import Effect

UNTREATED = "none"
_LOSS = "loss on held-out text"
# What is told of a network at its last step: a mean over sites, without massive rows.
_TOLD = {
    _LOSS: (pl.col("metric") == LOSS) & (pl.col("variant") == "held_out"),
    "anisotropy": (pl.col("metric") == "anisotropy") & (pl.col("quantity") == ACTIVATION),
    "intrinsic dimension": (
        (pl.col("metric") == "intrinsic_dimension") & (pl.col("variant") == "") & (pl.col("quantity") == ACTIVATION)
    ),
    "enrichment": (
        (pl.col("metric") == "log_ratio") & (pl.col("variant") == "random") & (pl.col("quantity") == GRADIENT)
    ),
}
_LOGARITHMS = {"log_ratio"}


def of_networks(records: pl.DataFrame) -> pl.DataFrame:
    """Return what is told of each network whose treatment has untreated twins: `what`, `treatment`, `value`."""
    nothing = pl.DataFrame(schema={"what": pl.String, "treatment": pl.String, "value": pl.Float64})
    if "treatment" not in records.columns:
        # These records do not say whose they are.
        return nothing
    known = records.filter(pl.col("null") == "", pl.col("family") != "", pl.col("freq_bin") == ALL_TOKENS)
    if known.filter(pl.col("treatment") == "").is_empty() or (known["treatment"] == "").all():
        return nothing
    of_site = (pl.col("site") != MEAN_SITE) & pl.col("order").fill_null(1.0).eq(1.0) & pl.col("value").is_finite()
    last = without_massive(known.filter(of_site, pl.col("step") == pl.col("last_step")))
    value = pl.when(pl.col("metric").is_in(_LOGARITHMS)).then(pl.col("value").exp()).otherwise("value")
    told = [last.filter(chosen).with_columns(value, what=pl.lit(what)) for what, chosen in _TOLD.items()]
    key = ["what", "treatment", "run", "network"]
    named = pl.col("treatment").replace({"": UNTREATED})
    return pl.concat(told).group_by(key, maintain_order=True).agg(pl.mean("value")).with_columns(named)


def _means(records: pl.DataFrame) -> dict[str, dict[str, Interval]]:
    """Return the mean over seeds of all that is told, by treatment; of treatments with at least two networks."""
    found: dict[str, dict[str, Interval]] = {}
    for (treatment, what), rows in of_networks(records).group_by(["treatment", "what"], maintain_order=True):
        if rows.height > 1:
            mean = Effect.of([rows["value"].to_list()]).interval(0.95)
            found.setdefault(str(treatment), {})[str(what)] = mean
    untreated_first = sorted(found, key=lambda treatment: treatment != UNTREATED)
    return {treatment: found[treatment] for treatment in untreated_first if _LOSS in found[treatment]}


def treatment_fronts(records: pl.DataFrame) -> Figure | None:
    """Draw the loss of each treatment against what it does; strengths of one treatment are connected."""
    means = _means(records)
    shown = [what for what in _TOLD if what != _LOSS and any(what in told for told in means.values())]
    if len(means) < 2 or not shown:
        return None
    plot = make_subplots(1, len(shown), horizontal_spacing=0.09)
    kinds = list(dict.fromkeys(_kind(treatment) for treatment in means))
    for column, what in enumerate(shown, start=1):
        for kind in kinds:
            course = [(name, told) for name, told in means.items() if _kind(name) == kind and what in told]
            colour = "#6E6E6E" if kind == UNTREATED else COLOURS[kinds.index(kind) % len(COLOURS)]
            trace = _line(course, what, kind, colour)
            plot.add_trace(trace.update(showlegend=column == 1, legendgroup=kind, meta=what), row=1, col=column)
        plot.update_xaxes(title_text=f"{_LOSS} (nats per token)", row=1, col=column)
        plot.update_yaxes(title_text=what, row=1, col=column)
    caption = (
        "At the last step, means over seeds. Bars are 95% intervals over seeds, and points of one colour are strengths "
        "of one change. Enrichment is the energy share of the proxy over that of random subspaces. Lower and further "
        "left is a more isotropic space at a lower loss."
    )
    least = min(means, key=lambda name: means[name][_LOSS].value)
    title = (
        f"Lowest loss on held-out text: {least}, {means[least][_LOSS]!r}; without a change {means[UNTREATED][_LOSS]!r}"
    )
    return Figure(title, caption, styled(plot, 420))


def _kind(treatment: str) -> str:
    """Return the treatment without its strength."""
    return treatment.rpartition(" ")[0] or treatment


def _line(course: Sequence[tuple[str, dict[str, Interval]]], what: str, kind: str, colour: str) -> go.Scatter:
    x, y = [told[_LOSS] for _, told in course], [told[what] for _, told in course]
    return go.Scatter(
        x=[one.value for one in x],
        y=[one.value for one in y],
        name=html.escape(kind),
        mode="lines+markers",
        line={"color": colour, "width": 2},
        marker={"size": 8, "color": colour, "symbol": "diamond" if kind == UNTREATED else "circle"},
        customdata=[
            (html.escape(name), repr(one), one.ci_low, one.ci_high) for (name, _), one in zip(course, y, strict=True)
        ],
        hovertemplate="%{customdata[0]}: %{customdata[1]}",
        error_x=_reach(x),
        error_y=_reach(y),
    )


def _reach(intervals: Sequence[Interval]) -> dict[str, object]:
    return {
        "type": "data",
        "array": [one.ci_high - one.value for one in intervals],
        "arrayminus": [one.value - one.ci_low for one in intervals],
        "thickness": 1.2,
        "width": 3,
    }


def treatment_table(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate what each treatment comes to at the last step."""
    means = _means(records)
    if len(means) > 1:
        rows = [{"change": name} | {what: repr(told.get(what, "")) for what in _TOLD} for name, told in means.items()]
        yield Table(
            "What each change of the training comes to at the last step; 95% intervals over seeds", pl.DataFrame(rows)
        )


TREATMENTS = Section(
    question="What does a change of the training do, and what does it cost?",
    command="tangentlens study regularisers",
    figures=(treatment_fronts,),
    tables=(treatment_table,),
    rows=None,
)
