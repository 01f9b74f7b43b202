"""When training turns: growth moves outside the proxy, anisotropy peaks, dimension peaks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import polars as pl

from tangentlens.runs.vocabulary import ACTIVATION, MOVEMENT
from tangentlens.statistics.judging import Effect
from tangentlens.studies.claims.estimands import NETWORK, SAME, Select, by_step

GROWTH = "growth moves outside the proxy"
_GROWTH = Select("growth_log_ratio", "proxy", quantity=MOVEMENT)
_PEAKS = {
    "anisotropy peaks": Select("anisotropy", quantity=ACTIVATION, site=None),
    "dimension peaks": Select("intrinsic_dimension", quantity=ACTIVATION, site=None),
}
_TURN = {"run": pl.String, "network": pl.String, "kind": pl.String, "turn": pl.String, "doublings": pl.Float64}


def phases(records: pl.DataFrame) -> pl.DataFrame:
    """Return when each turn happens, and how far apart turns are, with 95% intervals over networks.

    A turn is dated in doublings, log2(step + 1), because due steps are spaced so; it is known to about one doubling.
    The turn of growth is where variance first grows faster outside the proxy after it grew faster inside. What is
    highest at the first or the last due step has no peak. Networks whose training was changed on purpose do not count.

    Args:
        records: The records of trainings with a probe, as `read_runs` returns them.

    Returns:
        One row for each kind of network and turn, or pair of turns: `kind`, `turn`, `networks` (how many show it), and
        `doublings` with `ci_low` and `ci_high`, and for a turn the `step` that this is.
    """
    found = pl.DataFrame(_turns(records), schema=_TURN, orient="row")
    # One and the same network may be in several runs; one without weights is not trained to its end.
    facts = records.filter(pl.col("weights") != "").select(*NETWORK, SAME).unique(maintain_order=True)
    known = found.join(facts, on=NETWORK, maintain_order="left")
    turns = known.group_by("kind", "turn", "same", maintain_order=True).agg(pl.mean("doublings"))
    rows = []
    for (kind,), of_kind in turns.group_by(["kind"], maintain_order=True):
        dated = {str(turn): part for (turn,), part in of_kind.group_by(["turn"], maintain_order=True)}
        for turn, part in dated.items():
            rows.append(_row(str(kind), turn, part["doublings"].to_list(), is_date=True))
        for one, other in combinations(dated, 2):
            both = dated[one].join(dated[other], on="same")
            gaps = (both["doublings_right"] - both["doublings"]).to_list()
            rows.append(_row(str(kind), f"from '{one}' to '{other}'", gaps, is_date=False))
    return pl.DataFrame([row for row in rows if row is not None])


def _turns(records: pl.DataFrame) -> Iterator[tuple[str, str, str, str, float]]:
    for turn, select in {GROWTH: _GROWTH, **_PEAKS}.items():
        curves = by_step(select.rows(records.filter(pl.col("epoch").is_not_null(), pl.col("treatment") == "")))
        for (run, network, kind), curve in curves.group_by([*NETWORK, "kind"], maintain_order=True):
            steps = [math.log2(step + 1) for step in curve["step"]]
            values = curve["value"].to_list()
            at = _crossing(steps, values) if turn == GROWTH else _peak(steps, values)
            if at is not None and len(steps) >= 3:
                yield str(run), str(network), str(kind), turn, at


def _crossing(places: list[float], values: list[float]) -> float | None:
    """Return where values first fall below 0 after they were above, by linear interpolation; None if nowhere."""
    for (left, before), (right, after) in zip(
        zip(places, values, strict=True), zip(places[1:], values[1:], strict=True), strict=False
    ):
        if before > 0 >= after:
            return left + (right - left) * before / (before - after)
    return None


def _peak(places: list[float], values: list[float]) -> float | None:
    """Return where values are highest; None if that is at an end, where they may still rise."""
    at = values.index(max(values))
    return places[at] if 0 < at < len(values) - 1 else None


def _row(kind: str, turn: str, dates: list[float], is_date: bool) -> dict[str, object] | None:
    if len(dates) < 2:
        return None
    mean = Effect.of([dates], resolution=1.0).interval(0.95)
    steps = [max(2**at - 1, 0.0) for at in (mean.value, mean.ci_low, mean.ci_high)]
    step = "{:.3g} [{:.3g}, {:.3g}]".format(*steps) if is_date else ""
    about = {"kind": kind, "turn": turn, "networks": len(dates), "step": step}
    return {**about, "doublings": mean.value, "ci_low": mean.ci_low, "ci_high": mean.ci_high}
