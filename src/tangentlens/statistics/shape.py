"""The shape of a profile over depth: bell, valley, irregular, monotone or flat, decided by intervals over batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.statistics.interval import mean_interval

# What intervals of a profile are over.
BATCHES = "batches"


@dataclass(frozen=True)
class Shape:
    """What a profile is; `place` is the site that makes it so, and the rest how far, with its 95% interval.

    For a bell it is the height above the higher end, for a valley the depth below the lower one (negative), for an
    irregular profile either, else the last site against the first.
    """

    kind: Literal["bell", "valley", "irregular", "monotone", "flat"]
    place: int
    value: float
    ci_low: float
    ci_high: float


def profile_shape(values: Float[Tensor, "batches sites"], depth: Float[Tensor, "sites"]) -> Shape:
    """The shape that batches of values at sites of ascending depth agree on.

    A bell has an interior site above both ends and a quadratic over depth that opens downward, both with 95% intervals
    (that of the site corrected for having been picked); a valley is its mirror image. With such a site but no such
    quadratic, a profile is irregular; else it is monotone if its ends differ, and flat if they do not
    (docs/concepts.md, 'Shape of a profile').

    >>> values = torch.tensor([[0.1, 0.5, 0.1], [0.2, 0.6, 0.1], [0.1, 0.6, 0.2]])
    >>> profile_shape(values, torch.tensor([0.0, 0.5, 1.0])).kind
    'bell'
    """
    n_batches, n_sites = values.shape
    if n_batches < 2 or n_sites < 2:
        raise InputError(
            f"a shape needs at least 2 batches and 2 sites, but {n_batches} and {n_sites} came; measure more"
        )
    values = values.double()
    if n_sites >= 3:
        bend = _bend(values, depth.double())
        up, down = _beyond_both_ends(values), _beyond_both_ends(-values)
        if up is not None and (bend < 0 or down is None):
            return Shape("bell" if bend < 0 else "irregular", *up)
        if down is not None:
            place, value, low, high = down
            return Shape("valley" if bend > 0 else "irregular", place, -value, -high, -low)
    ends = mean_interval(values[:, -1] - values[:, 0], BATCHES)
    kind: Literal["flat", "monotone"] = "flat" if ends.ci_low <= 0 <= ends.ci_high else "monotone"
    return Shape(kind, n_sites - 1, ends.value, ends.ci_low, ends.ci_high)


def _bend(values: Float[Tensor, "b s"], depth: Float[Tensor, "s"]) -> int:
    """Whether a quadratic over depth opens upward (1), downward (-1), or neither for sure (0)."""
    powers = torch.stack([torch.ones_like(depth), depth, depth.square()], dim=1)
    bend = mean_interval(values @ torch.linalg.pinv(powers)[2], BATCHES)
    return int(bend.ci_low > 0) - int(bend.ci_high < 0)


def _beyond_both_ends(values: Float[Tensor, "b s"]) -> tuple[int, float, float, float] | None:
    """The highest interior site and by how much it exceeds the higher end; None if it does not for sure."""
    mean = values.mean(dim=0)
    place = 1 + int(mean[1:-1].argmax())
    # The site was picked as the highest of all interior ones.
    level = 1 - 0.05 / (len(mean) - 2)
    above = [mean_interval(values[:, place] - values[:, end], BATCHES, level) for end in (0, -1)]
    if min(one.ci_low for one in above) <= 0:
        return None
    least = min(above, key=lambda one: one.value)
    return place, least.value, least.ci_low, least.ci_high
