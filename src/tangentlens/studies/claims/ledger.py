"""The ledger: every claim with its effect over networks, its verdict, and the command that redoes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import polars as pl

from tangentlens.report.reading import undoubted
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.judging import Effect, Judgement, judge
from tangentlens.studies.claims import CLAIMS
from tangentlens.studies.claims.claim import Claim
from tangentlens.studies.claims.estimands import NETWORK, SAME

# Two populations of networks, judged apart: seeds of networks that a study trained, and models that others trained.
TRAINED, FINISHED = "networks trained in studies", "finished models"
# What measures finished models again; their names are those of the networks.
REDO_FINISHED = "tangentlens study finished-models --models ..."


@dataclass(frozen=True, eq=False)
class Entry:
    """One line of the ledger: a claim in a population of networks.

    Attributes:
        claim: The claim.
        population: Which networks; empty if no population can be judged.
        effects: The effect of each network: `run`, `network`, `effect`, `population`, `stratum`.
        judgement: The verdict; None if there are too few networks.
    """

    claim: Claim
    population: str
    effects: pl.DataFrame
    judgement: Judgement | None

    @property
    def verdict(self) -> str:
        """`supported`, `refuted`, `inconclusive`, or `not judged`."""
        return "not judged" if self.judgement is None else self.judgement.verdict

    @property
    def n_networks(self) -> dict[str, int]:
        """The number of networks in each stratum."""
        return dict(self.effects.group_by("stratum", maintain_order=True).len().iter_rows())

    @property
    def strata(self) -> dict[str, float]:
        """The mean effect of the networks of each stratum, as people read it."""
        means = self.effects.group_by("stratum", maintain_order=True).agg(pl.mean("effect"))
        return {name: self._number(mean) for name, mean in means.iter_rows()}

    def each(self, stratum: str) -> dict[str, float]:
        """Return the effect of each network of a stratum, as people read it."""
        rows = self.effects.filter(stratum=stratum).select("network", "effect").iter_rows()
        return {name: self._number(effect) for name, effect in rows}

    def _number(self, effect: float) -> float:
        return math.exp(effect) if self.claim.unit == "ratio" else effect

    @property
    def effect(self) -> str:
        """The effect with its interval, as people read it."""
        if self.judgement is None:
            return ""
        return repr(self.shown(self.judgement.effect))

    def shown(self, interval: Interval) -> Interval:
        """Return an effect as people read it: a log-ratio as a ratio."""
        return interval.exp() if self.claim.unit == "ratio" else interval

    @property
    def margin(self) -> str:
        """What the claim says of the effect, with its margin."""
        return f"{'below' if self.claim.below else 'above'} {self._number(self.claim.margin):.3g}"

    def as_dict(self) -> dict[str, Any]:
        """Return everything that is known of the claim, for programs."""
        claim, judgement = self.claim, self.judgement
        return {
            "id": claim.id,
            "statement": claim.statement,
            "source": claim.source,
            "effect_of": claim.effect,
            "unit": claim.unit,
            "claimed": self.margin,
            "population": self.population,
            "verdict": self.verdict,
            "effect": None if judgement is None else self.shown(judgement.effect).columns(),
            "level": None if judgement is None else judgement.level,
            "p_value": None if judgement is None else judgement.p_value,
            "networks": self.n_networks,
            "strata": self.strata,
            "effects": self.effects.to_dicts(),
            "what_would_decide": self.why,
            "known": claim.known,
            "command": self.command,
        }

    @property
    def command(self) -> str:
        """The command that measures the networks again."""
        return REDO_FINISHED if self.population == FINISHED else self.claim.needs.command

    @property
    def needed(self) -> str:
        """How many networks in each stratum would decide a claim that is inconclusive; empty for others."""
        if self.judgement is None or self.judgement.verdict != "inconclusive":
            return ""
        needed = self.judgement.needed
        return f"about {needed}" if needed else "above 1,000"

    @property
    def why(self) -> str:
        """What would decide a claim that is not decided; empty for others."""
        if self.judgement is None:
            have = "only one of a stratum has them" if self.effects.height else "none has them"
            needs = self.claim.needs
            return f"needs {needs.records}, of at least 2 networks of a stratum, but {have}: {needs.command}"
        return f"{self.needed} networks in each stratum would decide" if self.needed else ""


def by_population(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Return the lines of each population, in the order of the claims; what is not judged is under ''."""
    return {name: some for name in (TRAINED, FINISHED, "") if (some := [e for e in entries if e.population == name])}


def letters(entries: Sequence[Entry]) -> dict[str, str]:
    """Return a letter for each stratum, whose names are long: A to Z, then A1 and so on."""
    names = dict.fromkeys(name for entry in entries for name in entry.n_networks)
    return {name: f"{ascii_uppercase[i % 26]}{i // 26 or ''}" for i, name in enumerate(names)}


def ledger(records: pl.DataFrame, claims: Sequence[Claim] = CLAIMS) -> list[Entry]:
    """Return the ledger of the records of one or more runs, as `read_runs` returns them.

    Networks that a study trained and models that others trained are judged apart. All claims that can be judged in one
    of these populations are a family, which Holm's method corrects for. Checkpoints of a sweep that are not what their
    names say do not count.

    Args:
        records: The records, with the facts about their networks.
        claims: The claims to judge.
    """
    records = undoubted(records)
    facts = _facts(records)
    plain = records.filter(pl.col("treatment") == "")
    found = {claim.id: _stratified(claim.of(records if claim.of_treated else plain), facts) for claim in claims}
    judged = {population: _judged(population, claims, found) for population in (TRAINED, FINISHED)}
    return [entry for claim in claims for entry in _entries(claim, found[claim.id], judged)]


def _judged(
    population: str, claims: Sequence[Claim], found: Mapping[str, pl.DataFrame]
) -> dict[str, tuple[pl.DataFrame, Judgement]]:
    """Return the networks of a population and the verdict, for every claim that they can judge."""
    able = {name: _able(effects.filter(population=population)) for name, effects in found.items()}
    known = [claim for claim in claims if able[claim.id].height]
    effects = {claim.id: Effect.of(_by_stratum(able[claim.id]), claim.resolution) for claim in known}
    below = frozenset(claim.id for claim in known if claim.below)
    verdicts = judge(effects, {claim.id: claim.margin for claim in known}, below)
    return {name: (able[name], verdict) for name, verdict in verdicts.items()}


def _able(effects: pl.DataFrame) -> pl.DataFrame:
    """Return the networks of strata of at least two: one network alone says nothing of the variation."""
    return effects.filter(pl.len().over("stratum") > 1)


def _entries(
    claim: Claim, found: pl.DataFrame, judged: Mapping[str, Mapping[str, tuple[pl.DataFrame, Judgement]]]
) -> list[Entry]:
    """Return the line of a claim in each population that can judge it, or one line that says that none can."""
    entries = [
        Entry(claim, population, *verdicts[claim.id]) for population, verdicts in judged.items() if claim.id in verdicts
    ]
    return entries or [Entry(claim, "", found, None)]


def _facts(records: pl.DataFrame) -> pl.DataFrame:
    """Return the `family` of each network, and in `same` what it has in common with itself in other runs.

    Networks without weights are not trained to their end and are left out.
    """
    known = records.filter(pl.col("weights") != "").select(*NETWORK, "family", "kind", "weights", SAME).unique()
    # A copy of a model has its weights under another name. Of two names, it goes by the first in the alphabet. With the
    # same weights, an encoder and a decoder compute other things.
    known = known.with_columns(pl.min("same").over("weights", "kind"))
    by_name = pl.when(pl.col("family") == "").then(pl.min("same").over("network", "family")).otherwise("same")
    return known.select(*NETWORK, "family", same=by_name)


def _stratified(effects: pl.DataFrame, facts: pl.DataFrame) -> pl.DataFrame:
    """Return the effects with population and stratum of each network, each once, with the mean over its runs.

    Seeds of one family are a stratum, and models that others trained are one together.
    """
    known = effects.join(facts, on=NETWORK, maintain_order="left")
    once = (
        # An effect that is not finite says nothing.
        known.filter(pl.col("effect").is_finite())
        .group_by("same", maintain_order=True)
        .agg(pl.first(*NETWORK, "family"), pl.mean("effect"))
    )
    finished = pl.col("family") == ""
    return once.select(
        *NETWORK,
        "effect",
        population=pl.when(finished).then(pl.lit(FINISHED)).otherwise(pl.lit(TRAINED)),
        stratum=pl.when(finished).then(pl.lit(FINISHED)).otherwise("family"),
    )


def _by_stratum(effects: pl.DataFrame) -> list[list[float]]:
    return [part["effect"].to_list() for part in effects.partition_by("stratum", maintain_order=True)]
