"""What a report says about claims: the ledger."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import plotly.graph_objects as go
import polars as pl

from tangentlens.report.contents import Figure, Section, Table
from tangentlens.report.drawing import styled
from tangentlens.report.reading import interval_text, text_of
from tangentlens.studies.claims.ledger import Entry, by_population, ledger, letters
from tangentlens.studies.claims.phases import phases
from tangentlens.studies.claims.shapes import depth_shapes

# How verdicts are drawn: colour and marker.
_VERDICTS = {
    "supported": ("#0072B2", "circle"),
    "refuted": ("#D55E00", "x"),
    "inconclusive": ("#999999", "circle-open"),
}
# Intervals of a ratio are cut off here, or at the last effect, or the widest would hide all others.
_SHOWN = (0.2, 50.0)


def judged(records: pl.DataFrame) -> list[Entry]:
    """Return the claims that the records judge; none if records do not say whose they are."""
    if "weights" not in records.columns:
        return []
    return [entry for entry in ledger(records) if entry.judgement is not None]


def ledger_figure(records: pl.DataFrame) -> Figure | None:
    """Draw the effects of all claims about ratios, with their intervals and margins, in the first population."""
    ratios = by_population([entry for entry in judged(records) if entry.claim.unit == "ratio"])
    if not ratios:
        return None
    population, drawn = next(iter(ratios.items()))
    entries = drawn[::-1]
    plot = go.Figure()
    names = [f"{html.escape(entry.claim.statement)} <b>{entry.claim.id}</b>" for entry in entries]
    margins = [math.exp(entry.claim.margin) for entry in entries]
    values = [entry.shown(entry.judgement.effect).value for entry in entries if entry.judgement is not None]
    least, most = min(_SHOWN[0], *values), max(_SHOWN[1], *values)
    tick = {"symbol": "line-ns", "size": 12, "line": {"width": 2, "color": "#000000"}}
    plot.add_trace(go.Scatter(x=margins, y=names, mode="markers", name="margin", marker=tick))
    for verdict, (colour, symbol) in _VERDICTS.items():
        chosen = [(name, entry) for name, entry in zip(names, entries, strict=True) if entry.verdict == verdict]
        shown = [entry.shown(entry.judgement.effect) for _, entry in chosen if entry.judgement is not None]
        ends = {
            "array": [min(one.ci_high, most) - one.value for one in shown],
            "arrayminus": [one.value - max(one.ci_low, least) for one in shown],
        }
        marker = {"color": colour, "symbol": symbol, "size": 9}
        x, y = [one.value for one in shown], [name for name, _ in chosen]
        trace = go.Scatter(x=x, y=y, error_x={"type": "data", **ends}, mode="markers", name=verdict, marker=marker)
        plot.add_trace(trace)
    ticks = {"tickvals": [0.2, 0.5, 1, 2, 5, 10, 20, 50]}
    plot.update_xaxes(type="log", title="ratio", range=[math.log10(least), math.log10(most)], **ticks)
    plot.update_yaxes(automargin=True, categoryorder="array", categoryarray=names)
    counts = Counter(entry.verdict for entry in entries)
    title = f"Claims about ratios, {population}: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
    caption = (
        "Points: means over networks. Bars: intervals over networks, corrected for the number of claims; cut off at "
    )
    caption += f"{least:.3g} and {most:.3g}. Ticks: what the effect must exceed for the claim to be supported."
    return Figure(title, caption, styled(plot, 120 + 28 * len(entries)))


def ledger_table(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate every claim that the records judge."""
    yield from tables(judged(records))


def phase_table(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate when growth moves outside the proxy, and when anisotropy and dimension peak."""
    found = phases(records) if "weights" in records.columns else pl.DataFrame()
    if found.height:
        interval = pl.struct("value", "ci_low", "ci_high")
        doublings = found.rename({"doublings": "value"}).with_columns(doublings=text_of(interval, interval_text))
        title = "Turns of training: doublings are log2(step + 1), with 95% intervals over networks"
        yield Table(title, doublings.select("kind", "turn", "networks", "step", "doublings"))


def tables(entries: Sequence[Entry]) -> Iterator[Table]:
    """Yield what was judged in each population, the strata that it rests on, and what could not be judged.

    Claims call strata by letters: '3A' is three networks of stratum A.
    """
    called = letters([entry for entry in entries if entry.judgement is not None])
    for population, some in by_population(entries).items():
        if population:
            title = f"Claims, {population}: effects with intervals corrected for the number of claims"
            yield Table(title, pl.DataFrame([_row(entry, called) for entry in some]))
    if called:
        strata = [{"stratum": letter, "networks": name} for name, letter in called.items()]
        title = "Strata: kinds of networks, each with the same weight; 3A is three networks of stratum A"
        yield Table(title, pl.DataFrame(strata))
    if missing := by_population(entries).get(""):
        told = [{"claim": f"{entry.claim.id}. {entry.claim.statement}", "why": entry.why} for entry in missing]
        yield Table("Claims that are not judged", pl.DataFrame(told))


def _row(entry: Entry, called: Mapping[str, str]) -> dict[str, str]:
    """Return a judged claim as people read it."""
    return {
        "claim": f"{entry.claim.id}. {entry.claim.statement}",
        "effect": entry.effect,
        "claimed": entry.margin,
        "verdict": entry.verdict,
        "networks": " ".join(f"{n}{called[stratum]}" for stratum, n in entry.n_networks.items()),
        "needed per stratum": entry.needed,
    }


def shape_table(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate the shapes of profiles over depth."""
    found = depth_shapes(records) if "weights" in records.columns else pl.DataFrame()
    if found.height:
        yield Table("Shapes over depth at the last step, judged over networks", found)


LEDGER = Section(
    question="Which claims hold?",
    command="tangentlens study NAME, whose networks have several seeds",
    figures=(ledger_figure,),
    tables=(ledger_table, shape_table, phase_table),
    rows=None,
)
