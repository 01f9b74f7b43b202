"""Families of tests: p-values over sites and steps, corrected for how many there are."""

from typing import Any

import numpy as np
from scipy import stats

from tangentlens.errors import InputError


def holm(p_values: Any) -> np.ndarray:
    """Return p-values corrected by Holm: rejecting those below 0.05 errs anywhere in the family with probability 5%.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = _checked(p_values)
    order = p.argsort(kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = stepped.clip(max=1)
    return corrected


def benjamini_hochberg(p_values: Any) -> np.ndarray:
    """Benjamini and Hochberg's correction: of what is below 0.05, 5% are expected to be wrong.

    >>> benjamini_hochberg([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.04, 0.04]
    """
    return np.asarray(stats.false_discovery_control(_checked(p_values)))


def _checked(p_values: Any) -> np.ndarray:
    p = np.asarray(p_values, dtype=float)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise InputError("p-values must be a list of numbers between 0 and 1; leave out what could not be tested")
    return p
