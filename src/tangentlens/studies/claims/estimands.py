"""The numbers that claims are judged by: one for each network, from its records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import polars as pl

from tangentlens.report.reading import IS_PROXY, without_massive
from tangentlens.runs.vocabulary import (
    ACTIVATION,
    ALL_ROWS,
    ALL_TOKENS,
    GRADIENT,
    MEAN_SITE,
    MOVEMENT,
    WITHOUT_MASSIVE,
)
from tangentlens.statistics.correlation import partial_spearman, spearman
from tangentlens.statistics.emergence import Emergence, emergence
from tangentlens.studies.claims.claim import Estimand

# What tells networks apart.
NETWORK = ["run", "network"]
# What one and the same network has in common in several runs. A training that is repeated elsewhere may end with other
# last digits, so a network is known by its family and its seed, and only without a seed by its weights. A finished
# model may be with its head in one run and without it in another, and is known by its name.
SAME = (
    pl.when(pl.col("family") == "")
    .then("network")
    .otherwise(pl.concat_str("family", pl.col("trained_seed").cast(pl.String).fill_null(pl.col("weights"))))
    .alias("same")
)
# Sites at these depths are the middle of a network.
_MIDDLE = (1 / 3, 2 / 3)
# The part of a training that is early.
EARLY = 0.1


@dataclass(frozen=True)
class Select:
    """Which records a number is made from.

    Attributes:
        metric: The metric.
        variant: The subspace or variant; `proxy` is the proxy, whichever it is; None for any variant.
        quantity: What was measured.
        order: The order of the share.
        site: A site; None for all sites but the mean over sites.
        freq_bin: The tokens.
        kind: Only networks of this kind.
        null: The null that is meant in place of the network itself.
    """

    metric: str
    variant: str | None = ""
    quantity: str = GRADIENT
    order: float | None = None
    site: str | None = MEAN_SITE
    freq_bin: str = ALL_TOKENS
    kind: str | None = None
    null: str = ""

    def rows(self, records: pl.DataFrame) -> pl.DataFrame:
        """Return the records that are meant, with a finite value."""
        variant = pl.lit(True) if self.variant is None else pl.col("variant") == self.variant
        chosen = records.filter(
            pl.col("metric") == self.metric,
            pl.col("quantity") == self.quantity,
            pl.col("freq_bin") == self.freq_bin,
            pl.col("null") == self.null,
            IS_PROXY if self.variant == "proxy" else variant,
            pl.col("site") != MEAN_SITE if self.site is None else pl.col("site") == self.site,
            pl.col("value").is_finite(),
        )
        if self.order is not None:
            chosen = chosen.filter(pl.col("order") == self.order)
        return chosen if self.kind is None else chosen.filter(pl.col("kind") == self.kind)


def last(select: Select) -> Estimand:
    """Return the number at the last step of each network, without massive rows, on average over the selected sites."""

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        return _per_network(_at_last_step(without_massive(select.rows(records))))

    return effect


def difference(one: Estimand, other: Estimand) -> Estimand:
    """Return one number minus another, for each network that has both."""

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        both = one(records).join(other(records), on=NETWORK, suffix="_other")
        return both.select(*NETWORK, effect=pl.col("effect") - pl.col("effect_other"))

    return effect


def smaller(one: Estimand, other: Estimand) -> Estimand:
    """Return the smaller of two numbers, for each network that has both: it is large only if both are."""

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        both = one(records).join(other(records), on=NETWORK, suffix="_other")
        return both.select(*NETWORK, effect=pl.min_horizontal("effect", "effect_other"))

    return effect


def logarithm(one: Estimand) -> Estimand:
    """Return the logarithm of a number that is above 0."""
    return lambda records: one(records).filter(pl.col("effect") > 0).with_columns(pl.col("effect").log())


def over_steps(select: Select, early: bool | None = None) -> Estimand:
    """Return the mean over the due steps of a training, each with the same weight.

    Args:
        select: The number.
        early: True for the first tenth of the training alone, False for the rest, None for all of it.
    """

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        rows = without_massive(select.rows(records))
        is_early = pl.col("step") <= EARLY * pl.col("last_step")
        kept = rows if early is None else rows.filter(is_early if early else ~is_early)
        return _per_network(kept)

    return effect


def emergence_of(select: Select) -> Estimand:
    """Return when an effect emerges: log2 of the step (counted from 1) over the last step; 0 if it never does."""

    def one(rows: pl.DataFrame) -> float:
        since = _emergence(rows).step
        end = int(rows["last_step"][0]) + 1
        return 0.0 if since is None else math.log2((since + 1) / end)

    return _of_each(select, one)


def persistence_of(select: Select) -> Estimand:
    """Return at which part of the due steps an effect holds, from the first one at which it does; NaN without one."""

    def one(rows: pl.DataFrame) -> float:
        found = _emergence(rows)
        return found.held / found.later if found.later else math.nan

    return _of_each(select, one)


def rank_correlation(one: Select, other: Select) -> Estimand:
    """Return Spearman's correlation over the due steps of two numbers, each averaged over the selected sites."""

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        return _of_steps(records, (one, other), spearman)

    return effect


def change_correlation(one: Select, other: Select, given: Select) -> Estimand:
    """Return the rank correlation of the changes of two numbers between due steps, given those of a third.

    All numbers of a training may rise or fall throughout, and then the ranks of one tell those of all others. Changes
    from one due step to the next need not agree.
    """

    def changes(*numbers: np.ndarray) -> float:
        return partial_spearman(*(np.diff(number) for number in numbers))

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        return _of_steps(records, (one, other, given), changes)

    return effect


def _of_steps(records: pl.DataFrame, selected: Sequence[Select], correlation: Callable[..., float]) -> pl.DataFrame:
    """Return a correlation over the due steps of each network that have all numbers; of networks with enough steps."""
    names = [f"number {place}" for place in range(len(selected))]
    numbers = [
        by_step(select.rows(records)).select(*NETWORK, "step", pl.col("value").alias(name))
        for name, select in zip(names, selected, strict=True)
    ]
    joined = reduce(lambda one, other: one.join(other, on=[*NETWORK, "step"], maintain_order="left"), numbers)
    rows: list[dict[str, object]] = []
    for (run, network), steps in joined.group_by(NETWORK, maintain_order=True):
        found = correlation(*(steps[name].to_numpy() for name in names)) if steps.height > 3 else math.nan
        if math.isfinite(found):
            rows.append({"run": run, "network": network, "effect": found})
    return effects_of(rows)


def bell(kind: str | None, rows: str) -> Estimand:
    """Return how much higher anisotropy is in the middle of a network than at its higher end.

    Args:
        kind: The kind of networks; None for any.
        rows: Of which rows; without massive ones, sites that have none count with all rows.
    """

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        profile = depth_profile(records, "anisotropy", kind, rows)
        middle = pl.col("depth").is_between(*_MIDDLE)
        ends = pl.max_horizontal(pl.col("value").sort_by("depth").first(), pl.col("value").sort_by("depth").last())
        return (
            profile.filter(middle.any().over(NETWORK))
            .group_by(NETWORK, maintain_order=True)
            .agg(effect=pl.col("value").filter(middle).mean() - ends)
        )

    return effect


def relative_range(kind: str) -> Estimand:
    """Return the range of anisotropy over depth, relative to its mean."""

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        value = pl.col("value")
        profile = depth_profile(records, "anisotropy", kind, ALL_ROWS)
        return profile.group_by(NETWORK, maintain_order=True).agg(effect=(value.max() - value.min()) / value.mean())

    return effect


def rise_and_fall(select: Select, within_epoch: bool = False) -> Estimand:
    """Return how far a number rises to a peak during training and falls again: the smaller of both, as a log-ratio.

    The peak is the due step at which the mean of the other networks of the family in the run is highest. A network's
    own highest step would be above its first and last by noise alone.

    Args:
        select: The number.
        within_epoch: Whether to look at the first epoch only, in networks of which every step of it was measured.
    """

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        # A logarithm is of what is above 0.
        chosen = select.rows(records).filter(pl.col("value") > 0)
        if within_epoch:
            chosen = chosen.filter(pl.col("step") < pl.col("epoch"))
            chosen = chosen.filter(pl.col("step").n_unique().over(NETWORK) == pl.col("epoch"))
        curves = by_step(chosen).filter(pl.len().over(NETWORK) >= 3, pl.col("family") != "")
        rows = []
        for _, of_family in curves.group_by(["run", "family"], maintain_order=True):
            for (run, network), own in of_family.group_by(NETWORK, maintain_order=True):
                others = of_family.filter(pl.col("network") != network)
                if others.is_empty():
                    continue
                mean = others.group_by("step").agg(pl.mean("value")).join(own.select("step"), on="step", how="semi")
                at = mean.sort("value")["step"][-1]
                peak, (first, *_, final) = own.filter(step=at)["value"][0], own.sort("step")["value"].to_list()
                rows.append({"run": run, "network": network, "effect": math.log(peak / max(first, final))})
        return effects_of(rows)

    return effect


def beside_twin(one: Estimand, kinds: tuple[str, str]) -> Estimand:
    """Return the number of a network of the first kind minus that of its twin of the second, with the same seed."""

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        facts = records.select(*NETWORK, "kind", "trained_seed").unique(maintain_order=True)
        known = one(records).join(facts, on=NETWORK)
        first, second = (known.filter(pl.col("kind") == kind) for kind in kinds)
        both = first.join(second, on=["run", "trained_seed"], suffix="_twin")
        return both.select(*NETWORK, effect=pl.col("effect") - pl.col("effect_twin"))

    return effect


def by_step(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the mean over sites at each step, without massive rows."""
    key = [*NETWORK, "family", "kind", "step"]
    mean = without_massive(rows).group_by(key, maintain_order=True).agg(pl.mean("value"))
    return mean.sort([*NETWORK, "step"])


def among_massive(one: Estimand) -> Estimand:
    """Return the number of those networks that have massive rows at some site at the last step."""

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        # An untrained twin may have massive rows that the network itself has not, and so may the text of a probe.
        own = (pl.col("null") == "") & (pl.col("quantity") != MOVEMENT) & (pl.col("step") == pl.col("last_step"))
        have = records.filter(own, pl.col("rows") == WITHOUT_MASSIVE).select(NETWORK).unique()
        return one(records).join(have, on=NETWORK, how="semi", maintain_order="left")

    return effect


def of_kept_rows(one: Estimand) -> Estimand:
    """Return a number at the last step without massive rows, of those networks that have such rows."""
    is_kept = (pl.col("rows") == WITHOUT_MASSIVE) & (pl.col("step") == pl.col("last_step"))
    return lambda records: one(records.filter(is_kept))


def among_above(one: Estimand, other: Estimand, least: float) -> Estimand:
    """Return a number of those networks whose other number is above `least`."""

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        above = other(records).filter(pl.col("effect") > least)
        return one(records).join(above, on=NETWORK, how="semi", maintain_order="left")

    return effect


def depth_profile(records: pl.DataFrame, measure: str, kind: str | None, rows: str) -> pl.DataFrame:
    """Return a measure over depth at the last step of each network that was measured from end to end."""
    select = Select(measure, quantity=ACTIVATION, site=None, kind=kind)
    found = select.rows(records).filter(pl.col("site").str.starts_with("resid."))
    found = found.filter(pl.col("rows") == ALL_ROWS) if rows == ALL_ROWS else without_massive(found)
    whole = pl.col("depth").min().over(NETWORK).eq(0) & pl.col("depth").max().over(NETWORK).eq(1)
    return _at_last_step(found).filter(whole, pl.len().over(NETWORK) >= 3)


def _at_last_step(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("step") == pl.col("step").max().over(NETWORK))


def _per_network(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.group_by(NETWORK, maintain_order=True).agg(effect=pl.mean("value"))


def _of_each(select: Select, one: Callable[[pl.DataFrame], float]) -> Estimand:
    """Return a number made from all due steps of each network that has at least three."""

    def effect(records: pl.DataFrame) -> pl.DataFrame:
        series = without_massive(select.rows(records)).sort("step")
        return effects_of(
            [
                {"run": run, "network": network, "effect": one(rows)}
                for (run, network), rows in series.group_by(NETWORK, maintain_order=True)
                if rows.height >= 3
            ]
        )

    return effect


def _emergence(rows: pl.DataFrame) -> Emergence:
    """Return when an effect emerges; where there is no interval, it is not shown to hold."""
    return emergence(rows["step"].to_list(), rows["ci_low"].fill_null(-math.inf).to_list())


def effects_of(rows: list[dict[str, object]]) -> pl.DataFrame:
    """Return the effect of each network, given a row for each."""
    return pl.DataFrame(rows, schema={"run": pl.String, "network": pl.String, "effect": pl.Float64})
