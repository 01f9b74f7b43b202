"""Delete-a-group jackknife: intervals over sequences, because tokens of one sequence depend on each other."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor

from tangentlens.errors import InputError


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval."""

    value: float
    low: float
    high: float

    def __repr__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def sequence_groups(sequences: Int[Tensor, "n"], n_groups: int) -> Int[Tensor, "n"]:
    """The group (0 ... G - 1) of each row: whole sequences, in order of their ids, dealt out evenly."""
    _, index = sequences.unique(return_inverse=True)
    count = int(index.max()) + 1 if len(index) else 0
    if count < 2:
        raise InputError(f"an interval over sequences needs at least 2 of them, but {count} came; pass more sequences")
    return index * min(n_groups, count) // count


def replicate(
    statistic: Callable[[Tensor], Tensor], total: Tensor, parts: Float[Tensor, "g ..."]
) -> Float[Tensor, "g_plus_1"]:
    """`statistic` of the whole, then of the whole without each part: what `jackknife` takes.

    Functions of replicates (ratios, means over sites) are taken entry by entry, so their intervals see that the same
    sequences stand behind all of them.
    """
    return torch.stack([statistic(total)] + [statistic(total - part) for part in parts])


def jackknife(
    replicates: Float[Tensor, "g_plus_1"],
    scale: Callable[[Tensor], Tensor] = lambda value: value,
    back: Callable[[Tensor], Tensor] = lambda value: value,
) -> Interval:
    """A 95% interval from `replicate`d values, symmetric on `scale` and mapped `back`.

    >>> rows = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64)
    >>> means = torch.stack([rows.mean()] + [rows[rows != row].mean() for row in rows])
    >>> jackknife(means)  # for a mean, this is Student's interval
    3 [-0.437, 6.44]
    """
    scaled = scale(replicates.double())
    left_out = scaled[1:]
    g = len(left_out)
    error = ((g - 1) / g * (left_out - left_out.mean()).square().sum()).sqrt()
    reach = float(stats.t.ppf(0.975, g - 1)) * error
    ends = back(torch.stack([scaled[0], scaled[0] - reach, scaled[0] + reach]))
    return Interval(*ends.tolist())
