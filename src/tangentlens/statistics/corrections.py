"""Corrections of p-values for the number of tests in a family, such as all sites and steps."""

from typing import Any

import numpy as np

from tangentlens.errors import InputError


def holm(p_values: Any) -> np.ndarray:
    """Return p-values corrected by Holm's method, which controls the familywise error rate.

    If all corrected p-values below 0.05 are rejected, the probability of any false rejection is at most 5%.

    Args:
        p_values: The p-values `(n,)` of a family of tests.

    Returns:
        The corrected p-values, in the same order, none above 1.

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
    """Return p-values corrected by Benjamini and Hochberg's method, which controls the false discovery rate.

    If all corrected p-values below 0.05 are rejected, at most 5% of the rejections are expected to be false.

    Args:
        p_values: The p-values `(n,)` of a family of tests.

    Returns:
        The corrected p-values, in the same order, none above 1.

    >>> benjamini_hochberg([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.04, 0.04]
    """
    p = _checked(p_values)
    order = p.argsort(kind="stable")[::-1]
    stepped = np.minimum.accumulate(p[order] * len(p) / np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = stepped.clip(max=1)
    return corrected


def _checked(p_values: Any) -> np.ndarray:
    """Return p-values as an array, or raise an error if some are not between 0 and 1."""
    p = np.asarray(p_values, dtype=float)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise InputError("p-values must be a list of numbers between 0 and 1; leave out what could not be tested")
    return p
