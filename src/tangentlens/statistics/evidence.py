"""What batches show about the rises and falls of a profile."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.statistics.interval import Interval, student
from tangentlens.statistics.selection import student_of_selected

# What the intervals are over.
BATCHES = "batches"
# Reversals have to be shown to be smaller than this share of the rise that they interrupt.
_REVERSAL = 0.25


class Difference(NamedTuple):
    """The difference between two sites.

    Attributes:
        place: A site.
        base: The site that it is compared with.
        interval: The value at `place` minus that at `base`.
    """

    place: int
    base: int
    interval: Interval


class Evidence:
    """The differences between the sites of a profile, with 95% intervals over batches.

    A difference is significant if its interval lies above 0, and counts if it is not shown to be within the margin
    either. Of a negated profile, peaks are dips and rises are falls.

    Attributes:
        margin: Up to where a difference counts as none.
        n_pairs: The number of pairs of sites.
    """

    def __init__(self, values: Float[Tensor, "b s"], margin: float, n: int) -> None:
        """Look at a profile.

        Args:
            values: The measure in each batch at each site.
            margin: Up to where a difference counts as none.
            n: The number of batches that the intervals are for; means and spread are those of `values`.
        """
        self.margin, self.n_pairs = margin, math.comb(values.shape[1], 2)
        self._values, self._n = values, n
        self._mean = values.mean(dim=0)

    def within_margin(self) -> bool:
        """Return whether all differences lie, with their intervals, within the margin.

        All of them have to, so each is tested at 5% and the chance of a wrong answer is 5%, without a correction.
        """
        mean, reach = self._all_differences()
        return bool((mean.abs() + reach <= self.margin).all())

    def furthest(self) -> Difference:
        """Return the difference between a site and an earlier one that may be largest."""
        mean, reach = self._all_differences()
        base, place = divmod(int((mean.abs() + reach).triu(1).argmax()), len(mean))
        return self._difference(place, base)

    def highest(self, sites: Iterable[int]) -> int:
        """Return the site with the highest mean among `sites`."""
        return max(sites, key=lambda site: float(self._mean[site]))

    def above(self, place: int, base: int, candidates: int = 1) -> Difference | None:
        """Return how much `place` is above `base`; None if it does not count.

        Args:
            place: A site.
            base: A site.
            candidates: From how many the pair was selected by its means.
        """
        found = self._difference(place, base, candidates)
        return found if found.interval.ci_low > 0 and found.interval.ci_high > self.margin else None

    def above_both(self, place: int, first: int, last: int, candidates: int) -> Difference | None:
        """Return how much `place` is above the higher one of two sites; None unless it is above both."""
        both = [self.above(place, base, candidates) for base in (first, last)]
        found = [one for one in both if one is not None]
        return min(found, key=lambda one: one.interval.value) if len(found) == 2 else None

    def peak(self) -> Difference | None:
        """Return the peak that is highest above an earlier and a later site; None if there is none that counts."""
        if len(self._mean) < 3:
            return None
        before, after = self._mean.cummin(dim=0), self._mean.flip(0).cummin(dim=0)
        higher = torch.maximum(before.values[:-2], after.values.flip(0)[2:])
        place = 1 + int((self._mean[1:-1] - higher).argmax())
        first = int(before.indices[place - 1])
        last = len(self._mean) - 1 - int(after.indices.flip(0)[place + 1])
        return self.above_both(place, first, last, self.n_pairs)

    def rises(self, first: int, last: int) -> bool:
        """Return whether reversals between two sites are excluded.

        No fall inside may count. That alone would accept what few batches cannot see. So each fall is also shown to be
        smaller than a quarter of the rise, or within the margin.
        """
        inside = self._values[:, first : last + 1]
        falls = inside[:, :, None] - inside[:, None, :]
        earlier, later = torch.triu_indices(falls.shape[1], falls.shape[1], 1)
        falls = falls[:, earlier, later]
        worst = int(falls.mean(dim=0).argmax())
        if self.above(first + int(earlier[worst]), first + int(later[worst]), self.n_pairs) is not None:
            return False
        within = self._upper_end(falls) <= self.margin
        beside_rise = self._upper_end(falls - _REVERSAL * (inside[:, -1:] - inside[:, :1])) <= 0
        return bool((within | beside_rise).all())

    def bend(self, depth: Float[Tensor, "s"]) -> int:
        """Return whether a quadratic fit over depth opens significantly upward (1), downward (-1), or neither (0)."""
        powers = torch.stack([torch.ones_like(depth), depth, depth.square()], dim=1)
        bend = self._interval(self._values @ torch.linalg.pinv(powers)[2])
        return int(bend.ci_low > 0) - int(bend.ci_high < 0)

    def _difference(self, place: int, base: int, candidates: int = 1) -> Difference:
        return Difference(place, base, self._interval(self._values[:, place] - self._values[:, base], candidates))

    def _interval(self, values: Float[Tensor, "b"], candidates: int = 1) -> Interval:
        mean = float(values.mean())
        reach = student_of_selected(0.95, self._n - 1, candidates) * float(values.std()) / math.sqrt(self._n)
        return Interval(mean, mean - reach, mean + reach, BATCHES)

    def _all_differences(self) -> tuple[Float[Tensor, "s s"], Float[Tensor, "s s"]]:
        """Return each site (column) minus each other (row), and how far the interval of each difference reaches."""
        differences = self._values[:, None, :] - self._values[:, :, None]
        mean = differences.mean(dim=0)
        return mean, self._upper_end(differences) - mean

    def _upper_end(self, contrasts: Float[Tensor, "b *k"]) -> Float[Tensor, "*k"]:
        """Return the upper ends of Student's intervals."""
        factor = student(0.95, self._n - 1) / math.sqrt(self._n)
        return contrasts.mean(dim=0) + factor * contrasts.std(dim=0)
