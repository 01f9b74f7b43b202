"""Intervals over sequences, because tokens of one sequence depend on each other: jackknife and cluster bootstrap."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from scipy import stats
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.interval import Interval
from tangentlens.geometry.leading import leading_vectors
from tangentlens.geometry.rows import unit_scale

# Leading eigenvectors of a whole from which those of its parts are looked for.
NEAR = 8


def sequence_groups(sequences: Int[Tensor, "n"], n_groups: int) -> Int[Tensor, "n"]:
    """The group (0 ... G - 1) of each row: whole sequences, in order of their ids, dealt out evenly."""
    _, index = sequences.unique(return_inverse=True)
    count = int(index.max()) + 1 if len(index) else 0
    if count < 2:
        raise InputError(f"an interval over sequences needs at least 2 of them, but {count} came; pass more sequences")
    return index * min(n_groups, count) // count


def group_products(rows: Float[Tensor, "n d"], groups: Int[Tensor, "n"], n_groups: int) -> Float[Tensor, "g d d"]:
    """X^T X of each group's rows, in fp64; zero for a group without any."""
    scale = unit_scale(rows)
    order = groups.argsort(stable=True)
    parts = (rows[order] / scale).split(groups.bincount(minlength=n_groups).tolist())
    return torch.stack([(part.T @ part).double() for part in parts]) * scale**2


def leave_one_out(parts: Float[Tensor, "g *part"]) -> Float[Tensor, "g_plus_1 *part"]:
    """The sum of all parts, then the sum without each one.

    Without part i is what comes before it plus what comes after: subtracting it from the whole would cancel all digits
    where one part outweighs the others.
    """
    totals = parts.new_empty(len(parts) + 1, *parts.shape[1:])
    before, after = torch.zeros_like(parts[0]), torch.zeros_like(parts[0])
    for total, part in zip(totals[1:], parts, strict=True):
        total.copy_(before)
        before += part
    for number in range(len(parts) - 1, -1, -1):
        totals[number + 1] += after
        after += parts[number]
    totals[0] = before
    return totals


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

    def covariance(total: Tensor) -> Tensor:
        mean = total[:-1, -1] / total[-1, -1]
        return total[:-1, :-1] / total[-1, -1] - torch.outer(mean, mean)

    totals = leave_one_out(group_products(extended, groups, int(groups.max()) + 1))
    near = leading_vectors(covariance(totals[0]), min(NEAR, rows.shape[1]))

    def leading_share(total: Tensor) -> Tensor:
        spread = covariance(total)
        leader = leading_vectors(spread, 1, near)[:, 0]
        return leader @ spread @ leader / spread.trace()

    return replicate(leading_share, totals)


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
    reach = _student(0.95, g - 1) * error
    # Fewer rows change a biased estimate in one direction, and that tells the bias (docs/concepts.md, 'Intervals').
    center = value + (g - 1) * (value - float(left_out.mean()))
    return Interval(value, min(value, center - reach), max(value, center + reach))


@cache
def _student(level: float, degrees: int) -> float:
    """Between minus this and this lies `level` of Student's law; a table of results asks for it thousands of times."""
    return float(stats.t.ppf((1 + level) / 2, degrees))


def share_jackknife(replicates: Float[Tensor, "g_plus_1"], present: Bool[Tensor, "g"] | None = None) -> Interval:
    """The same for shares: symmetric in log-odds, so that it stays between 0 and 1."""
    return jackknife(log_odds(replicates), present).from_log_odds()


def log_share(share: Tensor) -> Tensor:
    """The logarithm of shares, of which none is quite 0."""
    return share.clamp_min(1e-12).log()


def log_odds(share: Tensor) -> Tensor:
    """Where intervals of shares are symmetric."""
    return torch.logit(share.double(), eps=1e-12)


def cluster_bootstrap(
    sums: Float[Tensor, "sequences *part"], n_draws: int = 400, seed: int = 0
) -> Float[Tensor, "draws_plus_1 *part"]:
    """The sum over sequences, then sums over as many sequences drawn with replacement."""
    n = len(sums)
    make = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, n, (n_draws, n), generator=make)
    counts = (
        torch.zeros(n_draws, n, dtype=torch.float64).scatter_add_(1, drawn, torch.ones(n_draws, n).double()).to(sums)
    )
    times = torch.cat([torch.ones_like(counts[:1]), counts])
    return (times @ sums.flatten(1)).unflatten(1, sums.shape[1:])


def bootstrap_means(
    values: Float[Tensor, "n q"], sequences: Int[Tensor, "n"], seed: int
) -> tuple[Float[Tensor, "draws_plus_1 q"], int]:
    """Means over rows, of all sequences and of sequences drawn with replacement; and how many sequences there are."""
    _, index = sequences.unique(return_inverse=True)
    n_sequences = int(index.max()) + 1
    counted = torch.cat([values, torch.ones_like(values[:, :1])], dim=1).double()
    drawn = cluster_bootstrap(counted.new_zeros(n_sequences, counted.shape[1]).index_add_(0, index, counted), seed=seed)
    return drawn[:, :-1] / drawn[:, -1:], n_sequences


def bootstrap_interval(replicates: Float[Tensor, "draws_plus_1"], n_sequences: int, level: float = 0.95) -> Interval:
    """An interval from the spread over draws; Student's t makes up for few sequences."""
    value = float(replicates[0])
    # Draws from n sequences spread too little by the factor that divides a variance by n in place of n - 1.
    error = float(replicates[1:].std()) * math.sqrt(n_sequences / (n_sequences - 1))
    reach = _student(level, n_sequences - 1) * error
    return Interval(value, value - reach, value + reach)
