"""Concepts in words: which tokens use each concept, how much of the gradients it takes, and whether it lasts."""

from __future__ import annotations

import html
from collections.abc import Iterator

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from tangentlens.alignment.concepts import SAME
from tangentlens.report.contents import Figure, Section, Table
from tangentlens.report.drawing import COLOURS, band, grid, labelled, models_of, spaced, step_axis, styled
from tangentlens.report.reading import last_measured
from tangentlens.runs.concepts import described
from tangentlens.statistics.interval import Interval

# Sites of a model that are shown, and tokens of a concept in the table.
_SITES, _TOKENS = 3, 3
# Models that are drawn side by side.
_MODELS = 4
_CONCEPT = pl.col("metric").str.starts_with("concept_")
_LASTING = {
    "concept_kept": ("still there since the last measured step", "#D55E00", "solid"),
    "concept_found_again": ("found again at the same step, by a fit to other sequences", "#6E6E6E", "dot"),
}


def energy_against_variance(records: pl.DataFrame) -> Figure | None:
    """Draw the share of the gradients along each concept against its share of the variance."""
    rows = labelled(records.filter(_CONCEPT))
    if rows.is_empty():
        return None
    models = models_of(rows)[:_MODELS]
    titles = [f"<b>{html.escape(model)}</b>" for model in models]
    plot = make_subplots(1, len(models), shared_yaxes=True, subplot_titles=titles)
    for column, model in enumerate(models, start=1):
        for colour, (site, _, table) in zip(COLOURS, _last_tables(rows.filter(model_label=model)), strict=False):
            plot.add_trace(_points(table, site, colour).update(showlegend=column == 1), row=1, col=column)
    ticks = [mantissa * 10.0**-power for power in range(5) for mantissa in (1, 2, 5)]
    plot.update_xaxes(type="log", tickvals=ticks, title_text="share of the variance")
    plot.update_yaxes(type="log", tickvals=ticks)
    plot.update_yaxes(title_text="share of the gradients' energy", col=1)
    chance = rows.filter(metric="concept_chance")["value"].to_list()
    for one in sorted(set(chance)):
        plot.add_hline(y=one, line={"color": "#999999", "width": 1, "dash": "dot"})
    above, whole = _above_chance(rows)
    title = (
        f"{above} of {whole} concepts take significantly more of the gradients than a random direction, at the last "
        "measured step and the sites shown"
    )
    caption = (
        "Each point is a concept: the share of the variance of the activations along its direction, and the share of "
        "the energy of the gradients along it, with its 95% interval over sequences that it was not fitted to. The "
        "dotted line is chance, 1/width. Hover to see the tokens that use a concept most."
    )
    return Figure(title, caption, styled(plot, 460))


def _points(table: pl.DataFrame, site: str, colour: str) -> go.Scatter:
    """Return the concepts of one site as points."""
    words = [html.escape(", ".join(map(repr, tokens[:_TOKENS]))) for tokens in table["tokens"].to_list()]
    low, high = table["energy_share_low"], table["energy_share_high"]
    exactly = zip(
        (f"{share:.4g}" for share in table["variance_share"]), words, low, high, table["concept"], strict=True
    )
    return go.Scatter(
        x=table["variance_share"].to_list(),
        y=table["energy_share"].to_list(),
        name=html.escape(site),
        mode="markers",
        marker={"color": colour, "size": 8},
        customdata=list(exactly),
        hovertemplate="concept %{customdata[4]}: variance %{x:.3g}, gradients %{y:.3g}<br>%{customdata[1]}",
        error_y={
            "type": "data",
            "array": (high - table["energy_share"]).to_list(),
            "arrayminus": (table["energy_share"] - low).to_list(),
            "thickness": 1,
            "width": 2,
        },
    )


def lasting_over_training(records: pl.DataFrame) -> Figure | None:
    """Draw which part of the concepts is still there since the last measured step, over training."""
    rows = labelled(records).filter(pl.col("metric").is_in(list(_LASTING)))
    parts = (
        rows.group_by("run", "model", "model_label", "step", "metric", maintain_order=True)
        .agg(value=(pl.col("value") >= SAME).cast(pl.Float64).mean())
        .with_columns(panel=pl.lit("part"), ci_low=None, ci_high=None)
        .sort("step", maintain_order=True)
    )
    kept = parts.filter(metric="concept_kept")
    if kept["step"].n_unique() < 2:
        return None

    def draw(metric: str, line: pl.DataFrame) -> Iterator[go.Scatter]:
        yield from band(line, *_LASTING[metric])

    plot = grid(parts, "panel", {"part": "part of the concepts of all sites"}, "metric", draw)
    step_axis(plot, parts, last_row=1)
    last = kept.filter(pl.col("step") == pl.col("step").max().over("run", "model"))
    told = "; ".join(sorted(f"{row['model_label']} {row['value']:.0%}" for row in last.iter_rows(named=True)))
    caption = (
        f"A concept is still there if the direction of its match at the last measured step has a cosine of at least "
        f"{SAME:.2f} with its own; those that are not are births, and their predecessors deaths. The grey line is the "
        "part that a fit to other sequences of the same step finds again: only what is below it is a change. "
        "Without intervals: both are counts."
    )
    return Figure(f"Concepts that are still there since the last measured step: {told}", caption, styled(plot, 380))


def concepts_in_words(records: pl.DataFrame) -> Iterator[Table]:
    """Yield a table of the concepts of some sites of each model, at its last measured step."""
    rows = labelled(records.filter(_CONCEPT))
    for model in models_of(rows)[:_MODELS]:
        of_model = rows.filter(model_label=model)
        for site, step, table in _last_tables(of_model):
            when = f", step {step}" if of_model["step"].n_unique() > 1 else ""
            title = f"Concepts of {model} at {site}{when}, those with the most gradient first"
            yield Table(title, _in_words(table), on_page_only=True)


def _in_words(table: pl.DataFrame) -> pl.DataFrame:
    """Return what people read of a table of concepts."""
    return pl.DataFrame(
        [
            {
                "concept": row["concept"],
                "tokens that use it most, in [brackets]": [_one_line(text) for text in row["contexts"][:_TOKENS]],
                "share of gradients": _told(row, "energy_share"),
                "share of variance": _told(row, "variance_share"),
                "its tokens per million": "" if row["frequency"] is None else f"{row['frequency']:,.0f}",
                "since step": row["born"],
                "found again": f"{row['found_again']:.2f}",
            }
            for row in table.iter_rows(named=True)
        ]
    )


def _told(row: dict[str, float], name: str) -> str:
    return str(Interval(row[name], row[f"{name}_low"], row[f"{name}_high"]))


def _one_line(text: str) -> str:
    return " ".join(text.replace("\n", " ↵ ").split())


def _last_tables(rows: pl.DataFrame) -> list[tuple[str, int, pl.DataFrame]]:
    """Return the concepts of some sites of one model: the site, the last step at which it was measured, and a table."""
    last = rows.sort("depth", nulls_last=True).group_by("site", maintain_order=True).agg(pl.col("step").max()).rows()
    return [(site, step, described(rows.filter(site=site), step)) for site, step in spaced(last, _SITES)]


def _above_chance(rows: pl.DataFrame) -> tuple[int, int]:
    """Return how many of the concepts that the figure shows take significantly more than chance, and of how many."""
    tables = [
        table for model in models_of(rows)[:_MODELS] for _, _, table in _last_tables(rows.filter(model_label=model))
    ]
    return (
        sum(table.filter(pl.col("energy_share_low") > pl.col("chance")).height for table in tables),
        sum(table.height for table in tables),
    )


def used_by_gradients(rows: pl.DataFrame) -> Iterator[str]:
    """Say how many concepts take more or less of the gradients than chance, and which takes most."""
    last = last_measured(rows.filter(_CONCEPT))
    chance = last.filter(metric="concept_chance").select("site", chance="value")
    energy = last.filter(metric="concept_energy").join(chance, on="site")
    if energy.is_empty():
        return
    above, below = (
        energy.filter(one).height for one in (pl.col("ci_low") > pl.col("chance"), pl.col("ci_high") < pl.col("chance"))
    )
    most = energy.sort(pl.col("value") / pl.col("chance")).row(-1, named=True)
    tokens = described(rows.filter(_CONCEPT, site=most["site"]), most["step"]).filter(concept=int(most["variant"]))
    words = ", ".join(map(repr, tokens["tokens"][0].to_list()[:_TOKENS]))
    sites = energy["site"].n_unique()
    yield (
        f"Of {energy.height} concepts at {sites} site{'s' * (sites > 1)}, {above} take significantly more of the "
        f"gradients than a random direction, and {below} significantly less (95% intervals over sequences, not "
        f"corrected for the number of concepts). The largest ratio to chance, {most['value'] / most['chance']:.1f}, is "
        f"that of concept {most['variant']} at {most['site']}, which these tokens use most: {words}."
    )


def lasting(rows: pl.DataFrame) -> Iterator[str]:
    """Say which part of the concepts is still there since the last measured step."""
    last = last_measured(rows.filter(metric="concept_kept"))
    if last.is_empty():
        return
    step = last["step"][0]
    again = rows.filter(metric="concept_found_again", step=step)
    kept, found = (one.filter(pl.col("value") >= SAME).height / max(one.height, 1) for one in (last, again))
    yield (
        f"At step {step}, {kept:.0%} of the concepts are still there since the last measured step (cosine of at least "
        f"{SAME:.2f} with their match). For comparison, a fit to other sequences of the same step finds {found:.0%} of "
        "them again."
    )


CONCEPTS = Section(
    question="What are the concepts, in words?",
    command="tangentlens test MODEL, or Lens(concepts=tokenizer) in a training",
    figures=(energy_against_variance, lasting_over_training),
    tables=(concepts_in_words,),
    findings=(used_by_gradients, lasting),
    rows=None,
)
