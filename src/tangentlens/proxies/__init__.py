"""Subspaces fitted to activations: the tangent proxy and its rivals, one file each.

A new one is a file with a function `(rows, rank, seed) -> Subspace` and a line in `PROXIES`. None may see a gradient.
`Principal` may stand for the rows, so that all share one eigendecomposition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tangentlens.errors import InputError
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.covariance import covariance
from tangentlens.proxies.ica import ica
from tangentlens.proxies.kmeans import kmeans
from tangentlens.proxies.pca import pca
from tangentlens.proxies.principal import Principal
from tangentlens.proxies.semi_nmf import semi_nmf
from tangentlens.proxies.shuffled import shuffled
from tangentlens.proxies.tail import tail

Fit = Callable[[Any, int, int], Subspace]


@dataclass(frozen=True)
class Proxy:
    """A way to fit a subspace to activations.

    Attributes:
        fit: Takes rows `(n, d)` or their `Principal`, a rank and a seed.
        label: What it is, in a few words, for legends.
        drawn: Whether it is a random draw; as a control it is then drawn several times, and the mean share counts.
    """

    fit: Fit
    label: str
    drawn: bool = False


PROXIES = {
    "semi_nmf": Proxy(semi_nmf, "span of semi-NMF concepts"),
    "pca": Proxy(pca, "top-variance directions"),
    "covariance": Proxy(covariance, "draws with the activations' covariance", drawn=True),
    "tail": Proxy(tail, "bottom-variance directions"),
    "kmeans": Proxy(kmeans, "span of k-means centres"),
    "ica": Proxy(ica, "independent components"),
    "shuffled": Proxy(shuffled, "semi-NMF of shuffled columns"),
}
DEFAULT = "semi_nmf"
# Controls that are never drawn, because their mean share is known in closed form.
CLOSED_FORM = {
    "normal": "random directions orthogonal to the proxy",
    "random": "random directions, r/d",
    "permuted": "the proxy with its coordinates permuted",
}


def named_proxy(proxy: str | Fit) -> tuple[str, Fit]:
    """Return the name and the fitting function of a proxy that is given by its name or as a function.

    A function of the user's own is called with plain rows, and what it returns is checked.

    >>> named_proxy("pca")[0]
    'pca'
    """
    if isinstance(proxy, str) and proxy in PROXIES:
        return proxy, PROXIES[proxy].fit
    if isinstance(proxy, str) or not callable(proxy):
        raise InputError(
            f"proxy must be one of {', '.join(PROXIES)}, or a function (rows, rank, seed) -> Subspace, but is {proxy!r}"
        )

    def fit(x: Any, rank: int, seed: int = 0) -> Subspace:
        # A copy, because a function of somebody else's may change what it is given.
        rows = (x.rows if isinstance(x, Principal) else x).clone()
        subspace = proxy(rows, rank, seed)
        if not isinstance(subspace, Subspace) or subspace.dim != rows.shape[1] or not 1 <= subspace.rank <= rank:
            raise InputError(
                f"the proxy {name} must return a Subspace of R^{rows.shape[1]} of rank 1 to {rank}, but returned "
                f"{subspace!r}; Subspace.span(vectors, rank=rank) makes one"
            )
        return subspace

    # A functools.partial has the name of its function.
    named = getattr(proxy, "func", proxy)
    name = getattr(named, "__name__", type(named).__name__)
    if name in PROXIES or name in CLOSED_FORM:
        raise InputError(f"a proxy of your own must have a name of its own, but {name!r} is taken; rename the function")
    return name, fit
