"""K-means clustering of rows, and the k-means++ draw that it starts from."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.geometry.rows import unit_scale


def far_apart(rows: Float[Tensor, "n d"], k: int, seed: int) -> Float[Tensor, "k d"]:
    """Return `k` rows that lie far from each other, drawn by k-means++.

    Each row is drawn with a probability proportional to its squared distance from the nearest row drawn before; the
    first, with one proportional to its squared length.

    Args:
        rows: Rows `(n, d)`, usually centred.
        k: How many rows to draw.
        seed: Seed of the draw.
    """
    generator = torch.Generator().manual_seed(seed)
    squares = rows.square().sum(dim=1)
    chosen = []
    for _ in range(k):
        weights = squares.double().cumsum(dim=0)
        draw = torch.rand((), generator=generator, dtype=torch.float64).to(weights.device) * weights[-1]
        row = rows[torch.searchsorted(weights, draw).clamp_max(len(rows) - 1)]
        chosen.append(row)
        squares = squares.minimum((rows - row).square().sum(dim=1))
    return torch.stack(chosen)


def k_means(rows: Float[Tensor, "n d"], k: int, seed: int = 0, max_iter: int = 50) -> Int[Tensor, "n"]:
    """Return the cluster (0 ... k - 1) of each row, by Lloyd's algorithm from a k-means++ start.

    A cluster may end up empty.

    Args:
        rows: Rows `(n, d)`.
        k: Number of clusters.
        seed: Seed of the start.
        max_iter: Largest number of steps; the algorithm stops earlier when no row changes its cluster.

    >>> k_means(torch.tensor([[0.0], [0.1], [9.0], [9.1]]), k=2).unique(return_counts=True)[1].tolist()
    [2, 2]
    """
    rows = rows - rows.mean(dim=0)
    rows = rows / unit_scale(rows)
    centers = far_apart(rows, k, seed)
    label = torch.full((len(rows),), -1, device=rows.device)
    for _ in range(max_iter):
        # Squared distances to the centers, without |x|^2: it is the same for all centers of a row.
        closest = (centers.square().sum(dim=1) - 2 * rows @ centers.T).argmin(dim=1)
        if torch.equal(closest, label):
            break
        label = closest
        count = label.bincount(minlength=k)
        sums = torch.zeros_like(centers).index_add_(0, label, rows)
        centers = torch.where(count[:, None] > 0, sums / count.clamp_min(1)[:, None], centers)
    return label
