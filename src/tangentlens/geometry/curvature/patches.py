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
# Largest number of entries in the candidate rows that are held at once: a quarter of a GiB in fp32.
_NUMBERS = 2**26
# Rows that are converted to fp64 at once.
_BLOCK = 2**13
# Steps of the subspace iteration for a plane, further steps from that first estimate, and spare columns: enough if the
# variance in the plane is well above the variance outside of it.
_PASSES, _FURTHER_PASSES, _SPARE = 4, 2, 8


@dataclass(frozen=True, eq=False)
class Patches:
    """The patches of some anchors. The rows of a patch are ordered by their distance from the anchor in the plane.

    Attributes:
        neighbours: The indices of the rows in each patch, `(a, k)`; the anchor itself is the first.
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


def patches(
    rows: Float[Tensor, "n d"],
    anchors: Int[Tensor, "a"],
    k: int,
    dimension: int,
    weights: Float[Tensor, "n"],
) -> Iterator[Patches]:
    """Yield the patches around anchors, a part of the anchors at a time so that memory stays bounded.

    The tangent plane is estimated by local PCA from candidates near the anchor. The patch has the `k` rows that are
    nearest to the anchor in this plane, which is then estimated again from these.

    Args:
        rows: Rows `(n, d)`, centred.
        anchors: The indices `(a,)` of the anchors among the rows.
        k: Number of rows in a patch, the anchor included.
        dimension: Dimension m of the tangent planes.
        weights: The weight of each row `(n,)`.
    """
    d = rows.shape[1]
    start = torch.randn(d, min(dimension + _SPARE, d), generator=torch.Generator().manual_seed(0)).to(rows)
    wide = min(CANDIDATES * k, len(rows))
    for some in anchors.split(at_once(wide, d)):
        near = _distances(rows, some).topk(wide, dim=1, largest=False).indices
        anchor = rows[some][:, None]
        cloud = rows[near].sub_(anchor)
        guess, _ = _leading(cloud, start, _PASSES)
        distance = (cloud @ guess[:, :, :dimension]).square().sum(dim=2).where(near != some[:, None], -1)
        near = near.gather(1, distance.topk(k, dim=1, largest=False).indices)
        cloud = rows[near].sub_(anchor)
        directions, variances = _leading(cloud, guess, _FURTHER_PASSES)
        tangents, gap = directions[:, :, :dimension], variances[:, dimension - 1] / variances[:, dimension]
        # The plane has turned a little, so the rows are sorted again.
        coordinates = cloud @ tangents
        order = coordinates.square().sum(dim=2).where(near != some[:, None], -1).argsort(dim=1)
        near, coordinates = near.gather(1, order), coordinates.gather(1, order[:, :, None].expand_as(coordinates))
        cloud, counted = rows[near].sub_(anchor), without_anchor(weights[near])
        yield Patches(near, around_mean(cloud, counted), tangents, gap, coordinates, counted)


def _distances(rows: Float[Tensor, "n d"], anchors: Int[Tensor, "a"]) -> Float[Tensor, "a n"]:
    """Return squared distances from anchors to all rows, up to a constant per anchor; that to itself is the smallest.

    They are computed in fp64: in fp32, all digits would cancel for rows close to each other but far from the mean.
    """
    centres = rows[anchors].double()
    blocks = (block.double() for block in rows.split(_BLOCK))
    squares = torch.cat([block.square().sum(dim=1) - 2 * centres @ block.T for block in blocks], dim=1)
    return squares.scatter_(1, anchors[:, None], -math.inf)


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
    """Return each cloud of rows relative to its weighted mean."""
    share = (weights / weights.sum(dim=1, keepdim=True)).to(cloud)
    return cloud - torch.einsum("ak,akd->ad", share, cloud)[:, None]


def _leading(
    cloud: Float[Tensor, "a k d"], block: Float[Tensor, "*a d b"], passes: int
) -> tuple[Float[Tensor, "a d b"], Float[Tensor, "a b"]]:
    """Return the leading principal directions of each cloud and their variances, by subspace iteration from `block`.

    All rows count alike, whatever their weights. A plane fitted mostly to a few heavy rows would follow their noise,
    and they would then look less curved than they are.
    """
    rows = cloud - cloud.mean(dim=1, keepdim=True)
    for _ in range(passes):
        block = torch.linalg.qr(rows.transpose(1, 2) @ (rows @ block)).Q
    inside = (rows @ block).double()
    values, rotation = torch.linalg.eigh(inside.transpose(1, 2) @ inside)
    return block @ rotation.flip(2).to(block), values.flip(1).clamp_min(1e-300)
