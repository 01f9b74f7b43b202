"""What a report says about visible curvature."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator

import polars as pl
from plotly.subplots import make_subplots

from tangentlens.report.contents import Figure, Section, Table
from tangentlens.report.drawing import COLOURS, bars, labelled, spaced, styled
from tangentlens.report.reading import Row, as_interval, corrected_p_values, interval_text, text_of
from tangentlens.runs.vocabulary import ANALYTIC, NULL, P_VALUE_OF, derived
from tangentlens.statistics.corrections import holm
from tangentlens.statistics.interval import exactly
from tangentlens.statistics.words import Relation, relation
from tangentlens.studies.visibility.plan import CORPUS, CORRELATION, FELL, RATIO, TYPES, VISIBLE

_KNOWN = "manifolds whose curvature is known"
_IS_MANIFOLD = pl.col("site") == ""
_TITLE = (
    "curvature visible at the corpus' frequencies relative to types of equal weight, its p-value against randomly "
    "permuted frequencies, the rank correlation of frequency with distance, and the tangent planes: their dimension, "
    "that of patches, and whether they stand out from noise"
)


def visible_curvature(records: pl.DataFrame) -> Figure | None:
    """Draw visible curvature as types are weighted more and more by their frequency; known answers as lines."""
    drawn = (
        pl.when(_IS_MANIFOLD)
        .then(pl.col("metric").is_in([VISIBLE, derived(ANALYTIC, VISIBLE)]))
        .otherwise(pl.col("metric") == RATIO)
    )
    rows = labelled(records).filter(drawn, pl.col("variant") != TYPES)
    if rows.is_empty():
        return None
    rows = rows.with_columns(
        panel=pl.when(_IS_MANIFOLD).then(pl.lit(_KNOWN)).otherwise("model_label"),
        line=pl.when(_IS_MANIFOLD).then("model").otherwise("site"),
    ).sort("panel", "depth", "alpha", maintain_order=True)
    panels = sorted(rows["panel"].unique(), key=lambda panel: panel != _KNOWN)
    plot = make_subplots(1, len(panels), subplot_titles=[html.escape(panel) for panel in panels])
    for column, panel in enumerate(panels, start=1):
        here = rows.filter(pl.col("panel") == panel)
        lines = spaced(here["line"].unique(maintain_order=True).to_list(), len(COLOURS))
        for line, colour in zip(lines, COLOURS, strict=False):
            points, law = here.filter(pl.col("line") == line).partition_by("metric"), None
            if len(points) > 1:
                law = bars(points[-1], "alpha", line, colour).update(mode="lines", error_y=None, showlegend=False)
            measured = bars(points[0], "alpha", line, colour).update(mode="markers" if law else "lines+markers")
            plot.add_traces([trace for trace in (measured, law) if trace], rows=1, cols=column)
        known_here = panel == _KNOWN
        title = "visible curvature; lines: from the true form" if known_here else "relative to types of equal weight"
        plot.update_yaxes(title_text=title, type="log" if known_here else "linear", row=1, col=column)
    plot.update_xaxes(title_text="alpha: types are weighted by frequency^alpha")
    caption = (
        "Patches around anchors: in a model, types drawn with the corpus' frequencies. Bars: 95% intervals over "
        "anchors; in a model also over which types are frequent."
    )
    plot = styled(plot, 500).update_layout(legend={"y": -0.2})
    return Figure(_summary(records), caption, plot)


def _summary(records: pl.DataFrame) -> str:
    last = records.filter(pl.col("metric") == RATIO, pl.col("alpha") == 1, pl.col("variant") != TYPES)
    whose = pl.when(_IS_MANIFOLD).then(pl.lit(_KNOWN)).otherwise("model").alias("of")
    ends = last.group_by(whose, maintain_order=True).agg(low=pl.min("value"), high=pl.max("value")).to_dicts()
    told = "; ".join(f"{row['of']} {row['low']:.2f} to {row['high']:.2f}" for row in ends)
    return f"Curvature visible at the corpus' frequencies, relative to types of equal weight: {told}"


def visibility_tables(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate visible curvature at the corpus' frequencies site by site, one table per model."""
    key = ["run", "model", "site"]
    tabled = pl.col("metric").is_in([RATIO, derived(P_VALUE_OF, RATIO), CORRELATION, "intrinsic_dimension", "resolved"])
    rows = records.filter(~_IS_MANIFOLD, tabled).sort("run", "model", "depth", maintain_order=True)
    at_corpus = rows.filter(variant=CORPUS, alpha=1.0)

    def column(name: str, of: pl.DataFrame, metric: str, tell: Callable[[Row], str]) -> pl.DataFrame:
        text = text_of(pl.struct("value", "ci_low", "ci_high", "rank"), tell)
        return of.filter(pl.col("metric") == metric).select(*key, text.alias(name))

    def told_ratio(row: Row) -> str:
        return "all may be flat" if math.isnan(row["value"]) else interval_text(row)

    def told_dimension(row: Row) -> str:
        return f"{row['rank']} of {row['value']:.0f}"

    frame = column("ratio", at_corpus, RATIO, told_ratio)
    tests = at_corpus.filter(pl.col("metric") == derived(P_VALUE_OF, RATIO))
    for other in (
        corrected_p_values(tests),
        column("correlation", rows.filter(variant=CORPUS), CORRELATION, interval_text),
        column("dimension", rows.filter(variant="of patches"), "intrinsic_dimension", told_dimension),
        column("planes", rows, "resolved", lambda row: "stand out" if row["value"] else "do not"),
    ):
        frame = frame.join(other, on=key, how="left", maintain_order="left")
    for (model,), table in frame.fill_null("").group_by(["model"], maintain_order=True):
        yield Table(f"{model}: {_TITLE}", table.drop("model"))


def on_manifolds(rows: pl.DataFrame) -> Iterator[str]:
    """Say how much of a known curvature is visible."""
    at_corpus = rows.filter(_IS_MANIFOLD, pl.col("alpha") == 1)
    truth = at_corpus.filter(metric=derived(ANALYTIC, RATIO))["value"]
    for row in at_corpus.filter(metric=RATIO).iter_rows(named=True):
        fell = rows.filter(metric=FELL).row(0, named=True)
        yield (
            f"With frequencies that fall with distance, the visible curvature is {interval_text(row)} of that of types "
            f"of equal weight, where {truth[0]:.3g} follows from the true curvature. It fell with every step of alpha "
            f"in {round(fell['value'] * fell['n'])} of {fell['n']} further draws."
        )


def in_model(rows: pl.DataFrame) -> Iterator[str]:
    """Say at which sites the corpus' frequencies hide curvature."""
    at = rows.filter(~_IS_MANIFOLD).filter(metric=RATIO, variant=CORPUS, alpha=1.0)
    if at.height:
        less, more = _unlike_permuted(rows.filter(variant=CORPUS, alpha=1.0), RATIO)
        near, far = _unlike_permuted(rows.filter(variant=CORPUS), CORRELATION)
        resolved = rows.filter(metric="resolved")["value"].sum()
        flat = at["value"].is_nan().sum()
        may_be_flat = f"; at {flat} all patches may be flat" if flat else ""
        yield (
            "Around types drawn with the corpus' frequencies, those frequencies hide curvature at "
            f"{', '.join(less) or 'no site'} and reveal more of it at {', '.join(more) or 'no site'}. They are not "
            f"significantly different from randomly permuted frequencies at {at.height - len(less) - len(more) - flat} "
            f"of {at.height} sites (Holm-corrected){may_be_flat}. Frequency falls significantly with distance, which "
            f"would hide curvature, at {len(near)} of {at.height} sites and rises with it at {len(far)}; at "
            f"{at.height - len(near) - len(far)} neither is shown. Tangent planes stand out from noise at "
            f"{resolved:.0f} sites; elsewhere the numbers describe patches, not the curvature of a surface."
        )


def _unlike_permuted(rows: pl.DataFrame, metric: str) -> tuple[list[str], list[str]]:
    """Return the sites with less, and those with more, than permuted frequencies give: by p-value and interval."""
    tests = rows.filter(pl.col("metric") == derived(P_VALUE_OF, metric)).with_columns(
        sure=pl.col("value").map_batches(holm, return_dtype=pl.Float64) < 0.05
    )
    sure = rows.filter(pl.col("metric") == metric, pl.col("site").is_in(tests.filter("sure")["site"].to_list()))
    null = rows.filter(pl.col("metric") == derived(NULL, metric)).select("site", permuted="value")
    kinds: dict[Relation, list[str]] = {"below": [], "above": []}
    for row in sure.join(null, on="site", maintain_order="left").iter_rows(named=True):
        found, permuted = as_interval(row), exactly(row["permuted"])
        # Of correlations, which may be negative, there are no ratios.
        kind = relation(found.log_over(permuted)) if metric == RATIO else relation(found.minus(permuted), margin=0)
        kinds.setdefault(kind, []).append(row["site"])
    return kinds["below"], kinds["above"]


SECTION = Section(
    question="Does frequency bias hide curvature?",
    command="tangentlens visibility MODEL",
    figures=(visible_curvature,),
    tables=(visibility_tables,),
    findings=(on_manifolds, in_model),
)
