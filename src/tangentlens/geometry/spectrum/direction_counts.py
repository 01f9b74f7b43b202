"""How many directions a spectrum uses, by each of the counts in use. All are functions of `Moments`.

Conventions differ between texts, so they are names here: eigenvalues lambda of the covariance, or singular values
sigma = sqrt(lambda) of the rows.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments


def participation_ratio(x: Any, center: bool = True) -> float:
    """(sum lambda)^2 / sum lambda^2, from 1 (a line) to d (isotropic).

    >>> participation_ratio([[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0], [0.0, -3.0]])
    2.0
    """
    # From traces of the covariance, which cost less than its spectrum.
    moments = Moments.of(x)
    matrix = moments.covariance() if center else moments.second_moment()
    _check_differ(float(matrix.trace()))
    return float(matrix.trace() ** 2 / matrix.square().sum())


def effective_rank(x: Any, center: bool = True) -> float:
    """Exp of the entropy of sigma / sum sigma, as Roy and Vetterli (2007) define it.

    >>> round(effective_rank([[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0], [0.0, -3.0]]), 6)
    2.0
    """
    return _exp_entropy(_spectrum(x, center).sqrt())


def entropy_rank(x: Any, center: bool = True) -> float:
    """Exp of the entropy of lambda / sum lambda: the eigenvalue convention of `effective_rank`."""
    return _exp_entropy(_spectrum(x, center))


def rankme(x: Any) -> float:
    """`effective_rank` of the rows as they are, uncentred, as Garrido et al. (2023) use it."""
    return effective_rank(x, center=False)


def stable_rank(x: Any, center: bool = True) -> float:
    """Sum sigma^2 / sigma_1^2, the reciprocal of `anisotropy`."""
    values = _spectrum(x, center)
    return float(values.sum() / values[0])


def isoscore(x: Any) -> float:
    """IsoScore of Rudman et al. (2022), from 0 (a line) to 1 (isotropic).

    Their construction, distances of normalised eigenvalues from a diagonal, comes to (participation ratio - 1)/(d - 1).
    """
    moments = Moments.of(x)
    if moments.dim < 2:
        raise InputError(f"IsoScore needs at least 2 features, but {moments.dim} came")
    return (participation_ratio(moments) - 1) / (moments.dim - 1)


def _spectrum(x: Any, center: bool) -> Float[Tensor, "d"]:
    values = Moments.of(x).spectrum(center=center)
    _check_differ(float(values[0]))
    return values


def _check_differ(spread: float) -> None:
    if spread == 0:
        raise InputError("rows must differ for a rank to exist, but all are equal; check the site and the mask")


def _exp_entropy(weights: Float[Tensor, "d"]) -> float:
    shares = weights / weights.sum()
    return float(torch.special.entr(shares).sum().exp())
