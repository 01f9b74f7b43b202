"""The control `permuted`: the proxy with its coordinates permuted at random: it prefers other axes, as strongly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.geometry.subspace import Subspace
from tangentlens.statistics.interval import Interval

# One share, or many.
Number = TypeVar("Number", float, Tensor)
# The number of permutations behind a p-value, which is therefore at least 1 / 2,000.
N_PERMUTATIONS = 1999


@dataclass(frozen=True, eq=False)
class Permuted:
    """The distribution of the share of a proxy whose coordinates are permuted at random.

    Attributes:
        mean: The mean of the share, in closed form.
        draws: Shares of random permutations.

    >>> Permuted(mean=0.125, draws=torch.tensor([0.1, 0.15])).p_value(0.12)
    0.6666666666666666
    """

    mean: float
    draws: Float[Tensor, "draws"]

    def p_value(self, share: float) -> float:
        """Return the probability that a permuted proxy takes at least `share`; it is never below 1 / (draws + 1)."""
        # The tolerance counts a permutation that changes nothing as a tie.
        reached = self.draws >= share * (1 - 1e-9)
        return (1 + int(reached.sum())) / (1 + len(self.draws)) if math.isfinite(share) else math.nan

    def interval(self) -> Interval:
        """Return the mean, with the interval that contains the central 95% of the permutations."""
        low, high = self.draws.quantile(torch.tensor([0.025, 0.975]).to(self.draws)).tolist()
        return Interval(self.mean, min(low, self.mean), max(high, self.mean), ci_over="control draws")

    def __repr__(self) -> str:
        return f"Permuted({self.mean:.3g} ± {float(self.draws.std()):.2g})"


def ones(q: Subspace) -> Subspace:
    """Return the direction, in the space around `q`, whose coordinates are all equal; no permutation moves it."""
    return Subspace(torch.full_like(q.basis[:, :1], q.dim**-0.5))


def permuted_mean(along_ones: Number, q: Subspace) -> Number:
    """Return the mean share of a proxy with permuted coordinates, given the share of the direction of all ones.

    A permutation leaves the direction of all ones where it is, and treats all others alike on average. With u the share
    of that direction and c the part of it that lies in Q, the mean is u c + (1 - u) (r - c) / (d - 1).
    """
    inside = float(q.basis.sum(dim=0).square().sum()) / q.dim
    return along_ones * inside + (1 - along_ones) * (q.rank - inside) / (q.dim - 1)


class Permutations:
    """Random permutations of the coordinates of a proxy, which serve all matrices that it is compared with.

    The share tr P'QQ'PM of a permutation P is the sum of a diagonal part, in which preferred axes meet, and of the
    rest, the sum of many small products. The diagonal part is drawn. The rest is drawn from a normal distribution,
    whose variance makes that of the sum exact (docs/measures/alignment.md, 'Permuted coordinates').

    Args:
        q: The proxy.
        seed: The seed of the permutations.
    """

    def __init__(self, q: Subspace, seed: int) -> None:
        self.q = q
        self.own = PairSums.of_projection(q)
        places, self.noise = _drawn(q.dim, seed)
        self.diagonals = torch.from_numpy(np.take(self.own.diagonal.numpy(), places))

    def chances(self, matrices: Sequence[PairSums]) -> list[Permuted]:
        """Return the distribution of tr P'QQ'PM over random permutations P, for each of several matrices.

        Args:
            matrices: Sums over the symmetric matrices M of trace 1 of which shares are taken.
        """
        # One product for all: most of its time is spent on reading the permutations.
        drawn = torch.stack([m.diagonal for m in matrices]) @ self.diagonals.T
        return [self._chance(m, of_diagonal) for m, of_diagonal in zip(matrices, drawn, strict=True)]

    def _chance(self, matrix: PairSums, drawn: Float[Tensor, "draws"]) -> Permuted:
        d, own = self.q.dim, self.own
        mean = permuted_mean((matrix.trace + matrix.total) / d, self.q)
        of_diagonal = own.spread * matrix.spread / max(d - 1, 1)
        rest = math.sqrt(max(permuted_variance(own, matrix) - of_diagonal, 0.0))
        shift = mean - own.trace * matrix.trace / d
        return Permuted(mean, drawn + shift + rest * self.noise)


@lru_cache(maxsize=4)
def _drawn(d: int, seed: int) -> tuple[np.ndarray, Tensor]:
    """Return random permutations of `d` places, and a normal number for each; all sites of a width share them."""
    make = np.random.default_rng(seed)
    places = make.permuted(np.tile(np.arange(d), (N_PERMUTATIONS, 1)), axis=1)
    return places.astype(np.int32), torch.from_numpy(make.standard_normal(N_PERMUTATIONS))


def permuted_variance(a: PairSums, b: PairSums) -> float:
    """Return the variance of the sum over pairs (i, j) of A_P(i)P(j) B_ij over all permutations P, exactly.

    With A = QQ' and B = M, this sum is tr P'QQ'PM. The expectation of a product of two terms depends only on which of
    their indices are equal, so it is a sum over these cases (N. Mantel, 1967).
    """
    d = len(a.diagonal)
    pairs, triples, quadruples = (math.perm(d, count) for count in (2, 3, 4))
    # The square of the sum over i != j: equal pairs, pairs with one index in common, and disjoint pairs.
    square = 2 * a.squares * b.squares / max(pairs, 1)
    square += 4 * (a.rows - a.squares) * (b.rows - b.squares) / max(triples, 1)
    square += a.disjoint * b.disjoint / max(quadruples, 1)
    # Its product with the sum over i = j: the index is one of the pair, or it is not.
    cross = 2 * a.mixed * b.mixed / max(pairs, 1)
    cross += (a.trace * a.total - 2 * a.mixed) * (b.trace * b.total - 2 * b.mixed) / max(triples, 1)
    mean = a.total * b.total / max(pairs, 1)
    diagonal = a.spread * b.spread / max(d - 1, 1)
    return diagonal + square - mean**2 + 2 * (cross - a.trace * b.trace / d * mean)


@dataclass(frozen=True, eq=False)
class PairSums:
    """Sums over the entries of a symmetric matrix, its diagonal and the rest apart; on the CPU.

    Attributes:
        diagonal: The diagonal.
        trace: The sum of the diagonal.
        spread: The sum of squares of the diagonal around its mean.
        total: The sum of the rest.
        squares: The sum of squares of the rest.
        rows: The sum of squares of the row sums of the rest.
        mixed: The sum of products of the diagonal and the row sums of the rest.
    """

    diagonal: Float[Tensor, "d"]
    trace: float
    spread: float
    total: float
    squares: float
    rows: float
    mixed: float

    @classmethod
    def of(cls, matrix: Float[Tensor, "d d"]) -> PairSums:
        """Return the sums over a symmetric matrix."""
        return cls._of(matrix.diagonal(), matrix.sum(dim=1), float(torch.linalg.vector_norm(matrix)) ** 2)

    @classmethod
    def of_projection(cls, q: Subspace) -> PairSums:
        """Return the sums over QQ'."""
        return cls._of(q.basis.square().sum(dim=1), q.basis @ q.basis.sum(dim=0), float(q.rank))

    @classmethod
    def _of(cls, diagonal: Float[Tensor, "d"], sums: Float[Tensor, "d"], square: float) -> PairSums:
        """Return the sums, given the diagonal, the row sums of the whole matrix and its sum of squares."""
        # These are a few numbers, of which sums are needed on the host.
        diagonal, sums = torch.stack([diagonal, sums]).cpu().double()
        rest = sums - diagonal
        return cls(
            diagonal=diagonal,
            trace=float(diagonal.sum()),
            spread=float((diagonal - diagonal.mean()).square().sum()),
            total=float(rest.sum()),
            squares=square - float(diagonal.square().sum()),
            rows=float(rest.square().sum()),
            mixed=float(diagonal @ rest),
        )

    @property
    def disjoint(self) -> float:
        """The sum over pairs of entries of the rest that have no index in common."""
        return self.total**2 - 4 * self.rows + 2 * self.squares
