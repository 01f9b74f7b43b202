"""The check of the audit that decides: are gradients tangent at their own place? docs/measures/audit.md derives it."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from tangentlens.alignment.audit_data import AuditData, Check
from tangentlens.alignment.chance import Chance
from tangentlens.statistics.bootstrap import bootstrap_interval
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import log_odds, log_share

# The number of other places whose planes each gradient is compared with.
N_SWAPS = 8
# If the planes of different places overlap more than this, they are all one plane, and swapping them shows nothing.
SAME_PLANE = 0.9
# The verdict needs a higher confidence level than the 95% of the numbers, and a difference from chance of a tenth.
LEVEL, MARGIN = 0.999, math.log(1.1)
# Two shares count as alike if the whole interval of their ratio lies within this.
ALIKE = math.log(1.25)

# What each verdict means, as the end of the sentence 'the gradients are ...'.
VERDICTS = {
    "tangent": "tangent: their share in the tangent plane of their own place is significantly above chance, and other "
    "places with other planes do not explain it",
    "normal": "normal: their share in the tangent plane of their own place is significantly below chance",
    "indifferent": "indifferent: their share in the tangent plane of their own place is within 25% of chance",
    "variance": "along directions of high variance: their share in the tangent plane of their own place is "
    "significantly above chance, but less than 25% above their share in the planes of other places",
    "unknown": "not judged: there are too few tokens, or the gradients have too few directions, for a conclusion",
}


def in_tangent_planes(on: AuditData) -> Check:
    """Compare the gradient's share in the tangent plane of its own place with chance and with planes of other places.

    This is the check that decides on the verdict.
    """
    planes, gradients = on.planes, normalize(on.test.gradients[on.anchors].double(), dim=1, eps=1e-300)
    own = torch.einsum("ad,adm->am", gradients, planes).square().sum(dim=1)
    others, overlaps = [], []
    for turn in range(1, N_SWAPS + 1):
        other = planes.roll(turn * len(planes) // (N_SWAPS + 1), dims=0)
        others.append(torch.einsum("ad,adm->am", gradients, other).square().sum(dim=1))
        overlaps.append((planes.transpose(1, 2) @ other).square().sum(dim=(1, 2)) / planes.shape[2])
    swapped, alike = torch.stack(others).mean(dim=0), float(torch.stack(overlaps).mean())
    means, n = on.anchor_means(torch.stack([own, swapped], dim=1))
    turned = _random_planes(planes, gradients)
    share = bootstrap_interval(log_odds(means[:, 0]), n).from_log_odds()
    ratios = log_share(means[:, 0]) - math.log(turned.mean), log_share(means[:, 0]) - log_share(means[:, 1])
    to_chance, to_swapped = (bootstrap_interval(ratio, n) for ratio in ratios)
    p_value = turned.p_value(share.value)
    sure, sure_of_place = (bootstrap_interval(ratio, n, LEVEL) for ratio in ratios)
    says = _judge(sure, sure_of_place, to_chance, p_value, alike)
    return Check(
        "local tangents",
        f"the share of a gradient's energy in the tangent plane of its own place (dimension {planes.shape[2]}) is "
        f"{share}. That is {to_chance.exp()} times chance, {turned.mean:.3g} (p = {p_value:.2g} for planes in a random "
        f"rotation), and {to_swapped.exp()} times its share in the planes of other places, which overlap with its own "
        f"by {alike:.2f} ({len(planes)} anchors)",
        f"the gradients are {VERDICTS[says]}",
        {"share": share, "log_ratio to chance": to_chance, "log_ratio to other places": to_swapped},
        says,
    )


def _random_planes(planes: Float[Tensor, "a d m"], gradients: Float[Tensor, "a d"]) -> Chance:
    """Return the distribution of the mean share if all planes are turned together by one random rotation.

    Its variance is derived in docs/measures/audit.md, 'local tangents'.
    """
    a, d, m = planes.shape
    stacked = planes.transpose(0, 1).reshape(d, a * m)
    of_planes, of_gradients = stacked @ stacked.T / a, gradients.T @ gradients / a
    spread = (float(of_planes.square().sum()) - m**2 / d) * (float(of_gradients.square().sum()) - 1 / d)
    return Chance(mean=m / d, std=math.sqrt(max(2 * spread / ((d - 1) * (d + 2)), 0.0)), total=1.0)


def _judge(sure: Interval, sure_of_place: Interval, likely: Interval, p_value: float, alike: float) -> str:
    """Return the verdict, a key of `VERDICTS`.

    Args:
        sure: The log-ratio to chance, with its interval at `LEVEL`.
        sure_of_place: The log-ratio to the planes of other places, with its interval at `LEVEL`.
        likely: The log-ratio to chance, with its 95% interval.
        p_value: The probability that planes in a random rotation have at least this share.
        alike: The mean overlap of the planes of different places.
    """
    if sure.ci_high < -MARGIN and p_value > LEVEL:
        return "normal"
    if sure.ci_low > MARGIN and p_value < 1 - LEVEL:
        if sure_of_place.ci_low > 0 or alike > SAME_PLANE:
            return "tangent"
        return "variance" if sure_of_place.ci_high < ALIKE else "unknown"
    return "indifferent" if likely.ci_low > -ALIKE and likely.ci_high < ALIKE else "unknown"
