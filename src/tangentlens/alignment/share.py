"""The share family: which part of the gradient's energy, or of its anisotropy, lies in a subspace."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.subspace import Subspace


def share(gradients: Any, q: Subspace, order: float = 1) -> float:
    """sum_k lambda_k^order |Q^T v_k|^2 / sum_k lambda_k^order over the second moment of the gradients.

    Args:
        gradients: Rows `(n, d)`, or their `Moments`.
        q: The subspace.
        order: 1 for the energy share, 2 for the anisotropy share, `math.inf` for the leading direction's.

    >>> gradients = [[2.0, 0.0], [0.0, 1.0]]
    >>> axis = Subspace.span([[1.0, 0.0]])
    >>> [round(share(gradients, axis, order), 3) for order in (1, 2, math.inf)]
    [0.8, 0.941, 1.0]
    """
    moment = Moments.of(gradients).second_moment()
    if q.dim != len(moment):
        raise InputError(f"the subspace lies in R^{q.dim}, but the gradients in R^{len(moment)}; use the same site")
    return float(moment_share(moment, q, order))


def moment_share(moment: Float[Tensor, "d d"], q: Subspace, order: float) -> Float[Tensor, ""]:
    """`share` from the second moment itself. Orders 1 and 2 need no eigendecomposition."""
    _check(moment, order)
    if order == 1:
        return (q.basis * (moment @ q.basis)).sum() / moment.trace()
    if order == 2:
        return (moment @ q.basis).square().sum() / moment.square().sum()
    weights, vectors = weighted_spectrum(moment, order)
    return weights @ (vectors.T @ q.basis).square().sum(dim=1)


def weighted_spectrum(moment: Float[Tensor, "d d"], order: float) -> tuple[Float[Tensor, "d"], Float[Tensor, "d d"]]:
    """lambda_k^order / sum lambda^order, ascending, and the eigenvectors as columns."""
    _check(moment, order)
    values, vectors = torch.linalg.eigh(moment)
    relative = values.clamp_min(0) / values[-1]
    weights = (relative == 1).double() if order == math.inf else relative**order
    return weights / weights.sum(), vectors


def _check(moment: Tensor, order: float) -> None:
    if not order > 0:
        raise InputError(f"order must be above 0, but is {order}; 1 is energy, 2 anisotropy, math.inf the leader")
    if float(moment.trace()) <= 0:
        raise InputError("the gradients must not all be zero, but they are; check that this site is in the loss")
