"""The check of the audit that decides: are gradients tangent at their own place? docs/measures/audit.md derives it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from tangentlens.alignment.audit_data import AuditData, Check
from tangentlens.alignment.chance import Chance
from tangentlens.geometry.rows import gram
from tangentlens.statistics.bootstrap import bootstrap_interval
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import log_odds, log_share

# The number of other places whose planes each gradient is compared with.
N_SWAPS = 8
# If the planes of different places overlap more than this, they are all one plane, and swapping them shows nothing.
SAME_PLANE = 0.9
# The verdict needs a higher confidence level than the 95% of the numbers, and a difference of a tenth.
LEVEL, MARGIN = 0.999, math.log(1.1)
# Two shares count as alike if the whole interval of their ratio lies within this.
ALIKE = math.log(1.25)

# What each verdict means, as the end of the sentence 'the gradients are ...'.
VERDICTS = {
    "tangent": "tangent: their share in the tangent plane of their own place is significantly above chance, and other "
    "places with other planes do not explain it",
    "normal": "normal: their share in the tangent plane of their own place is significantly below chance",
    "avoiding": "avoiding the tangent plane of their own place: their share in it is significantly below their share "
    "in the planes of other places, though it was not shown to be below chance",
    "indifferent": "indifferent: their share in the tangent plane of their own place is within 25% of chance",
    "variance": "along directions of high variance: their share in the tangent plane of their own place is "
    "significantly above chance, but within 25% of their share in the planes of other places",
    "unknown": "not judged: there are too few tokens, the gradients have too few directions, or the tangent planes are "
    "too uncertain or too much alike, for a conclusion",
}


@dataclass(frozen=True)
class Overlaps:
    """How well the planes are determined, and how much they differ from place to place, as mean overlaps of two planes.

    Overlap is the mean squared cosine of the principal angles.

    Attributes:
        elsewhere: Of the planes of different places.
        repeated: Of two planes of the same place that are estimated from separate halves of the rows.
        repeated_elsewhere: Of two planes of different places that are estimated from separate halves of the rows.
        chance: Of random planes.
    """

    elsewhere: float
    repeated: float
    repeated_elsewhere: float
    chance: float

    @classmethod
    def of(cls, on: AuditData) -> Overlaps:
        """Return the overlaps of the planes of an audit."""
        planes, (one, other) = on.planes, on.half_planes()
        return cls(
            elsewhere=_overlap_elsewhere(planes, planes),
            repeated=_overlap(one, other),
            repeated_elsewhere=_overlap_elsewhere(one, other),
            chance=planes.shape[2] / planes.shape[1],
        )

    @property
    def telling(self) -> float:
        """Return the log-ratio of own place to other places from which on it tells something, between 0 and `ALIKE`.

        It is half of what tangent gradients would show, at least: the planes of one half of the rows serve as gradients
        that are as tangent as can be known. It is near 0 if the planes of different places cannot be told apart.
        """
        if self.repeated <= 0 or self.repeated_elsewhere <= 0:
            return 0.0 if self.repeated <= 0 else ALIKE
        return min(max(math.log(self.repeated / self.repeated_elsewhere) / 2, 0.0), ALIKE)

    @property
    def reproducible(self) -> float:
        """Return which part of a plane is more than noise: 0 if halves agree by chance, and 1 if they agree entirely.

        The share of normal gradients falls below chance by this fraction, at least.
        """
        return (self.repeated - self.chance) / (1 - self.chance)


def in_tangent_planes(on: AuditData) -> Check:
    """Compare the gradient's share in the tangent plane of its own place with chance and with planes of other places.

    This is the check that decides on the verdict.
    """
    return judged(on, on.test.gradients[on.anchors], Overlaps.of(on))


def judged(on: AuditData, gradients: Float[Tensor, "a d"], overlaps: Overlaps) -> Check:
    """Return the check for gradients at the anchors.

    Args:
        on: The data of the audit.
        gradients: The gradient at each anchor `(a, d)`.
        overlaps: The overlaps of the planes of the audit.
    """
    planes, gradients = on.planes, normalize(gradients.double(), dim=1, eps=1e-300)
    # Gradients are moved and not planes, which take far more memory.
    turns = [0, *_turns(len(planes))]
    moved = torch.stack([gradients.roll(-turn, dims=0) for turn in turns], dim=1)
    taken = (moved @ planes).square().sum(dim=2)
    own, *swapped = (part.roll(turn) for part, turn in zip(taken.unbind(dim=1), turns, strict=True))
    means, n = on.anchor_means(torch.stack([own, torch.stack(swapped).mean(dim=0)], dim=1))
    turned = _random_planes(planes, gradients)
    share = bootstrap_interval(log_odds(means[:, 0]), n).from_log_odds()
    ratios = log_share(means[:, 0]) - math.log(turned.mean), log_share(means[:, 0]) - log_share(means[:, 1])
    to_chance, to_swapped = (bootstrap_interval(ratio, n) for ratio in ratios)
    p_value = turned.p_value(share.value)
    sure, sure_of_place = (bootstrap_interval(ratio, n, LEVEL) for ratio in ratios)
    says = _judge(sure, sure_of_place, to_chance, p_value, overlaps)
    return Check(
        "local tangents",
        f"the share of a gradient's energy in the tangent plane of its own place (dimension {planes.shape[2]}) is "
        f"{share}. That is {to_chance.exp()} times chance, {turned.mean:.3g} (p = {p_value:.2g} for planes in a random "
        f"rotation), and {to_swapped.exp()} times its share in the planes of other places, which overlap with its own "
        f"by {overlaps.elsewhere:.2f} ({len(planes)} anchors). Planes that are estimated from separate halves of the "
        f"rows overlap by {overlaps.repeated:.2f} at the same place and by {overlaps.repeated_elsewhere:.2f} at "
        "different places",
        f"the gradients are {VERDICTS[says]}",
        {"share": share, "log_ratio to chance": to_chance, "log_ratio to other places": to_swapped},
        says,
    )


def _turns(n_anchors: int) -> list[int]:
    """Return by how many places to turn the anchors, so that each takes the place of another, in `N_SWAPS` ways."""
    return [turn * n_anchors // (N_SWAPS + 1) for turn in range(1, N_SWAPS + 1)]


def _overlap(one: Float[Tensor, "a d m"], other: Float[Tensor, "a d m"], turn: int = 0) -> float:
    """Return the mean over anchors of the overlap of planes `one` with planes `other`, which are turned by `turn`."""
    stay = len(one) - turn
    pairs = (one[turn:], other[:stay]), (one[:turn], other[stay:])
    return sum(float((a.transpose(1, 2) @ b).square().sum()) for a, b in pairs) / (len(one) * one.shape[2])


def _overlap_elsewhere(one: Float[Tensor, "a d m"], other: Float[Tensor, "a d m"]) -> float:
    """Return the mean overlap of planes `one` with planes `other` of different anchors."""
    return sum(_overlap(one, other, turn) for turn in _turns(len(one))) / N_SWAPS


def _random_planes(planes: Float[Tensor, "a d m"], gradients: Float[Tensor, "a d"]) -> Chance:
    """Return the distribution of the mean share if all planes are turned together by one random rotation.

    Its variance is derived in docs/measures/audit.md, 'local tangents'.
    """
    a, d, m = planes.shape
    of_planes, of_gradients = gram(planes.transpose(1, 2).flatten(0, 1)) / a, gram(gradients) / a
    spread = (float(of_planes.square().sum()) - m**2 / d) * (float(of_gradients.square().sum()) - 1 / d)
    return Chance(mean=m / d, std=math.sqrt(max(2 * spread / ((d - 1) * (d + 2)), 0.0)), total=1.0)


def _judge(sure: Interval, sure_of_place: Interval, likely: Interval, p_value: float, overlaps: Overlaps) -> str:
    """Return the verdict, a key of `VERDICTS`.

    Args:
        sure: The log-ratio to chance, with its interval at `LEVEL`.
        sure_of_place: The log-ratio to the planes of other places, with its interval at `LEVEL`.
        likely: The log-ratio to chance, with its 95% interval.
        p_value: The probability that planes in a random rotation have at least this share.
        overlaps: How well the planes are determined, and how much they differ from place to place.
    """
    if sure.ci_high < -MARGIN and p_value > LEVEL:
        return "normal"
    # Where planes are hard to tell apart, a smaller difference between places counts, and equality needs more.
    telling = overlaps.telling
    if sure_of_place.ci_high < -min(MARGIN, telling):
        return "avoiding"
    if sure.ci_low > MARGIN and p_value < 1 - LEVEL:
        if sure_of_place.ci_low > min(MARGIN, telling) or overlaps.elsewhere > SAME_PLANE:
            return "tangent"
        return "variance" if sure_of_place.ci_low > -telling and sure_of_place.ci_high < telling else "unknown"
    # In planes that are mostly noise, all gradients have about the share of chance.
    within = likely.ci_low > -ALIKE and likely.ci_high < ALIKE
    return "indifferent" if within and overlaps.reproducible > 1 - math.exp(-ALIKE) else "unknown"
