"""Active concepts: whether gradients prefer the concepts of their own token, over depth."""

from __future__ import annotations

from collections.abc import Iterator

import plotly.graph_objects as go
import polars as pl

from tangentlens.report.contents import Figure, Section
from tangentlens.report.drawing import bars, grid, labelled, styled
from tangentlens.report.reading import last_measured, relations, without_massive
from tangentlens.runs.vocabulary import MEAN_SITE
from tangentlens.statistics.words import tally

_PANELS = {"active_log_ratio": "own / other tokens, by energy", "active_token_log_ratio": "own / other, token by token"}
_LINES = {
    "concepts": ("concepts", "#D55E00", "solid"),
    "sparse_concepts": ("concepts with sparse codes", "#E69F00", "dash"),
    "components": ("principal components", "#0072B2", "dot"),
}


def own_over_depth(records: pl.DataFrame) -> Figure | None:
    """Draw the share in a token's own concepts over that in the concepts of other tokens, over depth."""
    known = without_massive(labelled(records)).filter(
        pl.col("metric").is_in(list(_PANELS)), pl.col("variant").is_in(list(_LINES)), pl.col("depth").is_not_null()
    )
    rows = last_measured(known).sort("depth", maintain_order=True)
    if rows["depth"].n_unique() < 2:
        return None
    ratios = rows.with_columns(pl.col("value", "ci_low", "ci_high").exp())

    def draw(kind: str, line: pl.DataFrame) -> Iterator[go.Scatter]:
        yield bars(line, "site", *_LINES[kind])

    plot = grid(ratios, "metric", _PANELS, "variant", draw)
    plot.add_hline(y=1, line={"color": "#999999", "width": 1})
    of_concepts = rows.filter(pl.col("variant") == "concepts", pl.col("metric") == "active_token_log_ratio")
    told = [
        f"{model} {tally(relations(line), 'that in those of other tokens')}"
        for (model,), line in of_concepts.group_by(["model_label"], maintain_order=True)
    ]
    title = f"Share of a gradient in the concepts of its own token, token by token: {'; '.join(sorted(told))}"
    caption = (
        "The share of a token's gradient in the concepts that contribute most to it, divided by its share in those of "
        "tokens of other sequences; without massive rows. 95% intervals over test sequences, for one fit."
    )
    return Figure(title, caption, styled(plot, 620))


def own_concepts(rows: pl.DataFrame) -> Iterator[str]:
    """Say at how many sites gradients prefer their own concepts, and at how many concepts do better than components."""
    last = last_measured(without_massive(rows.filter(pl.col("metric").str.starts_with("active_"))))
    last = last.filter(pl.col("site") != MEAN_SITE)
    for weighting, metric, advantage in (
        ("Token by token", "active_token_log_ratio", "active_token_advantage"),
        ("Weighted by energy", "active_log_ratio", "active_advantage"),
    ):
        own, better = last.filter(metric=metric, variant="concepts"), last.filter(metric=advantage, variant="")
        if own.height:
            yield (
                f"{weighting}, the share of a gradient in the concepts of its own token is "
                f"{tally(relations(own), 'that in the concepts of other tokens')}. The ratio of the two is "
                f"{tally(relations(better), 'that of principal components')} (95% intervals over sequences, not "
                "corrected for the number of sites; without massive rows)."
            )


ACTIVE = Section(
    question="Does a gradient prefer the concepts of its own token?",
    command="tangentlens test MODEL, or tangentlens audit MODEL",
    figures=(own_over_depth,),
    findings=(own_concepts,),
    rows=None,
)
