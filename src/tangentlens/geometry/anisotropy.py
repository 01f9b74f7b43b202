"""Anisotropy: how much of the spread lies along one direction."""

from typing import Any

from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments


def anisotropy(x: Any, center: bool = True, power: int = 2) -> float:
    """Share of the leading singular value: sigma_1^power / sum sigma^power, from 1/d (isotropic) to 1 (a line).

    Args:
        x: Rows `(n, d)`, or their `Moments`.
        center: Subtract the mean first.
        power: 2 for shares of variance, 1 for shares of standard deviation; texts differ.

    >>> anisotropy([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    0.9
    """
    if power not in (1, 2):
        raise InputError(f"power must be 1 or 2, but is {power}; 2 is the share of variance")
    values = Moments.of(x).spectrum(center=center) ** (power / 2)
    total = float(values.sum())
    if total == 0:
        raise InputError("rows must differ for anisotropy to exist, but all are equal; check the site and the mask")
    return float(values[0]) / total
