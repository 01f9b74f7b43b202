"""Visible curvature of manifolds whose curvature is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.geometry import manifolds
from tangentlens.geometry.curvature.local_geometry import LocalGeometry, local_geometry
from tangentlens.geometry.manifolds import Manifold
from tangentlens.runs.records import Record
from tangentlens.runs.vocabulary import ACTIVATION, ANALYTIC, derived
from tangentlens.studies.visibility.plan import ALPHAS, FELL, RATIO, VISIBLE

# Rows of a manifold, further draws of it, rows of those, and rows of a patch in those.
_ROWS, _DRAWS, _DRAW_ROWS, _DRAW_PATCH = 6000, 20, 2000, 64

SYNTHETIC: dict[str, Callable[[int, int], Manifold]] = {
    "sphere": lambda n, seed: manifolds.sphere(n, 2, 20, noise=0.005, seed=seed),
    "torus": lambda n, seed: manifolds.torus(n, 2, 20, noise=0.005, seed=seed),
    "cylinder": lambda n, seed: manifolds.cylinder(n, 2, 20, noise=0.005, seed=seed),
    "swiss roll": lambda n, seed: manifolds.swiss_roll(n, 20, noise=0.02, seed=seed),
    "quadratic": lambda n, seed: manifolds.quadratic(n, 3, 20, noise=0.005, seed=seed, bend=0.5),
}


def synthetic_records(name: str, n_anchors: int, seed: int) -> Iterator[Record]:
    """Yield the records of one manifold: types fill it evenly, and the j-th nearest to an anchor has frequency 1/j."""
    made = SYNTHETIC[name](_ROWS, seed)
    geometry = local_geometry(made.rows, n_anchors, dimension=made.dimension, seed=seed)
    about = Record(model=name, quantity=ACTIVATION, seed=seed, n=geometry.k, rank=geometry.dimension)
    yield about.estimate("rms_curvature", geometry.rms_curvature)
    for alpha in ALPHAS:
        here = replace(about, alpha=alpha)
        weights = zipf_by_distance(geometry.k, alpha).expand(len(geometry.anchors), -1)
        yield here.estimate(VISIBLE, geometry.visible(weights))
        yield here.estimate(RATIO, geometry.visible_ratio(weights))
        truth, of_even = analytic(made, geometry, alpha), analytic(made, geometry, 0)
        yield replace(here, metric=derived(ANALYTIC, VISIBLE), value=truth)
        yield replace(here, metric=derived(ANALYTIC, RATIO), value=truth / of_even)
    fell = sum(_falls(SYNTHETIC[name](_DRAW_ROWS, seed + draw), seed) for draw in range(1, _DRAWS + 1))
    yield replace(about, metric=FELL, value=fell / _DRAWS, n=_DRAWS)


def zipf_by_distance(k: int, alpha: float) -> Float[Tensor, "k"]:
    """Return weights p^alpha of types from near to far, with p falling as 1/rank."""
    return torch.arange(1, k + 1, dtype=torch.float64).pow(-alpha)


def analytic(made: Manifold, geometry: LocalGeometry, alpha: float) -> float:
    """Return the visible curvature of the true form, with types spread evenly over each patch.

    In a ball of dimension m and radius r the j-th of k nearest is at r ((j - 1/2) / k)^(1/m), in any direction.
    """
    weights = zipf_by_distance(geometry.k, alpha)
    place = (torch.arange(geometry.k, dtype=torch.float64) + 0.5) / geometry.k
    second, fourth = ((weights * place ** (power / geometry.dimension)).sum() for power in (2, 4))
    radius = geometry.coordinates[:, -1].double().norm(dim=1)
    bent = (made.curvature[geometry.anchors].square() * radius**4).sum() / 4
    return float(bent * fourth / (radius.square().sum() * second))


def _falls(made: Manifold, seed: int) -> bool:
    """Return whether the visible curvature of one draw falls with every step of alpha."""
    geometry = local_geometry(made.rows, 64, k=_DRAW_PATCH, dimension=made.dimension, seed=seed)
    seen = [geometry.visible(zipf_by_distance(geometry.k, alpha).expand(64, -1)).value for alpha in ALPHAS]
    return all(later < earlier for earlier, later in pairwise(seen))
