"""The share family: what part of the gradients' energy, or of their anisotropy, lies in a subspace."""

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

# The orders that are reported, and the quantity of which each one is a share.
ORDERS = {1.0: "energy", 2.0: "anisotropy", math.inf: "leading direction"}
# Frequency bins and charts have few tokens each, too few to estimate a leading direction reliably.
BINNED_ORDERS = (1.0, 2.0)


def share(gradients: Any, q: Subspace, order: float = 1) -> float:
    """Return the share of the gradients in a subspace, between 0 and 1.

    It is sum_k lambda_k^order |Q^T v_k|^2 / sum_k lambda_k^order, over the eigenvalues lambda_k and eigenvectors v_k of
    the second moment of the gradients.

    At order 2 the noise of a finite sample draws this number towards r / d, because a sum of squares contains the
    squares of the noise; at order inf it turns the leading direction. `tangent_test`, which knows the sequences, has no
    such bias at order 2 (docs/measures/alignment.md, 'Order 2').

    Args:
        gradients: Rows `(n, d)`, or their `Moments`.
        q: The subspace of R^d, with basis Q.
        order: 1 for the share of the energy, 2 for that of the anisotropy, `math.inf` for the leading direction's.

    >>> gradients = [[2.0, 0.0], [0.0, 1.0]]
    >>> axis = Subspace.span([[1.0, 0.0]])
    >>> [round(share(gradients, axis, order), 3) for order in (1, 2, math.inf)]
    [0.8, 0.941, 1.0]
    """
    moment = Moments.of(gradients).second_moment()
    if q.dim != len(moment):
        raise InputError(
            f"the subspace must lie in the space of the gradients, R^{len(moment)}, but lies in R^{q.dim}; use the "
            "same site"
        )
    check_order(order)
    return float(moment_shares(moment, {"q": q}, (order,))[0, 0])


def moment_shares(
    moment: Float[Tensor, "d d"],
    subspaces: Mapping[str, Subspace],
    orders: Sequence[float],
    start: Float[Tensor, "d c"] | None = None,
) -> Float[Tensor, "subspaces orders"]:
    """Return the share of every subspace at every order.

    All shares come from one product with all bases. Orders 1, 2 and inf need no full eigendecomposition. These are the
    shares of this very moment: as estimates for other gradients, those of order 2 and inf are biased by noise. Where
    groups of sequences are known, `GroupMoments.shares` has no such bias at order 2.

    Args:
        moment: The second moment of the gradients, `(d, d)`.
        subspaces: The subspaces by name.
        orders: The orders of the shares.
        start: Leading eigenvectors of a similar moment, `(d, c)`, to find those of this one faster.
    """
    check_gradients(moment)
    # Without this, the squares of very small or large moments would underflow or overflow.
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
    totals: Float[Tensor, "replicates d d"], subspaces: Mapping[str, Subspace], orders: Sequence[float]
) -> dict[str, Float[Tensor, "replicates orders"]]:
    """Return `moment_shares` of several similar moments, such as those of `leave_one_out`, by name of the subspace.

    Their order 2 is biased by noise; `GroupMoments.shares` is not.

    Args:
        totals: The second moments of the replicates.
        subspaces: The subspaces by name.
        orders: The orders of the shares.
    """
    shares = torch.stack([moment_shares(total, subspaces, orders) for total in totals])
    return dict(zip(subspaces, shares.unbind(dim=1), strict=True))


def spectral_power(moment: Float[Tensor, "d d"], order: float) -> Float[Tensor, "d d"]:
    """Return the moment with every eigenvalue lambda_k replaced by lambda_k^order / sum_j lambda_j^order."""
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
    """Raise if the second moment is that of gradients that are all zero."""
    if float(moment.trace()) <= 0:
        raise InputError("the gradients must not all be zero, but they are; check that this site is in the loss")


def check_order(order: float) -> None:
    """Raise if there is no share of this order."""
    if not order > 0:
        raise InputError(
            f"order must be above 0, but is {order}; choose 1 (energy), 2 (anisotropy) or math.inf (leading direction)"
        )
