"""Networks whose training was changed on purpose, beside their twins without the change, at equal loss or steps."""

from __future__ import annotations

import math

import polars as pl

from tangentlens.runs.vocabulary import LOSS
from tangentlens.studies.claims.claim import Estimand
from tangentlens.studies.claims.estimands import NETWORK, Select, by_step, effects_of

Network = tuple[str, str]
Curve = dict[int, float]

# The loss on text that no network was trained on.
HELD_OUT_LOSS = Select(LOSS, "held_out", quantity=LOSS, site=None)


def at_equal_loss(select: Select, treatment: str) -> Estimand:
    """Return the number of a treated network minus that of its untreated twin, both when their losses are equal.

    The twin has the same shape, text and seed. The loss is the higher one of the two at their last steps, on held-out
    text: both reach it. What a network is then is interpolated between due steps.

    Args:
        select: The number, averaged over the selected sites.
        treatment: The treatment.
    """

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        losses = _curves(by_step(HELD_OUT_LOSS.rows(records)))
        values = _curves(by_step(select.rows(records)))
        rows: list[dict[str, object]] = []
        for network, twin in _twins(records, treatment):
            if all(one in known for one in (network, twin) for known in (losses, values)):
                level = max(min(losses[one].values()) for one in (network, twin))
                ours, other = (_when_reached(losses[one], values[one], level) for one in (network, twin))
                rows.append({"run": network[0], "network": network[1], "effect": ours - other})
        return effects_of(rows)

    return effect


def at_equal_steps(select: Select, treatment: str) -> Estimand:
    """Return the number of a treated network minus that of its untreated twin, both at their last due step.

    Args:
        select: The number, averaged over the selected sites.
        treatment: The treatment.
    """

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        values = _curves(by_step(select.rows(records)))
        return effects_of(
            [
                {"run": network[0], "network": network[1], "effect": ours[max(ours)] - other[max(other)]}
                for network, twin in _twins(records, treatment)
                if (ours := values.get(network)) and (other := values.get(twin))
            ]
        )

    return effect


def _curves(series: pl.DataFrame) -> dict[Network, Curve]:
    """Return the values by step of each network."""
    curves: dict[Network, Curve] = {}
    for run, network, step, value in series.select(*NETWORK, "step", "value").iter_rows():
        curves.setdefault((run, network), {})[step] = value
    return curves


def _twins(records: pl.DataFrame, treatment: str) -> list[tuple[Network, Network]]:
    """Return each network with a treatment and the one without any that has the same shape, text and seed."""
    # What follows the first comma of a family is the same with and without a treatment.
    recipe = pl.col("family").str.splitn(", ", 2).struct.field("field_1")
    facts = records.select(*NETWORK, "kind", "treatment", "trained_seed", recipe=recipe).unique(maintain_order=True)
    plain = facts.filter(pl.col("treatment") == "", pl.col("recipe").is_not_null())
    key = ["kind", "trained_seed", "recipe"]
    both = facts.filter(pl.col("treatment") == treatment).join(
        plain.unique(key, keep="first", maintain_order=True), on=key, suffix="_twin", maintain_order="left"
    )
    return [((one["run"], one["network"]), (one["run_twin"], one["network_twin"])) for one in both.to_dicts()]


def _when_reached(losses: Curve, values: Curve, level: float) -> float:
    """Return the value where the loss first falls to a level, interpolated between due steps that have both."""
    before: tuple[float, float] | None = None
    for step in sorted(losses.keys() & values.keys()):
        loss, value = losses[step], values[step]
        if loss <= level:
            part = 1.0 if before is None or before[0] == loss else (before[0] - level) / (before[0] - loss)
            return value if before is None else before[1] + part * (value - before[1])
        before = (loss, value)
    return math.nan
