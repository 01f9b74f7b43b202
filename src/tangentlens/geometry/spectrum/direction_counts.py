"""Effective ranks: how many directions the rows use, by each of the definitions in use.

lambda are the eigenvalues of the covariance, and sigma = sqrt(lambda) the singular values of the rows. The literature
uses both under the same names, so each convention has a name of its own here.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments


def participation_ratio(x: Any, center: bool = True) -> float:
    """Return the participation ratio (sum lambda)^2 / sum lambda^2, from 1 (a line) to d (isotropic).

    Args:
        x: Rows `(n, d)`, or their `Moments`.
        center: Whether to subtract the mean first.

    >>> participation_ratio([[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0], [0.0, -3.0]])
    2.0
    """
    # Traces of the covariance and of its square cost less than its spectrum.
    moments = Moments.of(x)
    matrix = moments.covariance() if center else moments.second_moment()
    _check_differ(float(matrix.trace()))
    return float(matrix.trace() ** 2 / matrix.square().sum())


def effective_rank(x: Any, center: bool = True) -> float:
    """Return exp of the entropy of sigma / sum sigma (Roy and Vetterli 2007), from 1 (a line) to d (isotropic).

    Args:
        x: Rows `(n, d)`, or their `Moments`.
        center: Whether to subtract the mean first.

    >>> round(effective_rank([[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0], [0.0, -3.0]]), 6)
    2.0
    """
    return _exp_entropy(_spectrum(x, center).sqrt())


def entropy_rank(x: Any, center: bool = True) -> float:
    """Return exp of the entropy of lambda / sum lambda, from 1 (a line) to d (isotropic).

    It is `effective_rank` with eigenvalues in place of singular values.

    Args:
        x: Rows `(n, d)`, or their `Moments`.
        center: Whether to subtract the mean first.

    >>> round(entropy_rank([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), 3)  # lambda / sum lambda is 0.9 and 0.1
    1.384
    """
    return _exp_entropy(_spectrum(x, center))


def rankme(x: Any) -> float:
    """Return RankMe (Garrido et al. 2023), the `effective_rank` of uncentred rows.

    Args:
        x: Rows `(n, d)`, or their `Moments`.

    >>> round(rankme([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), 3)  # sigma / sum sigma is 0.75 and 0.25
    1.755
    """
    return effective_rank(x, center=False)


def stable_rank(x: Any, center: bool = True) -> float:
    """Return sum sigma^2 / sigma_1^2, from 1 (a line) to d (isotropic); it is the reciprocal of `anisotropy`.

    Args:
        x: Rows `(n, d)`, or their `Moments`.
        center: Whether to subtract the mean first.

    >>> round(stable_rank([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), 3)
    1.111
    """
    values = _spectrum(x, center)
    return float(values.sum() / values[0])


def isoscore(x: Any) -> float:
    """Return IsoScore (Rudman et al. 2022), from 0 (a line) to 1 (isotropic).

    Its definition, by the distance of the normalised eigenvalues from a diagonal, is equal to
    (participation ratio - 1) / (d - 1).

    Args:
        x: Rows `(n, d)` of at least 2 features, or their `Moments`.

    >>> isoscore([[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0], [0.0, -3.0]])
    1.0
    """
    moments = Moments.of(x)
    if moments.dim < 2:
        raise InputError(f"IsoScore needs at least 2 features, but {moments.dim} came")
    return (participation_ratio(moments) - 1) / (moments.dim - 1)


def _spectrum(x: Any, center: bool) -> Float[Tensor, "d"]:
    """Return the eigenvalues lambda, descending; raise an error if all are 0."""
    values = Moments.of(x).spectrum(center=center)
    _check_differ(float(values[0]))
    return values


def _check_differ(spread: float) -> None:
    """Raise an error if the rows have no variance."""
    if spread == 0:
        raise InputError("rows must differ for a rank to exist, but all are equal; check the site and the mask")


def _exp_entropy(weights: Float[Tensor, "d"]) -> float:
    """Return exp of the entropy of the weights, normalised to sum to 1."""
    shares = weights / weights.sum()
    return float(torch.special.entr(shares).sum().exp())
