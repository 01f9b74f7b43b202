"""Another concept extractor: the least Gaussian directions, by independent component analysis (ICA)."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.principal import SPARE, Principal

_MAX_ITER, _TOLERANCE = 100, 1e-3
# The expectation of log cosh of a standard normal variable: the contrast is the distance from it.
_GAUSSIAN = 0.374567


def ica(x: Any, rank: int, seed: int = 0) -> Subspace:
    """Return the span of the `rank` least Gaussian independent components of the rows.

    FastICA with symmetric orthogonalisation and the log cosh contrast is run on the whitened `rank` + 16 leading
    principal directions. The subspace is spanned by the mixing directions of the components that are farthest from
    Gaussian.

    Args:
        x: Rows `(n, d)`, or their `Principal`.
        rank: Rank of the subspace.
        seed: Seed of the initial directions.

    >>> axes = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.9], [0.0, -0.9], [0.0, 0.0], [0.0, 0.0]])
    >>> ica(axes, rank=1)
    Subspace(rank=1, dim=2)
    """
    principal = Principal.of(x)
    principal.check_rank(rank)
    directions, points = principal.leading(rank + SPARE)
    deviations = points.square().mean(dim=0).sqrt()
    used = deviations > 0
    white = points[:, used] / deviations[used]
    unmixing = _independent_directions(white, seed)
    contrast = (_log_cosh(white @ unmixing.T).mean(dim=0) - _GAUSSIAN).abs()
    chosen = unmixing[contrast.argsort(descending=True)[:rank]].double()
    mixing = chosen @ (directions * deviations)[:, used].double().T
    return Subspace.span(torch.nn.functional.normalize(mixing, dim=1), rank=min(rank, int(used.sum())))


def _independent_directions(white: Float[Tensor, "n m"], seed: int) -> Float[Tensor, "m m"]:
    """Return the unmixing directions of FastICA: fixed-point steps, each followed by the nearest orthogonal matrix."""
    n, m = white.shape
    make = torch.Generator().manual_seed(seed)
    unmixing = _rotation(torch.randn(m, m, generator=make, dtype=torch.float64).to(white))
    for _ in range(_MAX_ITER):
        slope = (white @ unmixing.T).tanh()
        curvature = 1 - slope.square().mean(dim=0)
        moved = _rotation(slope.T @ white / n - curvature[:, None] * unmixing)
        turned = (1 - (moved * unmixing).sum(dim=1).abs()).amax()
        unmixing = moved
        if float(turned) < _TOLERANCE:
            break
    return unmixing


def _rotation(matrix: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
    """Return the orthogonal matrix that is nearest to a matrix."""
    left, _, right = torch.linalg.svd(matrix)
    return left @ right


def _log_cosh(x: Tensor) -> Tensor:
    """Return log cosh x, in a form that does not overflow."""
    return torch.nn.functional.softplus(-2 * x.abs()) + x.abs() - 0.6931472
