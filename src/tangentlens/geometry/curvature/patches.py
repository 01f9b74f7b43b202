"""Patches: the rows around anchors, with the tangent plane of each and the coordinates of the rows in it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Candidates for each row of a patch. From these, rows are chosen by their distance within the tangent plane. If they
# were chosen by their distance in the ambient space, rows that noise or curvature moves out of the plane would be
# missing at the rim, and the patch would look flatter than it is.
CANDIDATES = 2
# Largest number of entries in the candidate rows that are held at once, 16 MiB in fp32: patches that fit into the
# processor's cache, in memory that is used again and again, take two thirds of the time of many at once.
_NUMBERS = 2**22
# Rows that are converted to fp64 at once.
_BLOCK = 2**13
# Steps of the subspace iteration for a plane, further steps from that first estimate, and spare columns: enough if the
# variance in the plane is well above the variance outside of it.
_PASSES, _FURTHER_PASSES, _SPARE = 4, 2, 8


@dataclass(frozen=True, eq=False)
class Patches:
    """The patches of some anchors. The first row of a patch is the anchor itself; the others are in no special order.

    Attributes:
        neighbours: The indices of the rows in each patch, `(a, k)`.
        rows: These rows around their weighted mean, `(a, k, d)`.
        tangents: An orthonormal basis of each tangent plane, `(a, d, m)`.
        gap: The smallest variance in each plane divided by the largest outside of it.
        coordinates: The rows relative to the anchor, in the basis of the plane, `(a, k, m)`.
        weights: The weight of each row, `(a, k)`; that of the anchor is 0.
    """

    neighbours: Int[Tensor, "a k"]
    rows: Float[Tensor, "a k d"]
    tangents: Float[Tensor, "a d m"]
    gap: Float[Tensor, "a"]
    coordinates: Float[Tensor, "a k m"]
    weights: Float[Tensor, "a k"]


def candidates(rows: Float[Tensor, "n d"], anchors: Int[Tensor, "a"], k: int) -> Int[Tensor, "a c"]:
    """Return the indices of the rows nearest to each anchor, itself first, for patches of up to `k` rows.

    Distances are computed in fp64: in fp32, all digits would cancel for rows close to each other but far from the mean.

    Args:
        rows: Rows `(n, d)`, centred.
        anchors: The indices `(a,)` of the anchors among the rows.
        k: Number of rows in the largest patch, the anchor included.
    """
    near = []
    for some in anchors.split(at_once(1, len(rows))):
        centres = rows[some].double()
        blocks = (block.double() for block in rows.split(_BLOCK))
        # Up to a constant for each anchor.
        squares = torch.cat([block.square().sum(dim=1) - 2 * centres @ block.T for block in blocks], dim=1)
        squares.scatter_(1, some[:, None], -math.inf)
        near.append(squares.topk(min(CANDIDATES * k, len(rows)), dim=1, largest=False).indices)
    return torch.cat(near)


def patches(
    rows: Float[Tensor, "n d"], near: Int[Tensor, "a c"], k: int, dimension: int, weights: Float[Tensor, "n"]
) -> Iterator[Patches]:
    """Yield the patches around anchors, a part of the anchors at a time so that memory stays bounded.

    The tangent plane is estimated by local PCA from candidates near the anchor. The patch has the `k` rows that are
    nearest to the anchor in this plane, which is then estimated again from these.

    Args:
        rows: Rows `(n, d)`, centred.
        near: The `candidates` of each anchor; those for larger patches may follow.
        k: Number of rows in a patch, the anchor included.
        dimension: Dimension m of the tangent planes.
        weights: The weight of each row `(n,)`.
    """
    d = rows.shape[1]
    start = torch.randn(d, min(dimension + _SPARE, d), generator=torch.Generator().manual_seed(0)).to(rows)
    near = near[:, : CANDIDATES * k]
    for some in near.split(at_once(near.shape[1], d)):
        itself = some[:, :1]
        anchor = rows[itself]
        cloud = rows[some].sub_(anchor)
        guess, _ = _leading(cloud, start, _PASSES)
        distance = (cloud @ guess[:, :, :dimension]).square().sum(dim=2).where(some != itself, -1)
        chosen = some.gather(1, distance.topk(k, dim=1, largest=False).indices)
        cloud = rows[chosen].sub_(anchor)
        directions, variances = _leading(cloud, guess, _FURTHER_PASSES)
        tangents, gap = directions[:, :, :dimension], variances[:, dimension - 1] / variances[:, dimension]
        coordinates, counted = cloud @ tangents, without_anchor(weights[chosen])
        yield Patches(chosen, around_mean(cloud, counted), tangents, gap, coordinates, counted)


def without_anchor(weights: Float[Tensor, "a k"]) -> Float[Tensor, "a k"]:
    """Return a copy of the weights with that of the anchor, the first row of its patch, set to 0.

    The other rows are chosen around the anchor, so it lies in their middle and is less noisy than they are.
    """
    weights = weights.clone()
    weights[:, 0] = 0
    return weights


def at_once(k: int, d: int) -> int:
    """Return how many patches of `k` rows in R^d to hold in memory at once, at least 1."""
    return max(_NUMBERS // (k * d), 1)


def around_mean(cloud: Float[Tensor, "a k d"], weights: Float[Tensor, "a k"]) -> Float[Tensor, "a k d"]:
    """Return each cloud of rows relative to its weighted mean, in place."""
    share = (weights / weights.sum(dim=1, keepdim=True)).to(cloud)
    return cloud.sub_(torch.einsum("ak,akd->ad", share, cloud)[:, None])


def _leading(
    cloud: Float[Tensor, "a k d"], block: Float[Tensor, "*a d b"], passes: int
) -> tuple[Float[Tensor, "a d b"], Float[Tensor, "a b"]]:
    """Return the leading principal directions of each cloud and their variances, by subspace iteration from `block`.

    All rows count alike, whatever their weights. A plane fitted mostly to a few heavy rows would follow their noise,
    and they would then look less curved than they are.
    """
    mean = cloud.mean(dim=1, keepdim=True)

    def along(block: Tensor) -> Tensor:
        """Return coordinates of the rows around their mean, which is subtracted where there are few numbers."""
        return cloud @ block - mean @ block

    for _ in range(passes):
        # These coordinates have the sum 0, so the mean of the rows that they are multiplied with does not count.
        block = torch.linalg.qr(cloud.transpose(1, 2) @ along(block)).Q
    inside = along(block).double()
    values, rotation = torch.linalg.eigh(inside.transpose(1, 2) @ inside)
    return block @ rotation.flip(2).to(block), values.flip(1).clamp_min(1e-300)
