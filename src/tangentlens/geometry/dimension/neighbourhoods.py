"""Neighbourhoods: the nearest neighbours of each distinct row, searched once for all that is made of distances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.dimension.limits import distances_in_parts
from tangentlens.geometry.neighbours import Neighbours, equal_rows, nearest, nearest_among
from tangentlens.geometry.rows import as_rows
from tangentlens.lazy import cached_property
from tangentlens.statistics.groups import linked_groups

# A near duplicate is at least this many times nearer to one row than to any other one ...
_NEARER = 100.0
# ... which among as many rows of their dimension happens by chance with at most this probability.
_BY_CHANCE = 0.01


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """Distinct rows and the nearest neighbours of each, which dimension and entropy are made of.

    Attributes:
        rows: The distinct rows `(m, d)`.
        neighbours: The nearest others of each, among these.
        equals: Which of them `(n,)` each of the rows that came equals; -1 if it was dropped as a near duplicate.
        n_near_duplicates: How many rows were dropped because they are nearly equal to another one.
    """

    rows: Float[Tensor, "m d"]
    neighbours: Neighbours
    equals: Int[Tensor, "n"]
    n_near_duplicates: int = 0

    @classmethod
    def of(cls, x: Any, k: int) -> Neighbourhoods:
        """Return the distinct ones of rows `x` `(n, d)` with their `k` nearest neighbours, or all if they are fewer.

        >>> Neighbourhoods.of([[0.0], [1.0], [1.0], [3.0]], k=2).neighbours.distances.tolist()
        [[1.0, 3.0], [1.0, 2.0], [2.0, 3.0]]
        """
        rows = as_rows(x)
        first, equals = equal_rows(rows)
        distinct = rows if len(first) == len(rows) else rows[first]
        return cls(distinct, nearest(distinct, min(k, len(distinct) - 1)), equals)

    @property
    def n_came(self) -> int:
        """How many rows came, duplicates counted."""
        return len(self.equals)

    @property
    def n_duplicates(self) -> int:
        """How many rows repeat another one and were dropped."""
        return self.n_came - len(self.rows) - self.n_near_duplicates

    def check_enough(self, what: str, least: int) -> None:
        """Raise an error if there are fewer distinct rows than `what` needs.

        Args:
            what: What needs the rows, for the error message.
            least: How many distinct rows it needs.
        """
        if len(self.rows) < least:
            raise InputError(
                f"{what} needs at least {least} distinct rows, but {self.n_came} rows came, "
                f"{self.n_came - len(self.rows)} of them duplicates; pass more tokens"
            )

    def among(self, mask: Bool[Tensor, "n"], k: int | None = None) -> Neighbourhoods:
        """Return the neighbourhoods in some of the rows that came, from which no near duplicate was dropped.

        Args:
            mask: Which of the rows that came are left.
            k: How many neighbours of each to return; by default as many as are known.
        """
        k = self.neighbours.indices.shape[1] if k is None else k
        equals = self.equals[mask]
        here = torch.zeros(len(self.rows), dtype=torch.bool, device=mask.device)
        here[equals] = True
        rows = self.rows[here]
        return Neighbourhoods(rows, nearest_among(rows, self.neighbours, here, k), (here.cumsum(0) - 1)[equals])

    @cached_property
    def apart(self) -> Neighbourhoods:
        """The neighbourhoods without near duplicates: rows that equal another but for rounding or very little noise.

        Of a row and its near duplicate the first is kept. Near duplicates are found in pairs: where three rows or more
        are that near to each other, the ratio of the distances to the second and the first neighbour does not show it.
        """
        if self.neighbours.indices.shape[1] < 2:
            return self
        earlier = self.neighbours.indices[:, 0] < torch.arange(len(self.rows), device=self.rows.device)
        dropped = _too_near(self.neighbours.distances) & earlier
        n_dropped = int(dropped.sum())
        if not n_dropped:
            return self
        rows = self.rows[~dropped]
        neighbours = nearest_among(rows, self.neighbours, ~dropped, self.neighbours.indices.shape[1])
        equals = torch.where(dropped, -1, (~dropped).cumsum(0) - 1)[self.equals]
        return Neighbourhoods(rows, neighbours, equals, n_dropped)

    @cached_property
    def in_parts(self) -> tuple[int, Float[Tensor, "m k"] | None]:
        """The size of random subsamples, and the distances to neighbours within each; see `distances_in_parts`."""
        return distances_in_parts(self.rows, self.neighbours.distances.shape[1])

    @cached_property
    def groups(self) -> Int[Tensor, "m"]:
        """Groups of rows for a jackknife, which never separate a row from its nearest neighbour; on the CPU."""
        return linked_groups(self.neighbours.indices[:, 0].cpu())


def _too_near(distances: Float[Tensor, "n k"]) -> Bool[Tensor, "n"]:
    """Return which rows are nearer to their neighbour than the dimension of the rows allows.

    At dimension m, a ratio exceeds mu with probability mu^-m. The median of log mu, which is log 2 / m, hardly feels
    near duplicates. Three standard errors are taken off the m that it gives.
    """
    logs, n = (distances[:, 1] / distances[:, 0]).log(), len(distances)
    dimension = math.log(2) / logs.median() * (1 - 3 / (math.log(2) * math.sqrt(n)))
    return (logs > math.log(_NEARER)) & (dimension * logs > math.log(n / _BY_CHANCE))
