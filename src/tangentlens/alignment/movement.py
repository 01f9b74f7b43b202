"""Movement: where rows went between two steps of a training, and how their variance grew in the proxy of the first.

The definitions are in docs/measures/movement.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.movement_result import (
    DISTANCE,
    GROWTH,
    INSIDE,
    LOG_RATIO,
    OUTSIDE,
    SHIFT,
    VARIANCE,
    Change,
    Logarithm,
    Movement,
)
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.share import BINNED_ORDERS
from tangentlens.alignment.tangent_result import TangentTest
from tangentlens.alignment.tangent_test import CONTROLS, draws_of, proxy_test
from tangentlens.errors import InputError
from tangentlens.geometry.rows import as_rows, unit_scale
from tangentlens.geometry.subspace import Subspace
from tangentlens.lazy import cached_property
from tangentlens.proxies import DEFAULT, PROXIES, Fit
from tangentlens.proxies.principal import Principal
from tangentlens.statistics.groups import sequence_groups
from tangentlens.statistics.jackknife import leave_one_out

# Rows that moved by less than this many units of rounding did not move.
_ROUNDING = 8
# A variance below this part of the whole is what rounding leaves of none.
_NOTHING = 1e-9


def movement(
    before: Any,
    after: Any,
    sequences: Any,
    tokens: Any = None,
    rank: int = 16,
    controls: Sequence[str] = CONTROLS,
    orders: Sequence[float] = BINNED_ORDERS,
    bins: FrequencyBins | None = None,
    n_groups: int = 16,
    seed: int = 0,
    proxy: str | Fit = DEFAULT,
) -> Movement:
    """Measure where rows moved between two steps, and how their variance grew inside and outside of the proxy.

    The proxy and its controls are fitted to the rows before of the first half of the sequences. Everything else is of
    the second half. The *movement* of a row is after - before, minus the mean of this over the tokens; it takes the
    place of the gradient in `tangent_test`.

    If all rows are merely scaled, the movement lies where the variance lies, so the controls that matter are `pca` and
    `covariance` (docs/measures/movement.md, 'What a high share does not mean').

    Args:
        before: Rows `(n, d)` of a text at one site, at the earlier step.
        after: Rows `(n, d)` of the same tokens at the later step.
        sequences: The id of the sequence each row came from, `(n,)`.
        tokens: Token ids `(n,)`, to bin by frequency.
        rank: Number of concepts, as in `tangent_test`.
        controls: What to compare with, as in `tangent_test`.
        orders: Orders of the shares.
        bins: Frequency bins; by default they are made from the counts of `tokens` themselves.
        n_groups: Number of groups of sequences for the jackknife.
        seed: Seed of everything that is drawn.
        proxy: The proxy: a name in `tangentlens.proxies.PROXIES`, or a function `(rows, rank, seed) -> Subspace`.

    Returns:
        Shares of the movement, the distance, and growth inside and outside of each subspace, with intervals.

    >>> make = torch.Generator().manual_seed(0)
    >>> rows, sequences = torch.randn(800, 12, generator=make), torch.arange(800) // 20
    >>> rows[:, :3] *= 5
    >>> later = rows * torch.tensor([2.0] * 3 + [1.0] * 9)
    >>> found = movement(rows, later, sequences, rank=3, controls=["pca"])
    >>> found.growth_inside(), found.growth_outside()
    (4.00 [4.00, 4.00], 1.04 [1.03, 1.04])
    """
    first, second = as_rows(before), as_rows(after)
    if second.shape != first.shape:
        raise InputError(
            f"after must be {tuple(first.shape)}, a row for each row before, but is {tuple(second.shape)}; take both "
            "from the same tokens at the same site"
        )
    fit, test = TokenRows.of(first, second.to(first.device), sequences, tokens).halves()
    principal = Principal.of(fit.activations)
    moved = _moved(test.activations, test.gradients)
    tested = replace(test, gradients=moved)
    shares = replace(proxy_test(principal, tested, rank, controls, orders, bins, n_groups, seed, proxy), of="movement")
    groups = sequence_groups(test.sequences, n_groups)
    subspaces = _subspaces(shares, principal, controls, seed)
    return Movement(shares, _changes(test.activations, test.gradients, groups, subspaces), len(test.sequences))


def _moved(before: Float[Tensor, "n d"], after: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return after - before around its mean, or raise if rows differ by a common shift and rounding only."""
    moved = after - before
    # The second pass removes what rounding left of a large mean.
    for _ in range(2):
        moved = moved - moved.mean(dim=0)
    rounding = _ROUNDING * torch.finfo(before.dtype).eps
    if _length(moved) <= rounding * max(_length(before), _length(after)):
        raise InputError(
            "rows must have moved between the two steps, but they are the same up to a common shift and rounding; "
            "was the model trained in between, and is this site after a trained weight?"
        )
    return moved


def _length(rows: Float[Tensor, "n d"]) -> float:
    """Return the root of the sum of squares, at a scale at which squares neither overflow nor vanish."""
    scale = unit_scale(rows)
    return float((rows / scale).double().norm()) * scale


def _subspaces(
    test: TangentTest, principal: Principal, controls: Sequence[str], seed: int
) -> dict[str, list[Subspace]]:
    """Return the proxy, the fitted controls, and the draws of drawn ones, by name."""
    rank = test.subspaces[test.proxy].rank
    drawn = [name for name in controls if name in PROXIES and PROXIES[name].drawn and name != test.proxy]
    fitted = {name: [subspace] for name, subspace in test.subspaces.items()}
    return fitted | {name: draws_of(name, principal, rank, seed) for name in drawn}


def _changes(
    before: Float[Tensor, "n d"],
    after: Float[Tensor, "n d"],
    groups: Int[Tensor, "n"],
    subspaces: Mapping[str, Sequence[Subspace]],
) -> dict[Change, Logarithm]:
    """Return the logarithms of all changes, from all test rows and without each group of sequences."""
    old, new, moved = (_Spread.of(rows, groups) for rows in (before, after, after - before))
    energies = (old.energy, moved.energy)
    changes = {
        Change(DISTANCE, ""): Logarithm((moved.log_total - old.log_total) / 2, energies),
        Change(SHIFT, ""): Logarithm(moved.log_mean_length - old.log_total / 2, energies),
        Change(GROWTH, ""): Logarithm(new.log_total - old.log_total, (old.energy, new.energy)),
    }
    for name, spanning in subspaces.items():
        (old_inside, old_outside), (new_inside, new_outside) = old.divided(spanning), new.divided(spanning)
        inside, outside = _ratio(new_inside, old_inside), _ratio(new_outside, old_outside)
        both = Logarithm(inside.replicates - outside.replicates, (*inside.energies, *outside.energies))
        share = Logarithm(old_inside.replicates - old.log_total, (*old_inside.energies, old.energy))
        changes |= {Change(VARIANCE, name): share}
        changes |= {Change(INSIDE, name): inside, Change(OUTSIDE, name): outside, Change(LOG_RATIO, name): both}
    return changes


def _ratio(one: Logarithm, other: Logarithm) -> Logarithm:
    return Logarithm(one.replicates - other.replicates, (*one.energies, *other.energies))


@dataclass(frozen=True, eq=False)
class _Spread:
    """The variance of rows around their mean: of all groups of sequences, then without each of them.

    Every replicate has its own mean.

    Attributes:
        rows: The rows at unit scale, around the mean of all.
        mean: That mean, at unit scale.
        groups: The group of each row.
        counts: The number of rows of each replicate.
        sums: The sum of each replicate's rows.
        log_unit: The logarithm of the unit.
    """

    rows: Float[Tensor, "n d"]
    mean: Float[Tensor, "d"]
    groups: Int[Tensor, "n"]
    counts: Float[Tensor, "g_plus_1"]
    sums: Float[Tensor, "g_plus_1 d"]
    log_unit: float

    @classmethod
    def of(cls, rows: Float[Tensor, "n d"], groups: Int[Tensor, "n"]) -> _Spread:
        """Return the spread of rows."""
        unit = unit_scale(rows)
        scaled = rows / unit
        mean = scaled.double().mean(dim=0)
        centred = (scaled - mean).to(rows.dtype)
        counts = leave_one_out(groups.bincount().double())
        return cls(centred, mean, groups, counts, leave_one_out(_summed(centred, groups)), math.log(unit))

    @cached_property
    def energy(self) -> Float[Tensor, "g"]:
        """The sum of squares of each group."""
        return _summed(self.rows.square().sum(dim=1, keepdim=True), self.groups)[:, 0]

    @cached_property
    def total(self) -> Float[Tensor, "g_plus_1"]:
        """The variance over all directions, in squares of the unit."""
        return leave_one_out(self.energy) / self.counts - self._of_mean(self.sums)

    @property
    def log_total(self) -> Float[Tensor, "g_plus_1"]:
        """The logarithm of the variance over all directions."""
        return self.total.log() + 2 * self.log_unit

    @property
    def log_mean_length(self) -> Float[Tensor, "g_plus_1"]:
        """The logarithm of the length of the mean."""
        return (self.mean + self.sums / self.counts[:, None]).norm(dim=1).log() + self.log_unit

    def divided(self, subspaces: Sequence[Subspace]) -> tuple[Logarithm, Logarithm]:
        """Return the logarithms of the variance inside and outside of a subspace; of several, of their means."""
        bases = torch.cat([q.basis for q in subspaces], dim=1)
        energy = _summed((self.rows @ bases.to(self.rows)).square().sum(dim=1, keepdim=True), self.groups)[:, 0]
        inside = (leave_one_out(energy) / self.counts - self._of_mean(self.sums @ bases.to(self.sums))) / len(subspaces)
        energy = energy / len(subspaces)
        return self._logarithm(inside, energy), self._logarithm(self.total - inside, self.energy - energy)

    def _of_mean(self, sums: Float[Tensor, "g_plus_1 c"]) -> Float[Tensor, "g_plus_1"]:
        """Return the square of each replicate's mean, given its sum."""
        return sums.square().sum(dim=1) / self.counts.square()

    def _logarithm(self, variance: Float[Tensor, "g_plus_1"], energy: Float[Tensor, "g"]) -> Logarithm:
        some = variance > _NOTHING * self.total
        return Logarithm(variance.where(some, math.nan).log() + 2 * self.log_unit, (energy.clamp_min(0),))


def _summed(rows: Float[Tensor, "n c"], groups: Int[Tensor, "n"]) -> Float[Tensor, "g c"]:
    """Return the sum of the rows of each group, in fp64."""
    sums = torch.zeros(int(groups.max()) + 1, rows.shape[1], dtype=torch.float64, device=rows.device)
    return sums.index_add_(0, groups, rows.double())
