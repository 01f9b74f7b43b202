"""The delete-a-group jackknife: how much an estimate changes when one group of observations is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import fmean

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.statistics.influence import effective_number
from tangentlens.statistics.interval import Interval, student

# Below this effective number of groups there is no interval: Student's law would have less than one degree of freedom.
LEAST_EFFECTIVE = 2.0
# An estimate of a share that is further outside of 0 and 1 than rounding takes it.
_OUTSIDE = 1e-9


def leave_one_out(parts: Float[Tensor, "g *part"]) -> Float[Tensor, "g_plus_1 *part"]:
    """Return the sum of all parts, followed by the sum without each part in turn.

    The sum without part i is computed as what comes before it plus what comes after it. Subtracting the part from the
    total instead would cancel all digits where one part outweighs the others.
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
    """Return `statistic` of each of the sums that `leave_one_out` gives; this is what `jackknife` takes.

    Functions of several replicated numbers (ratios, means over sites) are computed entry by entry. Their intervals then
    account for the fact that the same sequences stand behind all of them.
    """
    return torch.stack([statistic(total) for total in totals])


def jackknife(replicates: Float[Tensor, "g_plus_1"], *energies: Float[Tensor, "g"]) -> Interval:
    """Return an estimate with its 95% jackknife interval over groups of sequences.

    Where a few groups hold most of the energy, few groups decide on the estimate. Student's law therefore has as many
    degrees of freedom as there are groups in effect, (sum E)^2 / sum E^2, minus one. If fewer than `LEAST_EFFECTIVE`
    groups are left in effect, or an estimate is not finite, there is no interval: both ends are NaN.

    Args:
        replicates: The estimate from all groups, followed by the estimate without each group.
        energies: The energy of each group, for each of the sets of rows that the estimate compares; by default all
            groups count alike. A group without any energy is not an observation.

    >>> rows = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64)
    >>> means = torch.stack([rows.mean()] + [rows[rows != row].mean() for row in rows])
    >>> jackknife(means)  # for a mean, this is Student's interval
    3.00 [-0.437, 6.44]
    """
    return jackknives(replicates[None], *energies)[0]


def jackknives(replicates: Float[Tensor, "estimates g_plus_1"], *energies: Float[Tensor, "g"]) -> list[Interval]:
    """Return `jackknife` of several estimates from the same groups; at once, because a due step has thousands."""
    numbers = replicates.double().numpy(force=True)
    values, left_out = numbers[:, :1], numbers[:, 1:]
    if energies:
        left_out = left_out[:, torch.stack(energies).sum(dim=0).numpy(force=True) > 0]
    g = left_out.shape[1]
    effective = min(map(effective_number, energies), default=g)
    if not effective >= LEAST_EFFECTIVE:
        return [Interval(value, math.nan, math.nan) for value in values[:, 0].tolist()]
    with np.errstate(invalid="ignore"):
        means = left_out.mean(axis=1, keepdims=True)
        error = np.sqrt((g - 1) / g * np.square(left_out - means).sum(axis=1, keepdims=True))
        # Fewer rows shift a biased estimate in one direction, which estimates the bias (docs/calibration.md,
        # 'Intervals').
        center = values + (g - 1) * (values - means)
        reach = np.where(np.isfinite(center), student(0.95, effective - 1) * error, math.nan)
        low, high = np.minimum(values, center - reach), np.maximum(values, center + reach)
    return [Interval(*row) for row in np.hstack([values, low, high]).tolist()]


def share_jackknife(replicates: Float[Tensor, "g_plus_1"], *energies: Float[Tensor, "g"]) -> Interval:
    """Return the jackknife interval of a share: symmetric in log-odds, so that it stays between 0 and 1."""
    return share_jackknives(replicates[None], *energies)[0]


def share_jackknives(replicates: Float[Tensor, "shares g_plus_1"], *energies: Float[Tensor, "g"]) -> list[Interval]:
    """Return `share_jackknife` of several shares from the same groups."""
    return [interval.from_log_odds() for interval in jackknives(log_odds(replicates), *energies)]


def jackknife_over(estimate: Callable[[Tensor], float], group: Int[Tensor, "n"], over: str) -> Interval:
    """Return an estimate with its jackknife interval, given as a function of a mask of the rows that count.

    Args:
        estimate: Takes a boolean mask over the rows.
        group: The group of each row; rows that depend on each other share a group.
        over: What the interval is over.
    """
    value, reach = estimate(torch.ones_like(group).bool()), jackknife_reach(estimate, group)
    return Interval(value, value - reach, value + reach, over)


def jackknife_reach(estimate: Callable[[Tensor], float], group: Int[Tensor, "n"]) -> float:
    """Return half the length of that interval; it is infinite where groups are too few or an estimate is not finite."""
    labels = group.unique().tolist()
    if len(labels) < 2:
        return math.inf
    left_out = [float(estimate(group != label)) for label in labels]
    return _reach(left_out, len(left_out)) if all(map(math.isfinite, left_out)) else math.inf


def jackknife_reach_of_sum(
    estimate: Callable[[float, int], float], terms: Float[Tensor, "n"], group: Int[Tensor, "n"]
) -> float:
    """Return `jackknife_reach` of an estimate that depends on the rows through a sum over them and their number alone.

    Args:
        estimate: Takes the sum of the terms of some rows, and the number of these rows.
        terms: The term of each row.
        group: The group (0, 1, ...) of each row.
    """
    sizes = group.bincount()
    sums = sizes.new_zeros(len(sizes), dtype=torch.float64).index_add_(0, group, terms.double()).tolist()
    # What comes before each group, and what comes after it, as in `leave_one_out`.
    before, after = accumulate(sums, initial=0.0), [*accumulate(reversed(sums), initial=0.0)][-2::-1]
    parts = [(a + b, len(group) - size) for a, b, size in zip(before, after, sizes.tolist(), strict=False) if size]
    if len(parts) < 2:
        return math.inf
    left_out = [estimate(total, n) for total, n in parts]
    return _reach(left_out, len(left_out)) if all(map(math.isfinite, left_out)) else math.inf


def _reach(left_out: Sequence[float], effective: float) -> float:
    g, mean = len(left_out), fmean(left_out)
    error = math.sqrt((g - 1) / g * sum((one - mean) ** 2 for one in left_out))
    return student(0.95, effective - 1) * error


def log_share(share: Tensor) -> Tensor:
    """Return the logarithm of shares, none of which counts as less than 1e-12; NaN if noise makes it negative."""
    return share.clamp_min(1e-12).log().where(share >= -_OUTSIDE, math.nan)


def log_odds(share: Tensor) -> Tensor:
    """Return the log-odds of shares, the scale on which their intervals are symmetric; NaN outside of 0 and 1."""
    inside = (share >= -_OUTSIDE) & (share <= 1 + _OUTSIDE)
    return torch.logit(share.double(), eps=1e-12).where(inside, math.nan)
