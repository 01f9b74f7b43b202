"""Patches: the rows around anchors, in the coordinates of the plane that they spread in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Candidates for each neighbour wanted. Rows are chosen by their distance in the plane: chosen by the distance around
# it, rows that noise or curvature moves away would be missing at the patch's rim, and it would look flatter than it is.
CANDIDATES = 2
# Numbers in the candidates of the anchors that are held at once: a quarter of a GiB in fp32.
_NUMBERS = 2**26
# Rows that are taken to fp64 at once.
_BLOCK = 2**13
# A block is multiplied so often by a patch's rows, and further times once it is nearly right, with so many spare
# columns: enough where the plane stands out.
_PASSES, _FURTHER_PASSES, _SPARE = 4, 2, 8


@dataclass(frozen=True, eq=False)
class Patches:
    """Rows around some anchors, from near to far in the plane.

    `coordinates` are in the plane and from the anchor, `rows` around their own mean; `weights` say how much each
    counts; `gap` is the least variance in the plane over the most outside of it.
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
    """Patches of the `k` rows nearest to each anchor in the plane of `dimension` directions that the rows near it span.

    Rows are around their mean. Patches come in parts, so that memory does not grow with the number of anchors.
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
        # Once more from near to far: the plane has turned a little.
        coordinates = cloud @ tangents
        order = coordinates.square().sum(dim=2).where(near != some[:, None], -1).argsort(dim=1)
        near, coordinates = near.gather(1, order), coordinates.gather(1, order[:, :, None].expand_as(coordinates))
        cloud, counted = rows[near].sub_(anchor), without_anchor(weights[near])
        yield Patches(near, around_mean(cloud, counted), tangents, gap, coordinates, counted)


def _distances(rows: Float[Tensor, "n d"], anchors: Int[Tensor, "a"]) -> Float[Tensor, "a n"]:
    """Squares of distances from anchors, up to a constant for each; to itself an anchor has the least.

    In fp64: in fp32 rows that are near each other, but far from the others, have no digits left.
    """
    centres = rows[anchors].double()
    blocks = (block.double() for block in rows.split(_BLOCK))
    found = torch.cat([block.square().sum(dim=1) - 2 * centres @ block.T for block in blocks], dim=1)
    return found.scatter_(1, anchors[:, None], -math.inf)


def without_anchor(weights: Float[Tensor, "a k"]) -> Float[Tensor, "a k"]:
    """Weights that leave the anchor out, around which rows are chosen: it lies in their middle, less noisy than they.

    It comes first of the rows of its patch.
    """
    weights = weights.clone()
    weights[:, 0] = 0
    return weights


def at_once(k: int, d: int) -> int:
    """How many patches of `k` rows to hold at once."""
    return max(_NUMBERS // (k * d), 1)


def around_mean(cloud: Float[Tensor, "a k d"], weights: Float[Tensor, "a k"]) -> Float[Tensor, "a k d"]:
    """Each cloud from its weighted mean."""
    share = (weights / weights.sum(dim=1, keepdim=True)).to(cloud)
    return cloud - torch.einsum("ak,akd->ad", share, cloud)[:, None]


def _leading(
    cloud: Float[Tensor, "a k d"], block: Float[Tensor, "*a d b"], passes: int
) -> tuple[Float[Tensor, "a d b"], Float[Tensor, "a b"]]:
    """Directions of most variance of each cloud (local PCA) and these variances, from a block of first guesses.

    All rows count alike, whatever their weights: a plane that leans towards a few of them takes their noise in, and
    they then look less curved than they are.
    """
    rows = cloud - cloud.mean(dim=1, keepdim=True)
    for _ in range(passes):
        block = torch.linalg.qr(rows.transpose(1, 2) @ (rows @ block)).Q
    inside = (rows @ block).double()
    values, turn = torch.linalg.eigh(inside.transpose(1, 2) @ inside)
    return block @ turn.flip(2).to(block), values.flip(1).clamp_min(1e-300)
