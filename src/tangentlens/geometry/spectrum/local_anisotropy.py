"""Local anisotropy: whether the rows inside a cluster are as anisotropic as all rows together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.clusters import k_means
from tangentlens.geometry.rows import as_rows, product
from tangentlens.geometry.spectrum.anisotropy import anisotropy


@dataclass(frozen=True)
class LocalAnisotropy:
    """Mean anisotropy inside clusters, and a baseline: few rows alone have a high anisotropy.

    Attributes:
        value: Mean anisotropy inside the clusters, weighted by their numbers of rows.
        matched: The same for random groups of the same sizes.
        n_clusters: How many clusters have an anisotropy, because their rows are not all equal.
    """

    value: float
    matched: float
    n_clusters: int

    def __repr__(self) -> str:
        return f"LocalAnisotropy({self.value:.3g} in {self.n_clusters} clusters, {self.matched:.3g} at random)"


def local_anisotropy(x: Any, n_clusters: int = 16, seed: int = 0) -> LocalAnisotropy:
    """Return the mean anisotropy inside the clusters of k-means, and that of random groups of the same sizes.

    Rows that are globally anisotropic but locally isotropic have a `value` well below `matched`. Clusters whose rows
    are all equal have no anisotropy and are left out.

    Args:
        x: Rows `(n, d)`.
        n_clusters: Number of clusters, at most half the number of rows.
        seed: Seed of the clusters and of the random groups.
    """
    rows = as_rows(x, least=2)
    if not 1 <= n_clusters <= len(rows) // 2:
        raise InputError(
            f"n_clusters must be between 1 and half the number of rows, {len(rows) // 2}, but is {n_clusters}"
        )
    label = k_means(rows, n_clusters, seed)
    mixed = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).to(rows.device)
    inside, used = _mean_anisotropy(rows, label)
    if not used:
        raise InputError("rows must differ inside clusters, but none do; pass more distinct rows or fewer clusters")
    return LocalAnisotropy(inside, _mean_anisotropy(rows, label[mixed])[0], used)


def _anisotropy(rows: Float[Tensor, "n d"]) -> float:
    """Return `anisotropy` from the smaller of X^T X and X X^T: clusters often have fewer rows than features."""
    if len(rows) > rows.shape[1]:
        return anisotropy(rows)
    gram = product((rows - rows.mean(dim=0)).T)
    return float(torch.linalg.eigvalsh(gram)[-1] / gram.trace())


def _mean_anisotropy(rows: Float[Tensor, "n d"], label: Int[Tensor, "n"]) -> tuple[float, int]:
    """Return the mean anisotropy of groups, weighted by their numbers of rows, and how many groups have one."""
    total, weight, used = 0.0, 0, 0
    for group in label.unique().tolist():
        members = rows[label == group]
        if not (members == members[0]).all():
            total += len(members) * _anisotropy(members)
            weight += len(members)
            used += 1
    return total / max(weight, 1), used
