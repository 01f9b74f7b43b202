"""Findings: plain sentences, each with its interval, from the records of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from tangentlens.alignment.checks import VERDICTS
from tangentlens.alignment.tangent_result import PROXY
from tangentlens.alignment.tangent_test import CONTROLS
from tangentlens.lens.measures import MEAN_SITE, ONE_PER_TYPE
from tangentlens.report.reading import HEADLINES, PROFILED, Row, interval_text, last_measured, ratio_text
from tangentlens.statistics.corrections import benjamini_hochberg, holm
from tangentlens.statistics.emergence import emergence
from tangentlens.statistics.shape import BATCHES
from tangentlens.studies.profile import SHAPE
from tangentlens.studies.visibility import ANALYTIC, CORRELATION, DEALT, HELD, P_VALUE, RATIO

# A log-ratio nearer to 0 than this is called 'about as much': 5%.
CLOSE = 0.05


@dataclass(frozen=True)
class Finding:
    """One sentence about one model."""

    run: str
    model: str
    text: str


def findings(records: pl.DataFrame) -> list[Finding]:
    """Every sentence the records of one or more runs support, model by model."""
    found = []
    for (run, model), rows in records.group_by(["run", "model"], maintain_order=True):
        found += [Finding(str(run), str(model), text) for text in _sentences(rows)]
    return found


def _sentences(rows: pl.DataFrame) -> Iterator[str]:
    yield from _loss(rows)
    for order, what in ((1.0, "energy (order 1)"), (2.0, "anisotropy (order 2)")):
        yield from _share(rows, order, what)
    yield from _variance(rows)
    yield from _emergence(rows)
    yield from _frequency(rows)
    yield from _change(rows, "anisotropy", "", MEAN_SITE, "Anisotropy of the activations, on average over sites,")
    middle = _middle_site(rows)
    if middle:
        for variant, what in (("", "over all tokens"), (ONE_PER_TYPE, "with one row per token type")):
            about = f"Intrinsic dimension of the activations at {middle}, {what},"
            yield from _change(rows, "intrinsic_dimension", variant, middle, about)
    yield from _shapes(rows)
    yield from _clusters(rows)
    yield from _audits(rows)
    yield from _visibility(rows)
    yield from _unmeasured(rows)


def _visibility(rows: pl.DataFrame) -> Iterator[str]:
    last = rows.filter(pl.col("metric") == RATIO, pl.col("variant").str.ends_with("alpha=1"))
    for row in last.filter(pl.col("site") == "").iter_rows(named=True):
        one = {found["metric"]: found for found in rows.iter_rows(named=True) if found["variant"] in ("", "alpha=1")}
        fell = one[HELD]
        yield (
            f"With frequencies that fall with the distance, {interval_text(row)} of the curvature of even types is "
            f"visible, where {one[RATIO + ANALYTIC]['value']:.3g} follows from the true curvature; it fell with every "
            f"step of alpha in {round(fell['value'] * fell['n'])} of {fell['n']} further draws."
        )
    at = last.filter(pl.col("site") != "", pl.col("variant").str.starts_with("corpus"))
    if at.height:
        less, more = _unlike_dealt(rows, RATIO, "corpus alpha=1")
        near, _ = _unlike_dealt(rows, CORRELATION, "corpus")
        resolved = rows.filter(pl.col("metric") == "resolved")["value"].sum()
        flat = at["value"].is_nan().sum()
        may_be_flat = f"; at {flat} all may be flat" if flat else ""
        yield (
            f"Around types drawn as in the corpus, its frequencies hide curvature at {', '.join(less) or 'no site'}, "
            f"show more of it at {', '.join(more) or 'no site'}, and do no more than frequencies dealt out at random "
            f"at the other {at.height - len(less) - len(more) - flat} (Holm-corrected){may_be_flat}. "
            f"Frequency falls with the distance, which would hide curvature, at {len(near)} of {at.height} sites. "
            f"The planes stand out at {resolved:.0f}: elsewhere this is no curvature of a surface, but of patches as "
            "they are."
        )


def _unlike_dealt(rows: pl.DataFrame, metric: str, variant: str) -> tuple[list[str], list[str]]:
    """Sites with less, and with more, than frequencies dealt out to types at random give: by p-value and interval."""
    here = rows.filter(pl.col("variant") == variant)
    tests = here.filter(pl.col("metric") == metric + P_VALUE).with_columns(
        sure=pl.col("value").map_batches(holm, return_dtype=pl.Float64) < 0.05
    )
    sure = here.filter(pl.col("metric") == metric, pl.col("site").is_in(tests.filter("sure")["site"].to_list()))
    dealt = here.filter(pl.col("metric") == metric + DEALT).select("site", dealt="value")
    told = sure.join(dealt, on="site", maintain_order="left")
    less, more = pl.col("ci_high") < pl.col("dealt"), pl.col("ci_low") > pl.col("dealt")
    return told.filter(less)["site"].to_list(), told.filter(more)["site"].to_list()


def _loss(rows: pl.DataFrame) -> Iterator[str]:
    loss = rows.filter(pl.col("metric") == "loss", pl.col("variant") == "").sort("step")
    if loss.height > 1:
        first, last = loss.row(0, named=True), loss.row(-1, named=True)
        yield (
            f"Training loss went from {first['value']:.2f} (step {first['step']}) to {last['value']:.2f} "
            f"(step {last['step']}) nats per predicted token."
        )


def _cells(rows: pl.DataFrame, metric: str, order: float = 1.0) -> pl.DataFrame:
    return rows.filter(
        pl.col("metric") == metric, pl.col("site") == MEAN_SITE, pl.col("order") == order, pl.col("freq_bin") == "all"
    )


def _share(rows: pl.DataFrame, order: float, what: str) -> Iterator[str]:
    shares = {row["variant"]: row for row in last_measured(_cells(rows, "share", order)).iter_rows(named=True)}
    ratios = {row["variant"]: row for row in last_measured(_cells(rows, "log_ratio", order)).iter_rows(named=True)}
    if PROXY not in shares:
        return
    proxy = shares[PROXY]
    rank = "" if proxy["rank"] is None else f"rank-{proxy['rank']} "
    chance = f" (chance {shares['random']['value']:.3g})" if "random" in shares else ""
    told = "; ".join(
        f"{_word(ratios[name])} {name} ({ratio_text(ratios[name])} times)" for name in CONTROLS if name in ratios
    )
    yield (
        f"At step {proxy['step']} the {rank}proxy takes {interval_text(proxy)} of the gradient's {what} on average "
        f"over sites{chance}{': ' if told else ''}{told}."
    )


def _word(ratio: Row) -> str:
    """Fitted subspaces are held fixed in these intervals, so a few percent are not given a direction."""
    if ratio["ci_low"] > -CLOSE and ratio["ci_high"] < CLOSE:
        return "about as much as"
    return "more than" if ratio["ci_low"] > 0 else "less than" if ratio["ci_high"] < 0 else "not told apart from"


def _variance(rows: pl.DataFrame) -> Iterator[str]:
    for row in last_measured(_cells(rows, "log_ratio")).filter(pl.col("variant") == "pca").iter_rows(named=True):
        if row["ci_high"] < CLOSE:
            yield (
                "The top-variance directions of the same activations (pca) do as well or better, so these shares by "
                "themselves show a preference for directions of high variance, and nothing beyond it."
            )


def _emergence(rows: pl.DataFrame) -> Iterator[str]:
    """Against the control's mean, over sequences; and whether a random subspace would have done as well."""
    ratios = _cells(rows, "log_ratio").filter(pl.col("variant") == "normal").sort("step")
    p_values = rows.filter(
        pl.col("metric") == "p_value",
        pl.col("variant") == "random",
        pl.col("order") == 1,
        pl.col("freq_bin") == "all",
        pl.col("value").is_finite(),
    )
    steps = ratios.join(p_values.select("step").unique(), on="step", how="semi")["step"].to_list()
    if len(steps) < 3:
        return
    seen = emergence(ratios["step"].to_list(), ratios["ci_low"].to_list())
    above = (
        "does not stay above the mean of the normal control"
        if seen.step is None
        else f"is above the mean of the normal control from step {seen.step} on"
    )
    counts = []
    for step in (steps[0], steps[-1]):
        values = p_values.filter(pl.col("step") == step)["value"].to_numpy()
        rare = int((benjamini_hochberg(values) < 0.05).sum())
        counts.append(f"{rare} of {len(values)} sites at step {step}")
    yield (
        f"Its energy share {above} (intervals over sequences, not corrected for the number of steps). "
        f"A random subspace would rarely take as much at {counts[0]} and at {counts[1]} "
        "(5% level, Benjamini-Hochberg over sites)."
    )


def _frequency(rows: pl.DataFrame) -> Iterator[str]:
    contrasts = rows.filter(
        pl.col("metric") == "frequency_log_ratio", pl.col("site") == MEAN_SITE, pl.col("order") == 1
    )
    for kind in ("target", "input"):
        last = last_measured(contrasts.filter(pl.col("freq_bin") == kind))
        ratios = {row["variant"]: row for row in last.iter_rows(named=True)}
        if PROXY in ratios:
            row = ratios[PROXY]
            word = "above" if row["ci_low"] > 0 else "below" if row["ci_high"] < 0 else "not told apart from"
            pca = f"; pca's is {ratio_text(ratios['pca'])} times" if "pca" in ratios else ""
            yield (
                f"By {kind} token, the proxy's energy share on the most frequent quarter of the text is {word} that on "
                f"the rarest ({ratio_text(row)} times{pca})."
            )


def _change(rows: pl.DataFrame, metric: str, variant: str, site: str, what: str) -> Iterator[str]:
    series = (
        rows.filter(pl.col("metric") == metric, pl.col("quantity") == "activation", pl.col("site") == site)
        .filter(pl.col("variant") == variant)
        .sort("step")
    )
    if series.height < 2:
        return
    first, last = series.row(0, named=True), series.row(-1, named=True)
    highest, lowest = (series.sort("value").row(place, named=True) for place in (-1, 0))
    for turn, name, beyond in ((highest, "peak", _below), (lowest, "low", _above)):
        if beyond(first, turn) and beyond(last, turn):
            yield f"{what} goes from {_at(first)} to a {name} of {_at(turn)} and ends at {_at(last)}."
            return
    if _below(first, last) or _above(first, last):
        yield f"{what} {'rises' if _below(first, last) else 'falls'} from {_at(first)} to {_at(last)}."
    else:
        yield f"{what} is not told apart between {_at(first)} and {_at(last)}."


def _shapes(rows: pl.DataFrame) -> Iterator[str]:
    """What a profile over depth looks like, by the test over batches."""
    for row in rows.filter(pl.col("metric").str.starts_with(SHAPE)).iter_rows(named=True):
        *variant, kind = row["variant"].split(":")
        name = ":".join([row["metric"].removeprefix(SHAPE), *variant])
        if name not in HEADLINES:
            continue
        what = PROFILED[name]
        there = rows.filter(
            pl.col("metric") == row["metric"].removeprefix(SHAPE),
            pl.col("variant") == ":".join(variant),
            pl.col("site") == row["site"],
        )
        value = f"{there['value'][0]:#.3g} at {row['site']}"
        told = {
            "bell": f"a bell, {value}, above the higher end by {interval_text(row)}",
            "valley": f"a valley, {value}, off the lower end by {interval_text(row)}",
            "irregular": f"irregular, {value}, off both ends by at least {interval_text(row)}, but no bell or valley",
            "monotone": f"no bell or valley, and the last site is off the first by {interval_text(row)}",
            "flat": f"flat, the last site is off the first by {interval_text(row)}",
        }[kind]
        yield f"{what[0].upper()}{what[1:]} over depth: {told} (over batches)."


def _clusters(rows: pl.DataFrame) -> Iterator[str]:
    """Whether the space is rounder inside clusters than as a whole."""
    inside, random = (
        rows.filter(pl.col("metric") == "local_anisotropy", pl.col("variant") == variant, pl.col("ci_over") == BATCHES)
        for variant in ("", "matched")
    )
    both = inside.join(random, on="site", suffix="_random")
    if both.height:
        rounder = both.filter(pl.col("ci_high") < pl.col("ci_low_random")).height
        longer = both.filter(pl.col("ci_low") > pl.col("ci_high_random")).height
        yield (
            f"Inside clusters, the anisotropy is below that of as many random rows at {rounder} of {both.height} sites "
            f"and above it at {longer} (means {_mean(both['value'])} and {_mean(both['value_random'])})."
        )


def _audits(rows: pl.DataFrame) -> Iterator[str]:
    """The verdict at each site, and how many sites prefer their own chart."""
    audits = rows.filter(pl.col("metric") == "audit").sort("depth", maintain_order=True)
    for row in audits.filter(pl.col("variant").str.starts_with("says: ")).iter_rows(named=True):
        yield f"Audit at {row['site']}: the gradients are {VERDICTS[row['variant'].removeprefix('says: ')]}."
    charts = audits.filter(pl.col("variant") == "charts: log_ratio")
    if charts.height:
        own, other = (charts.filter(expr).height for expr in (pl.col("ci_low") > 0, pl.col("ci_high") < 0))
        yield (
            f"Gradients prefer the plane of their own chart to those of others at {own} of {charts.height} sites, "
            f"and the others' at {other} (energy; intervals over sequences)."
        )


def _mean(values: pl.Series) -> str:
    return f"{sum(values) / len(values):#.3g}"


def _unmeasured(rows: pl.DataFrame) -> Iterator[str]:
    missing = rows.filter(pl.col("metric") == "unmeasured").sort("step")
    if missing.height:
        steps = ", ".join(str(step) for step in missing["step"].unique().sort())
        # What is not trained has no steps but 0.
        when = "" if steps == "0" else f" at steps {steps}"
        yield f"Not measured everywhere{when}, first because: {missing['variant'][0]}."


def _below(a: Row, b: Row) -> bool:
    return bool(a["ci_high"] < b["ci_low"])


def _above(a: Row, b: Row) -> bool:
    return _below(b, a)


def _at(row: Row) -> str:
    return f"{interval_text(row)} (step {row['step']})"


def _middle_site(rows: pl.DataFrame) -> str | None:
    """The measured site nearest to half the depth."""
    known = rows.filter(pl.col("metric") == "intrinsic_dimension", pl.col("depth").is_not_null())
    if known.is_empty():
        return None
    return str(known.sort((pl.col("depth") - 0.5).abs(), maintain_order=True)["site"][0])
