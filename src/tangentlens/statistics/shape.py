"""The shape of a profile over depth: bell, valley, irregular, monotone or flat, judged by intervals over batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.statistics.interval import mean_interval

# What the intervals are over.
BATCHES = "batches"


@dataclass(frozen=True)
class Shape:
    """The shape of a profile, and how pronounced it is, with its 95% interval over batches.

    Attributes:
        kind: The shape.
        place: The site, by its position among the sites, that the numbers are about: the extreme interior site, or for
            a monotone or flat profile the last site.
        value: For a bell, the height of that site above the higher end. For a valley, its depth below the lower end, as
            a negative number. For an irregular profile, one of these two. Otherwise, the last site minus the first.
        ci_low: The lower end of the interval.
        ci_high: The upper end of the interval.
        ci_over: The source of variation that the interval covers.
    """

    kind: Literal["bell", "valley", "irregular", "monotone", "flat"]
    place: int
    value: float
    ci_low: float
    ci_high: float
    ci_over: str = BATCHES


def profile_shape(values: Float[Tensor, "batches sites"], depth: Float[Tensor, "sites"]) -> Shape:
    """Return the shape of a profile, judged by intervals over batches.

    A bell has an interior site above both ends, and a quadratic fit over depth that opens downward, each significant at
    5%; the site is corrected for having been selected. A valley is the mirror image. A profile with such a site but no
    such quadratic is irregular. Any other profile is monotone if its ends differ significantly, and flat if they do not
    (docs/measures/shape.md).

    Args:
        values: The measure in each batch at each site, `(batches, sites)`, at least 2 of both.
        depth: The depth of each site, ascending.

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
    """Return whether a quadratic fit over depth opens significantly upward (1), downward (-1), or neither (0)."""
    powers = torch.stack([torch.ones_like(depth), depth, depth.square()], dim=1)
    bend = mean_interval(values @ torch.linalg.pinv(powers)[2], BATCHES)
    return int(bend.ci_low > 0) - int(bend.ci_high < 0)


def _beyond_both_ends(values: Float[Tensor, "b s"]) -> tuple[int, float, float, float] | None:
    """Return the highest interior site and its height above the higher end with interval; None if not significant."""
    mean = values.mean(dim=0)
    place = 1 + int(mean[1:-1].argmax())
    # Bonferroni's correction, because the site was selected as the highest of all interior ones.
    level = 1 - 0.05 / (len(mean) - 2)
    above = [mean_interval(values[:, place] - values[:, end], BATCHES, level) for end in (0, -1)]
    if min(one.ci_low for one in above) <= 0:
        return None
    least = min(above, key=lambda one: one.value)
    return place, least.value, least.ci_low, least.ci_high
