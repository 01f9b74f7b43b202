"""What a report says about claims: the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from tangentlens.report.contents import Section, Table
from tangentlens.report.reading import interval_text, text_of
from tangentlens.studies.claims.ledger import Entry, ledger
from tangentlens.studies.claims.phases import phases


def ledger_table(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate every claim that the records judge, if they say whose they are."""
    if "weights" not in records.columns:
        return
    judged = [entry for entry in ledger(records) if entry.judgement is not None]
    if judged:
        yield Table(
            "Claims: effects over networks, with intervals corrected for the number of claims", as_table(judged)
        )


def phase_table(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate when growth moves outside the proxy, and when anisotropy and dimension peak."""
    found = phases(records) if "weights" in records.columns else pl.DataFrame()
    if found.height:
        interval = pl.struct("value", "ci_low", "ci_high")
        doublings = found.rename({"doublings": "value"}).with_columns(doublings=text_of(interval, interval_text))
        title = "Turns of training: doublings are log2(step + 1), with 95% intervals over networks"
        yield Table(title, doublings.select("kind", "turn", "networks", "step", "doublings"))


def as_table(entries: Sequence[Entry]) -> pl.DataFrame:
    """Return entries of the ledger as people read them."""
    return pl.DataFrame(
        [
            {
                "claim": f"{entry.claim.id}. {entry.claim.statement}",
                "effect": entry.effect,
                "claimed": entry.margin,
                "verdict": entry.verdict,
                "networks": ", ".join(f"{n} of {stratum}" for stratum, n in entry.n_networks.items()),
                "what would decide": entry.why,
            }
            for entry in entries
        ]
    )


LEDGER = Section(tables=(ledger_table, phase_table), rows=None)
