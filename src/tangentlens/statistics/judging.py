"""Verdicts on claims: effects of several networks against a margin, corrected over a family of claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy

from tangentlens.errors import InputError
from tangentlens.statistics.interval import Interval, student

Verdict = Literal["supported", "refuted", "inconclusive"]

# The probability of any false verdict in a family of claims.
_ERROR = 0.05
# More networks than this are not counted: nobody will train them.
_MANY = 1000


@dataclass(frozen=True)
class Effect:
    """The mean effect of networks in strata, such as seeds of several architectures.

    Each stratum has the same weight. The variation is that between the networks of one stratum, so the interval is for
    these architectures and other seeds of them.

    Attributes:
        value: The mean over strata of their mean.
        error: Its standard error.
        degrees: Its degrees of freedom, by Welch and Satterthwaite.
        sizes: The number of networks in each stratum.
        spread: The standard deviation of a network in each stratum.
    """

    value: float
    error: float
    degrees: float
    sizes: tuple[int, ...]
    spread: tuple[float, ...]

    @classmethod
    def of(cls, strata: Sequence[Sequence[float]], resolution: float = 0.0) -> Effect:
        """Return the effect of networks.

        Args:
            strata: The effect of each network, stratum by stratum; at least 2 networks in each.
            resolution: The step in which an effect is known. Effects that agree to this step may still differ by it, so
                no spread counts as smaller than that of rounding.

        >>> Effect.of([[1.0, 2.0, 3.0]]).interval(0.95)
        2.00 [-0.484, 4.48]
        """
        if not strata or min(map(len, strata)) < 2:
            raise InputError(f"every stratum must have at least 2 networks, but these have {[len(s) for s in strata]}")
        rounding = resolution / math.sqrt(12)
        spread = [max(float(np.std(stratum, ddof=1)), rounding) for stratum in strata]
        sizes = [len(stratum) for stratum in strata]
        value = float(np.mean([np.mean(stratum) for stratum in strata]))
        return cls._with(value, tuple(sizes), tuple(spread))

    @classmethod
    def _with(cls, value: float, sizes: tuple[int, ...], spread: tuple[float, ...]) -> Effect:
        variances = [s**2 / n for s, n in zip(spread, sizes, strict=True)]
        below = sum(v**2 / (n - 1) for v, n in zip(variances, sizes, strict=True))
        degrees = sum(variances) ** 2 / below if below else float(sum(sizes) - len(sizes))
        return cls(value, math.sqrt(sum(variances)) / len(sizes), degrees, sizes, spread)

    def interval(self, level: float) -> Interval:
        """Return the effect with its interval at a level."""
        reach = student(level, self.degrees) * self.error
        return Interval(self.value, self.value - reach, self.value + reach, "networks")

    def p_value(self, margin: float) -> float:
        """Return the two-sided p-value of the effect being equal to the margin."""
        if not self.error:
            return float(self.value == margin)
        return float(2 * scipy.special.stdtr(self.degrees, -abs(self.value - margin) / self.error))

    def needed(self, margin: float, level: float) -> int | None:
        """Return how many networks in each stratum would decide if the mean and the spread stayed what they are.

        None if more than 1,000 would be needed.
        """
        low, high = max(2, min(self.sizes)), _MANY
        if not self._with(self.value, (high,) * len(self.sizes), self.spread)._decides(margin, level):
            return None
        while low < high:
            middle = (low + high) // 2
            if self._with(self.value, (middle,) * len(self.sizes), self.spread)._decides(margin, level):
                high = middle
            else:
                low = middle + 1
        return low

    def _decides(self, margin: float, level: float) -> bool:
        return abs(self.value - margin) > student(level, self.degrees) * self.error


@dataclass(frozen=True)
class Judgement:
    """The verdict on one claim.

    Attributes:
        verdict: `supported` if the interval lies on the claimed side of the margin, `refuted` if it lies on the other,
            `inconclusive` if it contains the margin.
        effect: The effect with its interval, at `level`.
        level: The level of the interval, which accounts for the number of claims.
        p_value: The p-value of the effect being equal to the margin, not corrected.
        needed: For an inconclusive claim, how many networks in each stratum would decide; None if too many would be
            needed, or if it is decided.
    """

    verdict: Verdict
    effect: Interval
    level: float
    p_value: float
    needed: int | None = None


def judge(effects: Mapping[str, Effect], margins: Mapping[str, float], below: frozenset[str]) -> dict[str, Judgement]:
    """Return the verdict on each claim of a family, by Holm's method.

    The claim with the smallest p-value is judged at the level that accounts for all claims, the next at that for one
    claim less, and so on up to the first that is inconclusive; all others are judged at that one's level. So the
    probability of any false verdict in the family is at most 5%.

    Args:
        effects: The effect of each claim, by name.
        margins: The margin of each claim.
        below: The claims that say that an effect is below its margin. All others say that it is above.

    >>> effect = Effect.of([[0.9, 1.0, 1.1]])
    >>> judge({"one": effect}, {"one": 0.5}, below=frozenset())["one"].verdict
    'supported'
    """
    p_values = {name: effect.p_value(margins[name]) for name, effect in effects.items()}
    judged: dict[str, Judgement] = {}
    undecided_level = None
    for done, name in enumerate(sorted(effects, key=lambda name: p_values[name])):
        level = undecided_level or 1 - _ERROR / (len(effects) - done)
        one = _judged(effects[name], margins[name], name in below, level, p_values[name])
        if one.verdict == "inconclusive" and undecided_level is None:
            undecided_level = level
        judged[name] = one
    return {name: judged[name] for name in effects}


def _judged(effect: Effect, margin: float, claims_below: bool, level: float, p_value: float) -> Judgement:
    interval = effect.interval(level)
    judgement = Judgement("inconclusive", interval, level, p_value)
    if interval.ci_low > margin:
        return replace(judgement, verdict="refuted" if claims_below else "supported")
    if interval.ci_high < margin:
        return replace(judgement, verdict="supported" if claims_below else "refuted")
    return replace(judgement, needed=effect.needed(margin, level))
