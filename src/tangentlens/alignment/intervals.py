"""Delete-a-group jackknife: intervals over sequences, because tokens of one sequence depend on each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from scipy import stats
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.rows import product


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval, and what varies behind that interval."""

    value: float
    low: float
    high: float
    over: str = "sequences"

    def exp(self) -> Interval:
        """The interval of a ratio, from that of its logarithm."""
        return Interval(math.exp(self.value), math.exp(self.low), math.exp(self.high), self.over)

    def __repr__(self) -> str:
        return f"{self.value:#.3g} [{self.low:#.3g}, {self.high:#.3g}]"


def sequence_groups(sequences: Int[Tensor, "n"], n_groups: int) -> Int[Tensor, "n"]:
    """The group (0 ... G - 1) of each row: whole sequences, in order of their ids, dealt out evenly."""
    _, index = sequences.unique(return_inverse=True)
    count = int(index.max()) + 1 if len(index) else 0
    if count < 2:
        raise InputError(f"an interval over sequences needs at least 2 of them, but {count} came; pass more sequences")
    return index * min(n_groups, count) // count


def group_products(rows: Float[Tensor, "n d"], groups: Int[Tensor, "n"], n_groups: int) -> Float[Tensor, "g d d"]:
    """X^T X of each group's rows, in fp64; zero for a group without any."""
    return torch.stack([product(rows[groups == group]) for group in range(n_groups)])


def leave_one_out(parts: Float[Tensor, "g *part"]) -> Float[Tensor, "g_plus_1 *part"]:
    """The sum of all parts, then the sum without each one.

    Without part i is what comes before it plus what comes after: subtracting it from the whole would cancel all digits
    where one part outweighs the others.
    """
    none = torch.zeros_like(parts[:1])
    before = torch.cat([none, parts[:-1]]).cumsum(dim=0)
    after = torch.cat([parts[1:], none]).flip(0).cumsum(dim=0).flip(0)
    return torch.cat([parts.sum(dim=0, keepdim=True), before + after])


def replicate(
    statistic: Callable[[Tensor], Tensor], totals: Float[Tensor, "g_plus_1 *part"]
) -> Float[Tensor, "g_plus_1"]:
    """`statistic` of each of the sums that `leave_one_out` gives: what `jackknife` takes.

    Functions of replicates (ratios, means over sites) are taken entry by entry, so their intervals see that the same
    sequences stand behind all of them.
    """
    return torch.stack([statistic(total) for total in totals])


def anisotropy_replicates(
    rows: Float[Tensor, "n d"], sequences: Int[Tensor, "n"], n_groups: int = 16
) -> Float[Tensor, "g_plus_1"]:
    """Replicates of the centred `anisotropy` over groups of sequences."""
    # Count, sum and products of a group are one matrix if a column of ones is added, and such matrices add up.
    centred = rows - rows.mean(dim=0)
    extended = torch.cat([centred, torch.ones_like(centred[:, :1])], dim=1)
    groups = sequence_groups(sequences, n_groups)

    def leading_share(total: Tensor) -> Tensor:
        mean = total[:-1, -1] / total[-1, -1]
        covariance = total[:-1, :-1] / total[-1, -1] - torch.outer(mean, mean)
        return torch.linalg.eigvalsh(covariance)[-1] / covariance.trace()

    parts = group_products(extended, groups, int(groups.max()) + 1)
    return replicate(leading_share, leave_one_out(parts))


def jackknife(replicates: Float[Tensor, "g_plus_1"], present: Bool[Tensor, "g"] | None = None) -> Interval:
    """A 95% interval from `replicate`d values.

    Args:
        replicates: The value, then the value without each group.
        present: Which groups hold any of the rows; a group that holds none is no observation of them.

    >>> rows = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64)
    >>> means = torch.stack([rows.mean()] + [rows[rows != row].mean() for row in rows])
    >>> jackknife(means)  # for a mean, this is Student's interval
    3.00 [-0.437, 6.44]
    """
    value, left_out = float(replicates[0]), replicates[1:].double()
    if present is not None:
        left_out = left_out[present]
    g = len(left_out)
    error = math.sqrt((g - 1) / g * float((left_out - left_out.mean()).square().sum()))
    reach = float(stats.t.ppf(0.975, g - 1)) * error
    return Interval(value, value - reach, value + reach)


def share_jackknife(replicates: Float[Tensor, "g_plus_1"], present: Bool[Tensor, "g"] | None = None) -> Interval:
    """The same for shares: symmetric in log-odds, so that it stays between 0 and 1."""
    odds = jackknife(torch.logit(replicates.double(), eps=1e-12), present)
    return Interval(*torch.tensor([odds.value, odds.low, odds.high], dtype=torch.float64).sigmoid().tolist())
