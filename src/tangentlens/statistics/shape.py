"""The shape of a profile over depth, judged by intervals over batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.statistics.evidence import BATCHES, Difference, Evidence

Kind = Literal["bell", "valley", "irregular", "monotone", "flat", "undecided"]

# Differences of up to so much of the mean level count as none, unless a margin is given.
MARGIN = 0.1
# Where the peak of a bell lies, as a share of the way from the first site to the last.
_MIDDLE = (0.25, 0.75)
# The most batches that are asked for.
_MOST_BATCHES = 10_000


@dataclass(frozen=True)
class Shape:
    """The shape of a profile, and how pronounced it is, with its 95% interval over batches.

    Attributes:
        kind: The shape; 'undecided' if neither a shape nor flatness could be shown.
        place: The site, by its position among the sites, that the numbers are about: the peak of a bell, the bottom of
            a valley, the most pronounced peak or dip of an irregular profile, the last site of a monotone one. If the
            profile is flat or undecided, the later of the two sites whose difference may be largest.
        value: The value at that site minus that at `base`.
        ci_low: The lower end of the interval.
        ci_high: The upper end of the interval.
        base: The site that `place` is compared with: for a bell the higher end, for a valley the lower one.
        margin: Up to where a difference counts as none.
        batches_needed: How many batches would decide an undecided shape if means and spread stay as they are; None if
            the shape is decided, or if 10,000 batches would not.
        ci_over: The source of variation that the interval covers.
    """

    kind: Kind
    place: int
    value: float
    ci_low: float
    ci_high: float
    base: int
    margin: float
    batches_needed: int | None = None
    ci_over: str = BATCHES


def profile_shape(
    values: Float[Tensor, "batches sites"], depth: Float[Tensor, "sites"], margin: float | None = None
) -> Shape:
    """Return the shape of a profile, judged by intervals over batches.

    A shape has to be shown. Flat: all differences between sites lie, with their intervals, within the margin. Monotone:
    the ends differ significantly, and reversals are excluded. Bell: a site in the middle is significantly above both
    ends, the profile rises to it and falls after it without a reversal, and a quadratic over depth opens downward. A
    valley is the mirror image. Irregular: a significant peak and a significant dip, or a peak that is shown to be off
    the middle. Anything else is undecided (docs/measures/shape.md).

    Args:
        values: The measure in each batch at each site, `(batches, sites)`, at least 2 of both.
        depth: The depth of each site, ascending.
        margin: Up to where a difference counts as none; by default, 10% of the mean level.

    >>> import torch
    >>> values = torch.tensor([[0.1, 0.5, 0.1], [0.2, 0.6, 0.1], [0.1, 0.6, 0.2]])
    >>> profile_shape(values, torch.tensor([0.0, 0.5, 1.0])).kind
    'bell'
    """
    n_batches, n_sites = values.shape
    if n_batches < 2 or n_sites < 2:
        raise InputError(
            f"a shape needs at least 2 batches and 2 sites, but {n_batches} and {n_sites} came; measure more"
        )
    values, depth = values.double(), depth.double()
    if margin is None:
        margin = default_margin(values)
    if not margin >= 0:
        raise InputError(f"margin must be 0 or more, but is {margin}; give the largest difference that counts as none")
    shape = shape_of(values, depth, margin, n_batches)
    if shape.kind != "undecided":
        return shape
    return replace(shape, batches_needed=_batches_needed(values, depth, margin))


def default_margin(values: Float[Tensor, "b s"]) -> float:
    """Return up to where a difference counts as none unless a margin is given: 10% of the mean level."""
    return MARGIN * abs(float(values.mean()))


def _batches_needed(values: Float[Tensor, "b s"], depth: Float[Tensor, "s"], margin: float) -> int | None:
    """Return the least number of batches that decides, given means and spread of the batches there are."""

    def decides(n: int) -> bool:
        return shape_of(values, depth, margin, n).kind != "undecided"

    too_few = enough = len(values)
    while not decides(enough):
        if enough == _MOST_BATCHES:
            return None
        too_few, enough = enough, min(2 * enough, _MOST_BATCHES)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if decides(middle) else (middle, enough)
    return enough


def shape_of(values: Float[Tensor, "b s"], depth: Float[Tensor, "s"], margin: float, n: int) -> Shape:
    """Return the shape as `n` batches with these means and this spread would decide it, without `batches_needed`."""
    up, down = Evidence(values, margin, n), Evidence(-values, margin, n)
    if up.within_margin():
        return _told("flat", up, up.furthest())
    peak, dip = up.peak(), down.peak()
    if peak is not None and dip is not None:
        higher = peak.interval.value >= dip.interval.value
        return _told("irregular", up if higher else down, peak if higher else dip, downward=not higher)
    sides: tuple[tuple[Evidence, Evidence, Kind], ...] = ((up, down, "bell"), (down, up, "valley"))
    for side, other, kind in sides:
        hump = _hump(side, other, depth)
        if hump is not None:
            return _told(kind, side, hump, downward=side is down)
        aside = _aside(side, depth)
        if aside is not None:
            return _told("irregular", side, aside, downward=side is down)
    last = values.shape[1] - 1
    for side in (up, down):
        ends = side.above(last, 0)
        if ends is not None and side.rises(0, last):
            return _told("monotone", side, ends, downward=side is down)
    return _told("undecided", up, up.furthest())


def _hump(side: Evidence, other: Evidence, depth: Float[Tensor, "s"]) -> Difference | None:
    """Return the height of a bell above its higher end; None if a bell is not shown."""
    middle = _middle(depth)
    if not middle:
        return None
    top, last = side.highest(middle), len(depth) - 1
    above = side.above_both(top, 0, last, len(middle))
    single = above is not None and side.bend(depth) < 0 and side.rises(0, top) and other.rises(top, last)
    return above if single else None


def _aside(side: Evidence, depth: Float[Tensor, "s"]) -> Difference | None:
    """Return the height above the higher end of a peak that is shown to be no bell's; None if there is none."""
    last, middle = len(depth) - 1, _middle(depth)
    if last < 2:
        return None
    top = side.highest(range(1, last))
    above = side.above_both(top, 0, last, side.n_pairs)
    off = top not in middle and (not middle or side.above(top, side.highest(middle), side.n_pairs) is not None)
    return above if above is not None and (off or side.bend(depth) > 0) else None


def _middle(depth: Float[Tensor, "s"]) -> list[int]:
    """Return the sites in the middle half of the way from the first site to the last."""
    way = (depth - depth[0]) / (depth[-1] - depth[0])
    low, high = _MIDDLE
    # The ends of the middle do not belong to it; rounding must not decide about them.
    return [i for i, at in enumerate(way.tolist()) if low + 1e-6 < at < high - 1e-6]


def _told(kind: Kind, side: Evidence, found: Difference, downward: bool = False) -> Shape:
    """Return a shape, given what it rests on; `downward` if that was found in the negated profile."""
    told = found.interval.times(-1) if downward else found.interval
    return Shape(kind, found.place, told.value, told.ci_low, told.ci_high, found.base, side.margin)
