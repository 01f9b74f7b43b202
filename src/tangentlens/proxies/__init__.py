"""Subspaces fitted to activations: the tangent proxy and its rivals, one file each.

A new one is a file with a function `(rows, rank, seed) -> Subspace` and a line in `PROXIES`, or in `DRAWN` if it is a
random draw. None may see a gradient. `Principal` may stand for the rows, so that all share one eigendecomposition.
"""

from collections.abc import Callable
from typing import Any

from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.covariance import covariance
from tangentlens.proxies.ica import ica
from tangentlens.proxies.kmeans import kmeans
from tangentlens.proxies.pca import pca
from tangentlens.proxies.semi_nmf import semi_nmf
from tangentlens.proxies.shuffled import shuffled
from tangentlens.proxies.tail import tail

Proxy = Callable[[Any, int, int], Subspace]

# Fitted once.
PROXIES: dict[str, Proxy] = {
    "semi_nmf": semi_nmf,
    "pca": pca,
    "tail": tail,
    "kmeans": kmeans,
    "ica": ica,
    "shuffled": shuffled,
}

# Drawn many times: what counts is the mean over draws.
DRAWN: dict[str, Proxy] = {
    "covariance": covariance,
}
