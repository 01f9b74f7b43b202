"""How much of the gradient lies in the proxy, compared with every control."""

from __future__ import annotations

from collections.abc import Iterator

import plotly.graph_objects as go
import polars as pl

from tangentlens.alignment.share import ORDERS
from tangentlens.report.contents import SIGNS, Card, Figure, Section, Sign, Table
from tangentlens.report.drawing import band, bars, grid, labelled, shown_at_first, step_axis, style_of, styled
from tangentlens.report.reading import (
    ESTIMATE,
    IS_PROXY,
    Row,
    as_interval,
    corrected_p_values,
    course_of,
    interval_text,
    last_measured,
    mean_shares,
    range_text,
    ratio_text,
    relations,
    shares,
    text_of,
)
from tangentlens.runs.vocabulary import ALL_TOKENS, GRADIENT, MEAN_SITE, PROXY, SHARE_LABELS, VARIANTS
from tangentlens.statistics.corrections import benjamini_hochberg
from tangentlens.statistics.emergence import emergence
from tangentlens.statistics.interval import exactly
from tangentlens.statistics.words import EQUIVALENT, WORDS, Relation, compare, relation, tally

OVER_SEQUENCES = (
    "95% jackknife intervals over the test sequences of the step's batch; the fitted subspaces are held fixed"
)
# The proxy, then its controls as the vocabulary lists them.
_LINE = pl.when(IS_PROXY).then(pl.lit(PROXY)).otherwise("variant")
LINES = pl.Enum([PROXY, *VARIANTS])
# Where a control stands in that order; a proxy of one's own is not among them.
PLACE = pl.col("variant").replace_strict({name: place for place, name in enumerate(VARIANTS)}, default=-1)


def with_lines(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the records of subspaces that are drawn, with the line each belongs to."""
    return rows.with_columns(line=_LINE).filter(pl.col("line").is_in([PROXY, *VARIANTS]))


def lines_of(records: pl.DataFrame, quantity: str = GRADIENT) -> pl.DataFrame:
    """Return all shares of gradients, or of another quantity, with the line each belongs to, the proxy first."""
    rows = with_lines(shares(labelled(records), quantity=quantity)).filter(pl.col("order").is_in(list(SHARE_LABELS)))
    return rows.sort(pl.col("line").cast(LINES), "order", "step", maintain_order=True)


def share_over_training(records: pl.DataFrame) -> Figure | None:
    """Draw the shares of proxy and controls over the steps, averaged over sites."""
    rows = lines_of(records).filter(pl.col("site") == MEAN_SITE, pl.col("freq_bin") == ALL_TOKENS)
    if rows["step"].n_unique() < 2:
        return None

    def draw(name: str, line: pl.DataFrame) -> Iterator[go.Scatter]:
        style = style_of(line, name == PROXY)
        for trace in band(line, style.label, style.colour, style.dash):
            yield shown_at_first(trace, name, name == PROXY)

    plot = grid(rows, "order", SHARE_LABELS, "line", draw)
    step_axis(plot, rows, last_row=len(SHARE_LABELS))
    return Figure(_title(rows), f"Mean over sites. Bands: {OVER_SEQUENCES}.", styled(plot, 620))


def _title(rows: pl.DataFrame) -> str:
    last = last_measured(rows).filter(pl.col("order") == 1)
    told = []
    for (model,), cells in last.group_by(["model_label"], maintain_order=True):
        value = dict(zip(cells["line"], cells["value"], strict=True))
        others = ", ".join(f"{value[name]:.3g} {name}" for name in ("normal", "random", "pca") if name in value)
        told.append(f"{model} {value[PROXY]:.3g} (against {others})")
    return "Gradient energy in the proxy at the last step: " + "; ".join(sorted(told))


def share_over_depth(records: pl.DataFrame) -> Figure | None:
    """Draw the shares of proxy and controls over depth at the last step."""
    rows = last_measured(lines_of(records)).filter(pl.col("depth").is_not_null(), pl.col("freq_bin") == ALL_TOKENS)
    if rows["depth"].n_unique() < 2:
        return None

    def draw(name: str, line: pl.DataFrame) -> Iterator[go.Scatter]:
        style = style_of(line, name == PROXY)
        yield shown_at_first(bars(line, "site", style.label, style.colour, style.dash), name, name == PROXY)

    plot = grid(rows.sort("depth", maintain_order=True), "order", SHARE_LABELS, "line", draw)
    energy = rows.filter(pl.col("order") == 1)
    chance = energy.filter(pl.col("line") == "random").select("run", "model", "site", chance="value")
    proxy = energy.filter(pl.col("line") == PROXY).join(chance, on=["run", "model", "site"])
    told = {
        model: tally((_over_chance(row) for row in sites.iter_rows(named=True)), "r/d")
        for (_, model), sites in proxy.group_by(["run", "model_label"], maintain_order=True)
    }
    models = [f"{model}: {count}" if len(told) > 1 else count for model, count in told.items()]
    title = f"The proxy's energy share at the last step: {'; '.join(models)}"
    draws = "for random and normal, the range of 95% of their draws"
    return Figure(title, f"Bars: {OVER_SEQUENCES}; {draws}.", styled(plot, 560))


def _over_chance(row: Row) -> Relation:
    """Return what may be said of a share and of chance, which is known exactly."""
    return relation(as_interval(row).log_over(exactly(row["chance"])))


def share_table(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate proxy and controls at each model's last measured step, on average over sites."""
    key = ["run", "model", "step", "order", "variant"]
    rows = records.filter(pl.col("site") == MEAN_SITE, pl.col("freq_bin") == ALL_TOKENS)
    share = last_measured(shares(rows)).select(*key, "detail", share=text_of(ESTIMATE, interval_text))
    ratio = shares(rows, "log_ratio").select(*key, ratio=text_of(ESTIMATE, ratio_text))
    frame = (
        share.join(ratio, on=key, how="left")
        .sort("run", "model", "order", ~IS_PROXY, PLACE)
        .select(
            "run",
            "model",
            "step",
            pl.col("order").replace_strict(ORDERS).alias("share of"),
            pl.col("variant").alias("subspace"),
            "share",
            pl.col("ratio").fill_null("").alias("proxy / it"),
        )
    )
    yield Table("Share of the gradient, mean over sites; 95% intervals over sequences", frame)


def controls_table(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate the energy share of the proxy and of every control site by site, for models that are not in training."""
    key = ["run", "model", "site"]
    rows = records.filter(pl.col("freq_bin") == ALL_TOKENS, pl.col("order") == 1)
    by_site = last_measured(shares(rows)).filter(
        pl.col("site") != MEAN_SITE, pl.col("step").n_unique().over("run", "model") == 1
    )
    text = text_of(
        pl.struct("detail", "value", "ci_low", "ci_high", "decided"),
        lambda row: interval_text(row) if row["detail"] == PROXY else f"{row['value']:.3g}",
    )
    wide = (
        by_site.with_columns(text=text)
        .sort("run", "model", "depth", maintain_order=True)
        .pivot("variant", index=key, values="text", maintain_order=True)
    )
    tests = last_measured(shares(rows, "p_value"))
    for control in [name for name in ("random", "permuted") if name in tests["variant"]]:
        p_values = corrected_p_values(tests.filter(pl.col("variant") == control)).rename({"p (Holm)": f"p, {control}"})
        wide = wide.join(p_values, on=key, how="left", maintain_order="left")
    frame = wide if wide["model"].n_unique() > 1 else wide.drop("model")
    about = "" if "model" in frame.columns or wide.is_empty() else f"{wide['model'][0]}: "
    yield Table(f"{about}energy share by site and control; p-values are Holm-corrected over sites", frame)


def over_chance(rows: pl.DataFrame) -> Iterator[Card]:
    """Show how many times the energy share of the proxy is that of random directions, averaged over sites."""
    share = mean_shares(rows, "share")
    chance = share.filter(pl.col("variant") == "random").select("step", chance="value")
    both = share.filter(IS_PROXY).join(chance, on="step").sort("step")
    over = both.with_columns(pl.col("value", "ci_low", "ci_high") / pl.col("chance"))
    ratios = mean_shares(rows, "log_ratio").filter(pl.col("variant") == "random").sort("step")
    if over.height and ratios.height:
        told = relation(as_interval(ratios.row(-1, named=True)))
        yield _ratio_card("Gradient energy in the proxy, over chance", over, f"{WORDS[told]} chance", SIGNS[told])


def against_variance(rows: pl.DataFrame) -> Iterator[Card]:
    """Show how many times the energy share of the proxy is that of the top-variance directions."""
    logs = mean_shares(rows, "log_ratio").filter(pl.col("variant") == "pca").sort("step")
    if logs.height:
        told = relation(as_interval(logs.row(-1, named=True)))
        ratios = logs.with_columns(pl.col("value", "ci_low", "ci_high").exp())
        yield _ratio_card("The proxy, over top-variance directions", ratios, f"{WORDS[told]} pca", SIGNS[told])


def _ratio_card(title: str, rows: pl.DataFrame, verdict: str, sign: Sign) -> Card:
    last = rows.row(-1, named=True)
    return Card(title, f"{last['value']:.3g} ×", range_text(last), verdict, sign, course_of(rows))


def size(rows: pl.DataFrame) -> Iterator[str]:
    """Say how large the proxy's shares are at the last step, compared with each control."""
    for order, what in ((1.0, "energy (order 1)"), (2.0, "anisotropy (order 2)")):
        last = last_measured(mean_shares(rows, "share", order))
        ratios = last_measured(mean_shares(rows, "log_ratio", order))
        for proxy in last.filter(IS_PROXY).iter_rows(named=True):
            rank = "" if proxy["rank"] is None else f"rank-{proxy['rank']} "
            chance = "".join(f" (chance {value:.3g})" for value in last.filter(variant="random")["value"])
            controls = ratios.sort(PLACE)
            told = "; ".join(compare(row["variant"], as_interval(row)) for row in controls.iter_rows(named=True))
            when = "The" if rows["step"].max() == 0 else f"At step {proxy['step']} the"
            yield (
                f"{when} {rank}proxy captures {interval_text(proxy)} of the gradient's {what}, "
                f"averaged over sites{chance}{': ' if told else ''}{told}."
            )


def variance(rows: pl.DataFrame) -> Iterator[str]:
    """Say if the top-variance directions do as well as the proxy."""
    ratios = last_measured(mean_shares(rows, "log_ratio")).filter(pl.col("variant") == "pca")
    if (ratios["ci_high"] < EQUIVALENT).any():
        yield (
            "The top-variance directions of the same activations (pca) capture as much, within 5%, or more. These "
            "shares alone therefore show a preference for directions of high variance, and nothing beyond it."
        )


def emerges(rows: pl.DataFrame) -> Iterator[str]:
    """Say when the share rises above the normal control, and where it is significantly above a random subspace."""
    ratios = mean_shares(rows, "log_ratio").filter(pl.col("variant") == "normal").sort("step")
    p_values = shares(rows, "p_value").filter(
        pl.col("variant") == "random",
        pl.col("order") == 1,
        pl.col("freq_bin") == ALL_TOKENS,
        pl.col("value").is_finite(),
    )
    steps = ratios.join(p_values.select("step").unique(), on="step", how="semi")["step"].to_list()
    if len(steps) < 3:
        return
    # What is surely within 5% has not risen.
    kinds = relations(ratios)
    lows = [1.0 if kind == "above" else 0.0 for kind in kinds]
    since = emergence(ratios["step"].to_list(), lows).step
    if since is not None:
        above = f"stays significantly above the mean of the normal control from step {since} on"
    elif kinds[-1] == "no interval":
        above = "has no interval at the last step, so that it is not compared with the mean of the normal control"
    else:
        above = "is not significantly above the mean of the normal control at the last step"
    counts = []
    for step in (steps[0], steps[-1]):
        values = p_values.filter(pl.col("step") == step)["value"].to_numpy()
        significant = int((benjamini_hochberg(values) < 0.05).sum())
        counts.append(f"{significant} of {len(values)} sites at step {step}")
    yield (
        f"The energy share {above} (95% intervals over sequences, not corrected for the number of steps). "
        f"It is significantly above that of a random subspace at {counts[0]} and at {counts[1]} "
        "(5% level, Benjamini-Hochberg over sites); at the others this is not shown."
    )


SHARES = Section(
    question="How much of the gradient lies in the proxy?",
    command="a Lens in a training, or tangentlens test MODEL",
    cards=(over_chance, against_variance),
    figures=(share_over_training, share_over_depth),
    tables=(share_table, controls_table),
    findings=(size, variance, emerges),
)
