"""Clusters of rows: k-means, and the rows far from each other that it starts from."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.geometry.rows import unit_scale


def far_apart(rows: Float[Tensor, "n d"], k: int, seed: int) -> Float[Tensor, "k d"]:
    """Rows far from each other (k-means++): each is drawn in proportion to its squared distance from those drawn.

    The first is drawn in proportion to its squared length.
    """
    generator = torch.Generator().manual_seed(seed)
    far = rows.square().sum(dim=1)
    chosen = []
    for _ in range(k):
        weights = far.double().cumsum(dim=0)
        draw = torch.rand((), generator=generator, dtype=torch.float64).to(weights.device) * weights[-1]
        row = rows[torch.searchsorted(weights, draw).clamp_max(len(rows) - 1)]
        chosen.append(row)
        far = far.minimum((rows - row).square().sum(dim=1))
    return torch.stack(chosen)


def k_means(rows: Float[Tensor, "n d"], k: int, seed: int = 0, max_iter: int = 50) -> Int[Tensor, "n"]:
    """The cluster of each row; Lloyd's steps until no row moves. A cluster may end up empty.

    >>> k_means(torch.tensor([[0.0], [0.1], [9.0], [9.1]]), k=2).unique(return_counts=True)[1].tolist()
    [2, 2]
    """
    rows = rows - rows.mean(dim=0)
    rows = rows / unit_scale(rows)
    centers = far_apart(rows, k, seed)
    label = torch.full((len(rows),), -1, device=rows.device)
    for _ in range(max_iter):
        # |x|^2 is the same for all centers.
        moved = (centers.square().sum(dim=1) - 2 * rows @ centers.T).argmin(dim=1)
        if torch.equal(moved, label):
            break
        label = moved
        count = label.bincount(minlength=k)
        sums = torch.zeros_like(centers).index_add_(0, label, rows)
        centers = torch.where(count[:, None] > 0, sums / count.clamp_min(1)[:, None], centers)
    return label
