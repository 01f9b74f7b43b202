"""The interval of a difference that was selected because it is large."""

from __future__ import annotations

from functools import cache

import numpy as np
import scipy

from tangentlens.statistics.interval import student

# Points of the numerical integral over the estimated standard deviation; with 1 degree of freedom, the result of 2,000
# is right to five digits.
_POINTS = 2000


@cache
def student_of_selected(level: float, degrees: int, candidates: int) -> float:
    """Return Student's t for the largest of several means: the studentised maximum modulus.

    The candidate is selected by its mean alone. In normal samples the means are independent of the standard deviations,
    so that of the selected candidate is as random as any other, and only its mean is extreme. By Šidák's inequality the
    largest of dependent means is at most as extreme as that of independent ones. The number therefore holds for
    candidates of any correlation and of unequal variances. It is smaller than Bonferroni's, by far if there are few
    degrees of freedom.

    Args:
        level: The probability with which the interval of the selected candidate covers.
        degrees: The degrees of freedom of each standard deviation.
        candidates: From how many the selected one was taken.

    >>> round(student_of_selected(0.95, 1, 21), 1), round(student(1 - 0.05 / 21, 1), 1)
    (34.9, 267.4)
    """
    if candidates == 1:
        return student(level, degrees)
    u = (np.arange(_POINTS) + 0.5) / _POINTS
    spread = np.sqrt(scipy.special.chdtri(degrees, 1 - u) / degrees)

    def missed(t: float) -> float:
        return float(level - (scipy.special.erf(t * spread / np.sqrt(2)) ** candidates).mean())

    bonferroni = student(1 - (1 - level) / candidates, degrees)
    return float(scipy.optimize.brentq(missed, student(level, degrees), bonferroni))
