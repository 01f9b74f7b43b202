"""The result of comparing two steps: where rows moved, and how their variance grew inside and outside of subspaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.alignment.tangent_result import TangentTest, average
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import jackknife
from tangentlens.statistics.words import compare

DISTANCE, SHIFT, GROWTH = "distance", "shift", "growth"
INSIDE, OUTSIDE, LOG_RATIO = "growth_inside", "growth_outside", "growth_log_ratio"
VARIANCE = "variance_share"


class Change(NamedTuple):
    """The key of one number: what it is, and the subspace it is of; empty if it is of all directions."""

    metric: str
    variant: str


@dataclass(frozen=True, eq=False)
class Logarithm:
    """The logarithm of a number, with what its interval is made from.

    Attributes:
        replicates: The logarithm from all test sequences, then without each group of them.
        energies: For each of the sets of rows that it compares, the energy of each group of sequences.
    """

    replicates: Float[Tensor, "g_plus_1"]
    energies: Sequence[Float[Tensor, "g"]]

    def interval(self) -> Interval:
        """Return the logarithm with its 95% interval over test sequences."""
        return jackknife(self.replicates, *self.energies)


@dataclass(frozen=True, eq=False)
class Movement:
    """How rows moved between two steps: `table` has every number with its interval, `verdict()` says it in words.

    Attributes:
        test: Shares of the movement in the proxy and its controls, with log-ratios and p-values.
        changes: The logarithms of distance, shift, variance share and growth.
        n: The number of test rows.
    """

    test: TangentTest
    changes: Mapping[Change, Logarithm]
    n: int

    def distance(self) -> Interval:
        """Return how far rows moved: the root mean square length of the movement over that of the rows before.

        Both are taken around their means. A common shift of all rows is therefore no distance.
        """
        return self.change(DISTANCE)

    def shift(self) -> Interval:
        """Return the length of the mean movement over the root mean square length of the rows before, centred."""
        return self.change(SHIFT)

    def variance_share(self, variant: str | None = None) -> Interval:
        """Return the share of the variance before in a subspace: what a mere scaling has as share of the movement."""
        return self.change(VARIANCE, variant or self.test.proxy)

    def growth(self) -> Interval:
        """Return the variance after, over all directions, divided by that before."""
        return self.change(GROWTH)

    def growth_inside(self, variant: str | None = None) -> Interval:
        """Return the variance after inside a subspace, the proxy by default, divided by that before."""
        return self.change(INSIDE, variant or self.test.proxy)

    def growth_outside(self, variant: str | None = None) -> Interval:
        """Return the variance after in the orthogonal complement of a subspace, divided by that before."""
        return self.change(OUTSIDE, variant or self.test.proxy)

    def growth_log_ratio(self, variant: str | None = None) -> Interval:
        """Return ln(growth inside / growth outside) of a subspace, the proxy by default."""
        return self.change(LOG_RATIO, variant or self.test.proxy)

    def change(self, metric: str, variant: str = "") -> Interval:
        """Return a number of `changes` with its 95% interval over test sequences, as itself and not its logarithm.

        Only `growth_log_ratio` is a logarithm.
        """
        interval = self.changes[Change(metric, variant)].interval()
        if metric == LOG_RATIO:
            return interval
        found = interval.exp()
        return replace(found, ci_high=min(found.ci_high, 1.0)) if metric == VARIANCE else found

    @property
    def table(self) -> pl.DataFrame:
        """Return every number with its interval: those of the test, then one row per change."""
        rows: list[dict[str, Any]] = [
            {**key._asdict(), **self.change(*key).columns(), "n": self.n} for key in self.changes
        ]
        changes = pl.DataFrame(rows, infer_schema_length=None)
        return pl.concat([self.test.table, changes], how="diagonal_relaxed")

    def verdict(self) -> str:
        """Return what the intervals allow to be said: distance, shares against every control, growth."""
        lines = [
            f"Rows moved by {self.distance()} times their root mean square length, and all together by {self.shift()}.",
            self.test.verdict(),
            f"Of the variance before, the proxy has {self.variance_share()}; of a mere scaling, it would take as much.",
            f"Variance after / before: {self.growth()} over all directions.",
        ]
        for variant in (key.variant for key in self.changes if key.metric == LOG_RATIO):
            name = "the proxy" if variant == self.test.proxy else variant
            ratio = compare("outside", self.growth_log_ratio(variant))
            lines.append(
                f"  {self.growth_inside(variant)} inside {name}, {self.growth_outside(variant)} outside: {ratio}"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Movement(rank={self.test.rank}, dim={self.test.dim}, rows={self.n})\n{self.verdict()}"


def average_movement(movements: Iterable[Movement]) -> Movement:
    """Return the mean over sites: of shares the plain one, of distance, shift and growth the geometric one.

    Means are taken within each jackknife replicate.

    Args:
        movements: The movements of the sites, tested on the same sequences.
    """
    movements = list(movements)
    keys = [key for key in movements[0].changes if all(key in one.changes for one in movements)]
    return Movement(
        test=average([one.test for one in movements]),
        changes={key: _mean(key.metric, [one.changes[key] for one in movements]) for key in keys},
        n=min(one.n for one in movements),
    )


def _mean(metric: str, logarithms: Sequence[Logarithm]) -> Logarithm:
    replicates = torch.stack([one.replicates for one in logarithms])
    energies = zip(*(one.energies for one in logarithms), strict=True)
    return Logarithm(
        replicates.exp().mean(dim=0).log() if metric == VARIANCE else replicates.mean(dim=0),
        # Every site has the same weight, whatever the length of its rows.
        [torch.stack([one / one.sum() for one in of_sites]).mean(dim=0) for of_sites in energies],
    )
