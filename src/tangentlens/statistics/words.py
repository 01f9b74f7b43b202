"""Words for a ratio: the one place where the interval of a log-ratio becomes a statement."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from tangentlens.statistics.interval import Interval

Relation = Literal["above", "below", "equivalent", "undecided", "no interval"]

# Two shares count as equivalent if the whole interval of their ratio lies within 5% of 1.
EQUIVALENT = math.log(1.05)

# What may be said of a difference, given the margin below which none matters.
DIFFERENCE: dict[Relation, str] = {
    "above": "higher",
    "below": "lower",
    "equivalent": "no difference that matters",
    "undecided": "not decided",
    "no interval": "not compared",
}

WORDS: dict[Relation, str] = {
    "above": "significantly above",
    "below": "significantly below",
    "equivalent": "within 5% of",
    "undecided": "not significantly different from",
    "no interval": "without an interval, and so not compared with",
}


def relation(log_ratio: Interval, margin: float = EQUIVALENT) -> Relation:
    """Return what the interval of a log-ratio allows to be said of the two numbers.

    'equivalent' is a result: the whole interval lies within `margin` of 0. 'undecided' is the absence of one: neither a
    difference nor equivalence could be shown. With 'no interval' there was nothing to test.

    >>> relation(Interval(0.7, 0.6, 0.8)), relation(Interval(0.01, -0.02, 0.04)), relation(Interval(0.1, -0.2, 0.4))
    ('above', 'equivalent', 'undecided')
    """
    if math.isnan(log_ratio.ci_low) or math.isnan(log_ratio.ci_high):
        return "no interval"
    if -margin < log_ratio.ci_low and log_ratio.ci_high < margin:
        return "equivalent"
    return "above" if log_ratio.ci_low > 0 else "below" if log_ratio.ci_high < 0 else "undecided"


def word(kind: Relation) -> str:
    """Return the word for a relation without what it is a relation to.

    >>> word("undecided")
    'not significantly different'
    """
    return WORDS[kind].removesuffix(" of").removesuffix(" from").removesuffix(" with")


def tally(kinds: Iterable[Relation], than: str, places: str = "sites", at: str = "at") -> str:
    """Return at how many places each relation to `than` holds; those that hold nowhere are left out.

    >>> tally(["above", "undecided", "above", "equivalent"], than="chance")
    'significantly above chance at 2 of 4 sites, within 5% of it at 1 and not significantly different from it at 1'
    """
    counts = Counter(kinds)
    told = [f"{WORDS[kind]} it {at} {counts[kind]}" for kind in WORDS if counts[kind]]
    if not told:
        return f"compared with {than} {at} no {places}"
    told[0] = told[0].replace(" it ", f" {than} ", 1) + f" of {counts.total()} {places}"
    return " and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told)


def grouped(kinds: Mapping[str, Relation], than: str) -> str:
    """Return the names for which each relation to `than` holds.

    >>> grouped({"2": "above", "4": "above", "8": "equivalent"}, than="chance at ranks")
    'significantly above chance at ranks: 2, 4; within 5% of chance at ranks: 8'
    """
    return "; ".join(
        f"{WORDS[kind]} {than}: {', '.join(name for name in kinds if kinds[name] == kind)}"
        for kind in WORDS
        if kind in kinds.values()
    )


def compare(name: str, log_ratio: Interval, p_value: float | None = None) -> str:
    """Return a ratio with its interval and what may be said of it, for a comparison with the control `name`.

    >>> compare("pca", Interval(0.7, 0.6, 0.8))
    '2.01 [1.82, 2.23] times pca (significantly above)'
    >>> compare("random", Interval(0.7, 0.6, 0.8), p_value=0.2)
    '2.01 [1.82, 2.23] times random (above its mean, but not significantly above a single draw, p = 0.2)'
    """
    return f"{log_ratio.exp()} times {name} ({verdict(log_ratio, p_value)})"


def verdict(log_ratio: Interval, p_value: float | None = None) -> str:
    """Return what may be said of a ratio, also by the p-value against single draws of a random control if there is one.

    >>> verdict(Interval(0.7, 0.6, 0.8), p_value=0.001)
    'significantly above, p = 0.001'
    """
    kind = relation(log_ratio)
    told = word(kind)
    if kind == "above" and p_value is not None and p_value >= 0.05:
        told = "above its mean, but not significantly above a single draw"
    chance = f", p = {p_value:.2g}" if p_value is not None and log_ratio.ci_low > 0 else ""
    return f"{told}{chance}"
