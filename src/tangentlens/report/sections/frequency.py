"""How shares depend on token frequency."""

from __future__ import annotations

import math
from collections.abc import Iterator

import plotly.graph_objects as go
import polars as pl

from tangentlens.report.contents import Figure, Section
from tangentlens.report.drawing import bars, grid, labelled, style_of, styled
from tangentlens.report.reading import IS_PROXY, as_interval, last_measured, ratio_text, shares
from tangentlens.report.sections.shares import OVER_SEQUENCES, lines_of
from tangentlens.runs.vocabulary import MEAN_SITE, PROXY, SHARE_LABELS
from tangentlens.statistics.words import WORDS, relation

_COLOURS = {"target": "#009E73", "input": "#CC79A7"}


def share_by_frequency(records: pl.DataFrame) -> Figure | None:
    """Draw the shares of proxy and pca by frequency bin, by input and by target token, at the last step."""
    rows = last_measured(lines_of(records)).filter(
        pl.col("line").is_in([PROXY, "pca"]), pl.col("freq_bin").str.contains(r"\.\d+$")
    )
    if rows.is_empty():
        return None
    # The mean over sites where every site has the bin; else (an encoder's last layer has gradients at masked tokens
    # only) the deepest site that has it.
    rows = rows.with_columns(
        pl.when(pl.col("site") == MEAN_SITE).then(2.0).otherwise(pl.col("depth").fill_null(-1.0)).alias("preference"),
        pl.col("freq_bin").str.extract(r"^(\w+)\.", 1).alias("kind"),
        pl.col("freq_bin").str.extract(r"\.(\d+)$", 1).cast(pl.Int64).alias("bin"),
    ).filter(pl.col("preference") == pl.col("preference").max().over("run", "model", "order", "kind"))

    def draw(key: str, line: pl.DataFrame) -> Iterator[go.Scatter]:
        name, kind = key.split(" ")
        style = style_of(line, name == PROXY)
        yield bars(line, "bin", f"{style.label}, by {kind} token", _COLOURS[kind], style.dash)

    rows = rows.with_columns(curve=pl.concat_str("line", "kind", separator=" "))
    plot = grid(rows.sort("bin", maintain_order=True), "order", SHARE_LABELS, "curve", draw)
    bins = rows["bin"].unique().sort().to_list()
    names = ["rarest", *(str(number + 1) for number in bins[1:-1]), "most frequent"]
    plot.update_xaxes(tickvals=bins, ticktext=names)
    single = rows.filter(pl.col("site") != MEAN_SITE).select("model_label", "kind", "site").unique(maintain_order=True)
    where = "".join(f" {label} by {kind} token: at {site} only." for label, kind, site in single.rows())
    caption = (
        "Bins hold equal token mass of the corpus, so the frequent ones hold few types. Mean over sites."
        f"{where} Bars: {OVER_SEQUENCES}."
    )
    return Figure(_title(records), caption, styled(plot, 600))


def _contrasts(records: pl.DataFrame, kind: str) -> pl.DataFrame:
    ratios = shares(records, "frequency_log_ratio").filter(
        pl.col("site") == MEAN_SITE, pl.col("order") == 1, pl.col("freq_bin") == kind
    )
    return last_measured(ratios)


def _title(records: pl.DataFrame) -> str:
    rows = _contrasts(labelled(records), "target").filter(IS_PROXY)
    told = [f"{row['model_label']} {math.exp(row['value']):.2f} times" for row in rows.to_dicts()]
    return "Energy share on the most frequent targets against the rarest: " + (", ".join(sorted(told)) or "see below")


def contrast(rows: pl.DataFrame) -> Iterator[str]:
    """Say whether the share on frequent tokens differs from that on rare ones."""
    for kind in ("target", "input"):
        ratios = _contrasts(rows, kind)
        for row in ratios.filter(IS_PROXY).iter_rows(named=True):
            word = WORDS[relation(as_interval(row))]
            pca = "".join(
                f"; for pca it is {ratio_text(other)} times" for other in ratios.filter(~IS_PROXY).iter_rows(named=True)
            )
            yield (
                f"By {kind} token, the proxy's energy share on the most frequent quarter of the text is {word} that on "
                f"the rarest quarter ({ratio_text(row)} times{pca})."
            )


FREQUENCY = Section(figures=(share_by_frequency,), findings=(contrast,))
