"""Subspaces fitted to activations: the tangent proxy and its rivals, one file each.

A new one is a file with a function `(rows, rank, seed) -> Subspace` and a line in `PROXIES`. None may see a gradient.
"""

from collections.abc import Callable

from torch import Tensor

from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.pca import pca
from tangentlens.proxies.semi_nmf import semi_nmf

PROXIES: dict[str, Callable[[Tensor, int, int], Subspace]] = {
    "semi_nmf": semi_nmf,
    "pca": pca,
}
