"""How representations moved on the probe, and where their variance grew."""

from __future__ import annotations

import math
from collections.abc import Iterator

import plotly.graph_objects as go
import polars as pl

from tangentlens.report.contents import Figure, Section
from tangentlens.report.drawing import band, grid, labelled, shown_at_first, step_axis, style_of, styled
from tangentlens.report.reading import IS_PROXY, Row, as_interval, interval_text, last_measured, ratio_text, relations
from tangentlens.report.sections.shares import LINES, PLACE, lines_of, with_lines
from tangentlens.runs.vocabulary import ALL_TOKENS, MEAN_SITE, MOVEMENT, PROXY, SHARE_LABELS
from tangentlens.statistics.words import WORDS, Relation, compare, relation, tally

_OVER = (
    "95% jackknife intervals over the test half of the probe's sequences; subspaces are fitted to the other half at "
    "the due step before, and are held fixed"
)
_GROWTH = {"growth_inside": "variance inside, × since then", "growth_outside": "variance outside, × since then"}


def _means(records: pl.DataFrame) -> pl.DataFrame:
    """Return the movement of all tokens, on average over sites."""
    return records.filter(pl.col("quantity") == MOVEMENT, pl.col("site") == MEAN_SITE, pl.col("freq_bin") == ALL_TOKENS)


def _draw(name: str, line: pl.DataFrame) -> Iterator[go.Scatter]:
    """Draw the line of the proxy or of a control."""
    style = style_of(line, name == PROXY)
    for trace in band(line, style.label, style.colour, style.dash):
        yield shown_at_first(trace, name, name == PROXY)


def movement_over_training(records: pl.DataFrame) -> Figure | None:
    """Draw the shares of the movement in proxy and controls over the steps, averaged over sites."""
    rows = lines_of(_means(records), MOVEMENT)
    if rows["step"].n_unique() < 2:
        return None
    plot = grid(rows, "order", SHARE_LABELS, "line", _draw)
    step_axis(plot, rows, last_row=len(SHARE_LABELS))
    caption = (
        "Share of the movement since the due step before, in subspaces of that step; mean over sites. If rows are "
        f"merely scaled, it is the share of their variance. Bands: {_OVER}."
    )
    return Figure(_share_title(rows), caption, styled(plot, 620))


def _share_title(rows: pl.DataFrame) -> str:
    told = []
    proxy = rows.filter(pl.col("line") == PROXY, pl.col("order") == 1).sort("value")
    for (model,), steps in proxy.group_by(["model_label"], maintain_order=True):
        low, high = steps.row(0, named=True), steps.row(-1, named=True)
        told.append(f"{model} {low['value']:.2f} (step {low['step']}) to {high['value']:.2f} (step {high['step']})")
    return "Movement of representations in the proxy of the due step before: " + "; ".join(sorted(told))


def growth_over_training(records: pl.DataFrame) -> Figure | None:
    """Draw the growth of variance inside and outside of proxy and controls over the steps, averaged over sites."""
    rows = with_lines(_means(labelled(records)).filter(pl.col("metric").is_in(list(_GROWTH)))).sort("step")
    if rows["step"].n_unique() < 2:
        return None
    plot = grid(rows.sort(pl.col("line").cast(LINES), maintain_order=True), "metric", _GROWTH, "line", _draw)
    step_axis(plot, rows, last_row=len(_GROWTH))
    for row in range(1, len(_GROWTH) + 1):
        plot.update_yaxes(type="log", row=row)
        plot.add_hline(1.0, line={"color": "#999999", "width": 1}, row=row)
    caption = (
        "Variance now, divided by that at the due step before; geometric mean over sites. 1 is no change. Any change "
        "of direction takes variance out of a subspace that was chosen for its variance, out of pca first. Bands: "
        f"{_OVER}."
    )
    return Figure(_growth_title(rows), caption, styled(plot, 620))


def _growth_title(rows: pl.DataFrame) -> str:
    told = []
    most = rows.filter(pl.col("line") == PROXY).sort("value")
    for (model,), of_model in most.group_by(["model_label"], maintain_order=True):
        ends = {metric: of_model.filter(pl.col("metric") == metric).row(-1, named=True) for metric in _GROWTH}
        inside, outside = (f"{row['value']:.2f} times (step {row['step']})" for row in ends.values())
        told.append(f"{model} at most {inside} inside the proxy, {outside} outside")
    return "Growth of variance between due steps: " + "; ".join(sorted(told))


def moved(rows: pl.DataFrame) -> Iterator[str]:
    """Say how far representations moved at the last step, and how much of it in the proxy, against each control."""
    last = last_measured(_means(rows))
    for row in last.filter(pl.col("metric") == "distance").iter_rows(named=True):
        yield (
            f"At step {row['step']} the probe's activations have moved by {interval_text(row)} times their root mean "
            f"square length {row['detail']}, in the geometric mean over sites."
        )
    share = last.filter(pl.col("metric") == "share", pl.col("order") == 1)
    ratios = last.filter(pl.col("metric") == "log_ratio", pl.col("order") == 1).sort(PLACE)
    for proxy in share.filter(IS_PROXY).iter_rows(named=True):
        told = "; ".join(compare(row["variant"], as_interval(row)) for row in ratios.iter_rows(named=True))
        chance = "".join(f" (chance {value:.3g})" for value in share.filter(variant="random")["value"])
        scaled = last.filter(pl.col("metric") == "variance_share", IS_PROXY).iter_rows(named=True)
        variance = "".join(f" It has {interval_text(row)} of the variance of then." for row in scaled)
        yield (
            f"The proxy of then captures {interval_text(proxy)} of the energy of this movement, averaged over "
            f"sites{chance}{': ' if told else ''}{told}.{variance}"
        )


def beyond_variance(rows: pl.DataFrame) -> Iterator[str]:
    """Say at how many steps the proxy takes more of the movement than the directions of highest variance."""
    ratios = _means(rows).filter(
        pl.col("metric") == "log_ratio", pl.col("order") == 1, pl.col("variant").is_in(["pca", "covariance"])
    )
    for (variant,), steps in ratios.sort("step").group_by(["variant"], maintain_order=True):
        if steps.height > 1:
            yield (
                f"The proxy's share of the movement is {tally(relations(steps), f'that of {variant}', 'steps')} (95% "
                "intervals over sequences, not corrected for the number of steps)."
            )


def amplified(rows: pl.DataFrame) -> Iterator[str]:
    """Say at which steps variance inside the proxy grew more than outside, and at which less."""
    means = _means(rows)
    ratios = means.filter(pl.col("metric") == "growth_log_ratio", IS_PROXY).sort("step")
    if ratios.height < 2:
        return
    kinds: dict[Relation, list[int]] = {}
    for row in ratios.iter_rows(named=True):
        kinds.setdefault(relation(as_interval(row)), []).append(row["step"])
    told = "; ".join(f"{WORDS[kind]} growth outside at {_listed(steps)}" for kind, steps in kinds.items())
    highest = ratios.filter(pl.col("value").is_finite()).sort("value")
    if highest.is_empty():
        return
    ends = " and ".join(_ratio(means, highest.row(place, named=True)) for place in (0, -1))
    yield (
        f"Growth of variance inside the proxy since the due step before is {told}. Inside over outside lies between "
        f"{ends}."
    )


def _listed(steps: list[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"


def _ratio(means: pl.DataFrame, row: Row) -> str:
    """Return the ratio of a step, with the same of pca."""
    pca = means.filter(metric="growth_log_ratio", variant="pca", step=row["step"])["value"].to_list()
    beside = f", pca {math.exp(pca[0]):.3g}" if pca and row["variant"] != "pca" else ""
    return f"{ratio_text(row)} (step {row['step']}{beside})"


MOVED = Section(
    question="Do representations move along the proxy?",
    command="Lens(probe=…)",
    figures=(movement_over_training, growth_over_training),
    findings=(moved, beyond_variance, amplified),
)
