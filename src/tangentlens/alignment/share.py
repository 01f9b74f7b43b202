"""The share family: which part of the gradient's energy, or of its anisotropy, lies in a subspace."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.leading import leading_vectors
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.subspace import Subspace

# The orders that are reported, and what each is the share of.
ORDERS = {1.0: "energy", 2.0: "anisotropy", math.inf: "leading direction"}
# Frequency bins and charts have few tokens each, and no reliable leading direction.
BINNED_ORDERS = (1.0, 2.0)


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
    check_order(order)
    return float(moment_shares(moment, {"q": q}, (order,))[0, 0])


def moment_shares(
    moment: Float[Tensor, "d d"],
    subspaces: Mapping[str, Subspace],
    orders: Sequence[float],
    start: Float[Tensor, "d c"] | None = None,
) -> Float[Tensor, "subspaces orders"]:
    """Every share of every order from one product with all bases. Orders 1, 2 and inf need no eigendecomposition.

    Args:
        moment: Second moment of the gradients.
        subspaces: Whose shares.
        orders: Of the shares.
        start: Leading eigenvectors of a moment close by, to find this one's sooner.
    """
    check_gradients(moment)
    # Squares of very small or large moments would vanish or overflow.
    moment = moment / moment.trace()
    bases = torch.cat([q.basis for q in subspaces.values()], dim=1)
    image = moment @ bases

    def taken(order: float) -> Tensor:
        if order == 1:
            return (bases * image).sum(dim=0)
        if order == 2:
            return image.square().sum(dim=0) / moment.square().sum()
        if order == math.inf:
            return (leading_vectors(moment, 1, start).T @ bases).square()[0]
        return (bases * (spectral_power(moment, order) @ bases)).sum(dim=0)

    columns = torch.stack([taken(order) for order in orders], dim=1)
    return torch.stack([part.sum(dim=0) for part in columns.split([q.rank for q in subspaces.values()])])


def replicate_shares(
    totals: Float[Tensor, "replicates d d"],
    subspaces: Mapping[str, Subspace],
    orders: Sequence[float],
    start: Float[Tensor, "d c"] | None = None,
) -> dict[str, Float[Tensor, "replicates orders"]]:
    """`moment_shares` of several moments that differ little, as those of `leave_one_out` do, by subspace."""
    found = torch.stack([moment_shares(total, subspaces, orders, start) for total in totals])
    return dict(zip(subspaces, found.unbind(dim=1), strict=True))


def spectral_power(moment: Float[Tensor, "d d"], order: float) -> Float[Tensor, "d d"]:
    """The moment with every eigenvalue lambda_k replaced by lambda_k^order / sum lambda^order."""
    if order == 1:
        return moment / moment.trace()
    if order == 2:
        unit = moment / moment.trace()
        return unit @ unit / unit.square().sum()
    if order == math.inf:
        leader = leading_vectors(moment, 1)
        return leader @ leader.T
    values, vectors = torch.linalg.eigh(moment)
    weights = (values.clamp_min(0) / values[-1]) ** order
    return vectors * (weights / weights.sum()) @ vectors.T


def check_gradients(moment: Float[Tensor, "d d"]) -> None:
    """Refuse the moment of gradients that are all zero."""
    if float(moment.trace()) <= 0:
        raise InputError("the gradients must not all be zero, but they are; check that this site is in the loss")


def check_order(order: float) -> None:
    """Refuse an order that has no share."""
    if not order > 0:
        raise InputError(f"order must be above 0, but is {order}; 1 is energy, 2 anisotropy, math.inf the leader")
