"""How shares, and the lengths of gradients, depend on token frequency."""

from __future__ import annotations

from collections.abc import Iterator

import plotly.graph_objects as go
import polars as pl

from tangentlens.report.contents import Figure, Section
from tangentlens.report.drawing import bars, grid, labelled, style_of, styled
from tangentlens.report.reading import IS_PROXY, as_interval, last_measured, ratio_text, shares
from tangentlens.report.sections.shares import OVER_SEQUENCES, lines_of
from tangentlens.runs.vocabulary import GRADIENT, MEAN_SITE, PROXY, SHARE_LABELS
from tangentlens.statistics.words import WORDS, relation

RMS_NORM = "rms_norm"
_COLOURS = {"target": "#009E73", "input": "#CC79A7"}


def share_by_frequency(records: pl.DataFrame) -> Figure | None:
    """Draw the shares of proxy and pca by frequency bin, by input and by target token, at the last step."""
    rows = _by_bin(last_measured(lines_of(records)).filter(pl.col("line").is_in([PROXY, "pca"])))
    if rows.is_empty():
        return None

    def draw(key: str, line: pl.DataFrame) -> Iterator[go.Scatter]:
        name, kind = key.split(" ")
        style = style_of(line, name == PROXY)
        yield bars(line, "bin", f"{style.label}, by {kind} token", _COLOURS[kind], style.dash)

    rows = rows.with_columns(curve=pl.concat_str("line", "kind", separator=" "))
    plot = grid(rows.sort("bin", maintain_order=True), "order", SHARE_LABELS, "curve", draw)
    return Figure(_title(records), _caption(rows), styled(_with_bins(plot, rows), 600))


def length_by_frequency(records: pl.DataFrame) -> Figure | None:
    """Draw the root mean square length of a gradient by frequency bin, by input and target token, at the last step."""
    lengths = labelled(records).filter(pl.col("quantity") == GRADIENT, pl.col("metric") == RMS_NORM)
    rows = _by_bin(last_measured(lengths))
    if rows.is_empty():
        return None

    def draw(kind: str, line: pl.DataFrame) -> Iterator[go.Scatter]:
        yield bars(line, "bin", f"by {kind} token", _COLOURS[kind])

    plot = grid(rows.sort("bin", maintain_order=True), "metric", {RMS_NORM: "length of a gradient"}, "kind", draw)
    title = f"Root mean square length of a gradient by token frequency: from {_ends(rows)}"
    return Figure(title, _caption(rows), styled(_with_bins(plot, rows), 420))


def _ends(rows: pl.DataFrame) -> str:
    """Return the lengths on the rarest and on the most frequent tokens, of the first kind of bins of each model."""
    told = []
    for (label,), of_model in rows.group_by(["model_label"], maintain_order=True):
        line = of_model.filter(pl.col("kind") == of_model["kind"].max()).sort("bin")
        first, last = line["value"][0], line["value"][-1]
        told.append(f"{first:.3g} on the rarest to {last:.3g} on the most frequent {line['kind'][0]} tokens ({label})")
    return ", ".join(told)


def _by_bin(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the records of frequency bins, with what tokens are binned by and the number of the bin.

    They are means over sites where every site has the bin; else (an encoder's last layer has gradients at masked tokens
    only) of the deepest site that has it.
    """
    binned = rows.filter(pl.col("freq_bin").str.contains(r"\.\d+$")).with_columns(
        pl.when(pl.col("site") == MEAN_SITE).then(2.0).otherwise(pl.col("depth").fill_null(-1.0)).alias("preference"),
        pl.col("freq_bin").str.extract(r"^(\w+)\.", 1).alias("kind"),
        pl.col("freq_bin").str.extract(r"\.(\d+)$", 1).cast(pl.Int64).alias("bin"),
    )
    return binned.filter(pl.col("preference") == pl.col("preference").max().over("run", "model", "order", "kind"))


def _with_bins(plot: go.Figure, rows: pl.DataFrame) -> go.Figure:
    """Return the figure with the names of the bins below it."""
    bins = rows["bin"].unique().sort().to_list()
    names = ["rarest", *(str(number + 1) for number in bins[1:-1]), "most frequent"]
    return plot.update_xaxes(tickvals=bins, ticktext=names)


def _caption(rows: pl.DataFrame) -> str:
    single = rows.filter(pl.col("site") != MEAN_SITE).select("model_label", "kind", "site").unique(maintain_order=True)
    where = "".join(f" {label} by {kind} token: at {site} only." for label, kind, site in single.rows())
    return (
        "Bins hold equal token mass of the corpus, so the frequent ones hold few types. Mean over sites."
        f"{where} Bars: {OVER_SEQUENCES}."
    )


def _contrasts(records: pl.DataFrame, kind: str) -> pl.DataFrame:
    ratios = shares(records, "frequency_log_ratio").filter(
        pl.col("site") == MEAN_SITE, pl.col("order") == 1, pl.col("freq_bin") == kind
    )
    return last_measured(ratios)


def _title(records: pl.DataFrame) -> str:
    rows = _contrasts(labelled(records), "target").filter(IS_PROXY)
    told = [f"{row['model_label']} {ratio_text(row)} times" for row in rows.to_dicts()]
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


FREQUENCY = Section(
    question="Do gradients of frequent tokens differ?",
    command="Lens(counts=…), or tangentlens test MODEL",
    figures=(share_by_frequency, length_by_frequency),
    findings=(contrast,),
)
