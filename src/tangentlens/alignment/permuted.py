"""The control `permuted`: the proxy with its coordinates permuted at random: it prefers other axes, as strongly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.geometry.subspace import Subspace
from tangentlens.statistics.interval import Interval

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


def permuted_mean(along_ones: Tensor, q: Subspace) -> Tensor:
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
        make = np.random.default_rng(seed)
        # These are a few numbers, of which sums are needed on the host.
        self.weights = q.basis.square().sum(dim=1).cpu()
        weights = np.tile(self.weights.numpy(), (N_PERMUTATIONS, 1))
        self.diagonals = torch.from_numpy(make.permuted(weights, axis=1))
        self.noise = torch.from_numpy(make.standard_normal(N_PERMUTATIONS))

    def chance(self, matrix: Float[Tensor, "d d"]) -> Permuted:
        """Return the distribution of tr P'QQ'PM over random permutations P.

        Args:
            matrix: The symmetric matrix M of trace 1 of which shares are taken.
        """
        mean = float(permuted_mean(matrix.mean() * len(matrix), self.q))
        weights, diagonal = self.weights, matrix.diagonal().cpu().double()
        drawn = self.diagonals @ diagonal
        of_diagonal = _spread(weights) * _spread(diagonal) / max(len(matrix) - 1, 1)
        rest = math.sqrt(max(permuted_variance(self.q, matrix) - of_diagonal, 0.0))
        shift = mean - float(weights.mean() * diagonal.sum())
        return Permuted(mean, drawn + shift + rest * self.noise)


def permuted_variance(q: Subspace, matrix: Float[Tensor, "d d"]) -> float:
    """Return the variance of tr P'QQ'PM over all permutations P, exactly.

    With A = QQ' and B = M, it is that of a sum over pairs (i, j) of A_P(i)P(j) B_ij. The expectation of a product of
    two terms depends only on which of their indices are equal, so it is a sum over these cases (N. Mantel, 1967).
    """
    d = q.dim
    a, b = (_PairSums.of(*parts) for parts in (_own_sums(q), _matrix_sums(matrix)))
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


@dataclass(frozen=True)
class _PairSums:
    """Sums over the entries of a symmetric matrix, its diagonal and the rest apart.

    Attributes:
        trace: The sum of the diagonal.
        spread: The sum of squares of the diagonal around its mean.
        total: The sum of the rest.
        squares: The sum of squares of the rest.
        rows: The sum of squares of the row sums of the rest.
        mixed: The sum of products of the diagonal and the row sums of the rest.
    """

    trace: float
    spread: float
    total: float
    squares: float
    rows: float
    mixed: float

    @classmethod
    def of(cls, diagonal: Float[Tensor, "d"], sums: Float[Tensor, "d"], square: float) -> _PairSums:
        """Return the sums, given the diagonal, the row sums of the whole matrix and its sum of squares."""
        rest = sums - diagonal
        return cls(
            trace=float(diagonal.sum()),
            spread=_spread(diagonal),
            total=float(rest.sum()),
            squares=square - float(diagonal.square().sum()),
            rows=float(rest.square().sum()),
            mixed=float(diagonal @ rest),
        )

    @property
    def disjoint(self) -> float:
        """The sum over pairs of entries of the rest that have no index in common."""
        return self.total**2 - 4 * self.rows + 2 * self.squares


def _own_sums(q: Subspace) -> tuple[Tensor, Tensor, float]:
    """Return diagonal, row sums and sum of squares of QQ'."""
    return q.basis.square().sum(dim=1).cpu(), (q.basis @ q.basis.sum(dim=0)).cpu(), float(q.rank)


def _matrix_sums(matrix: Float[Tensor, "d d"]) -> tuple[Tensor, Tensor, float]:
    """Return diagonal, row sums and sum of squares of a matrix."""
    return matrix.diagonal().cpu(), matrix.sum(dim=1).cpu(), float(matrix.square().sum())


def _spread(values: Float[Tensor, "d"]) -> float:
    """Return the sum of squares around the mean."""
    return float((values - values.mean()).square().sum())
