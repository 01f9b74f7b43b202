"""Rows that depend on each other through shared neighbours, in groups, and the error that leaves one group out."""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import stats
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from tangentlens.geometry.interval import Interval

N_GROUPS = 64


def linked_groups(neighbour: Int[Tensor, "n"], n_groups: int = N_GROUPS) -> Int[Tensor, "n"]:
    """Groups of about equal size that keep rows together which are linked by steps to the nearest neighbour.

    >>> linked_groups(torch.tensor([1, 0, 3, 2]), n_groups=2).tolist()
    [0, 0, 1, 1]
    """
    n = len(neighbour)
    links = coo_matrix((np.ones(n), (np.arange(n), neighbour.cpu().numpy())), shape=(n, n))
    _, component = connected_components(links, directed=False)
    # Dealt out from the largest on, so that no group gets much more than another.
    place = np.argsort(np.argsort(-np.bincount(component), kind="stable"), kind="stable")
    return torch.from_numpy(place[component] % n_groups).to(neighbour.device)


def compact_groups(rows: Float[Tensor, "n d"], size: int, n_groups: int = N_GROUPS) -> Int[Tensor, "n"]:
    """Groups made of compact cells of about `size` rows, so that most neighbours share one.

    Cells are halves of halves, cut at medians, and dealt out at random: a group of cells from one region would differ
    from the next by more than chance.

    >>> compact_groups(torch.tensor([[0.0], [5.0], [1.0], [6.0]]), size=2).unique(return_counts=True)[1].tolist()
    [2, 2]
    """
    pieces = [torch.arange(len(rows), device=rows.device)]
    while len(rows) >= 2 * len(pieces) * size:
        halves = []
        for piece in pieces:
            # The coordinate that spreads most.
            axis = int(rows[piece].var(dim=0, correction=0).argmax())
            order = piece[rows[piece, axis].argsort(stable=True)]
            halves += [order[: len(order) // 2], order[len(order) // 2 :]]
        pieces = halves
    group = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    dealt = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0)) % n_groups
    for number, piece in zip(dealt.tolist(), pieces, strict=True):
        group[piece] = number
    return group


def jackknife_reach(estimate: Callable[[Tensor], float], group: Int[Tensor, "n"]) -> float:
    """Half the 95% interval of `estimate`, a function of which rows count, by leaving out one group at a time."""
    labels = group.unique().tolist()
    if len(labels) < 2:
        return math.inf
    values = np.array([estimate(group != label) for label in labels])
    if not np.isfinite(values).all():
        return math.inf
    error = math.sqrt((len(values) - 1) / len(values) * float(((values - values.mean()) ** 2).sum()))
    return error * float(stats.t.ppf(0.975, len(values) - 1))


def mean_over_anchors(values: Float[Tensor, "n"], group: Int[Tensor, "n"]) -> Interval:
    """The mean of a number of each anchor."""
    return over_anchors(lambda mask: float(values[mask].mean()), group)


def ratio_over_anchors(above: Float[Tensor, "n"], below: Float[Tensor, "n"], group: Int[Tensor, "n"]) -> Interval:
    """The sum of one number of each anchor over the sum of another."""
    return over_anchors(lambda mask: float(above[mask].sum() / below[mask].sum()), group)


def over_anchors(estimate: Callable[[Tensor], float], group: Int[Tensor, "n"]) -> Interval:
    """An estimate that is a function of which anchors count, with its jackknife interval."""
    value, reach = estimate(torch.ones_like(group).bool()), jackknife_reach(estimate, group)
    return Interval(value, value - reach, value + reach, over="anchors")
