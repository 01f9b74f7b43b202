"""What speaks against an estimate of the dimension: distances that follow another law, and the rounding of the rows."""

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor

# An error of the dimension by this factor makes a misfit that is not tolerated.
_TOLERATED = 1.2
# Times 1 / sqrt(n): what chance seldom exceeds, measured on clean manifolds (docs/measures/dimension.md).
_CHANCE = 1.5
# Rounding counts where it moves a row by more than this part of the distance to a neighbour ...
_MOVED = 0.25
# ... and is told if it counts for more than this share of the rows.
_ROWS = 0.1
# From coarse to fine.
_FORMATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Rows that are looked at together: few, because those in fp32 seldom pass for coarser ones beyond the first.
_BLOCK = 128


def misfit(distances: Float[Tensor, "n k"], dimension: float) -> float:
    """Return how far the ratios of distances are from the law that the model of a constant density gives them.

    With i = k / 2, (r_i / r_k)^m has a Beta(i, i) distribution at dimension m; for TwoNN that is uniform. The misfit is
    the largest difference between the empirical distribution function and this one, as of Kolmogorov and Smirnov.

    Args:
        distances: Distances `(n, k)` to the nearest neighbours, ascending; k is even.
        dimension: The dimension m.
    """
    powers = _ratios(distances).pow(dimension).cpu().numpy()
    law, n = np.sort(_law(distances.shape[1] // 2, powers)), len(powers)
    steps = np.arange(n + 1) / n
    return float(max((steps[1:] - law).max(), (law - steps[:-1]).max()))


def tolerated_misfit(n: int, k: int) -> float:
    """Return the largest misfit of `n` ratios that is tolerated: what chance or an error of 20% may make.

    >>> round(tolerated_misfit(4096, k=2), 3), round(tolerated_misfit(100, k=2), 3)
    (0.067, 0.15)
    """
    return max(_misfit_of_an_error(k // 2), _CHANCE / math.sqrt(n))


@cache
def _misfit_of_an_error(inner: int) -> float:
    """Return the distance between the laws at two dimensions that differ by the tolerated factor."""
    powers = np.linspace(0, 1, 2001)
    return float(np.abs(_law(inner, powers) - _law(inner, powers**_TOLERATED)).max())


def _law(inner: int, powers: np.ndarray) -> np.ndarray:
    return np.asarray(scipy.special.betainc(inner, inner, powers))


def _ratios(distances: Float[Tensor, "n k"]) -> Float[Tensor, "n"]:
    return distances[:, distances.shape[1] // 2 - 1] / distances[:, -1]


def doubts(rows: Float[Tensor, "n d"], distances: Float[Tensor, "n k"], off: float) -> Iterator[str]:
    """Yield what speaks against an estimate that was made of these distances.

    Args:
        rows: Rows `(n, d)`.
        distances: Distances `(n, k)` to the nearest neighbours, ascending; k is even. They may be on the CPU.
        off: Their misfit.
    """
    n, k = distances.shape
    if off > tolerated_misfit(n, k):
        yield (
            f"one dimension does not describe all rows, as ratios of distances are {off:.3f} from their law, more than "
            f"the tolerated {tolerated_misfit(n, k):.3f} (a mixture of dimensions, near duplicates, or a grid)"
        )
    held = held_by(rows)
    share = _moved(rows, distances[:, k // 2 - 1], torch.finfo(held).eps)
    if share > _ROWS:
        yield (
            f"rounding to {str(held).removeprefix('torch.')} moves {share:.0%} of the rows by more than a quarter of "
            "the distance to a neighbour (pass rows in a finer format, fewer rows, or rows around 0)"
        )


def held_by(rows: Float[Tensor, "n d"]) -> torch.dtype:
    """Return the coarsest floating-point format that holds every value exactly.

    >>> held_by(torch.tensor([[0.1, 0.2]]).bfloat16().double())
    torch.bfloat16
    """
    finest = rows.dtype

    def is_exact(part: Tensor, held: torch.dtype) -> Tensor:
        return (part.to(held).to(finest) == part).all()

    for held in _FORMATS[: _FORMATS.index(finest)]:
        # Few formats pass the first look. For each look the host waits for a GPU, so there are two at most.
        if is_exact(rows[:_BLOCK], held) and torch.stack([is_exact(part, held) for part in rows.split(_BLOCK)]).all():
            return held
    return finest


def _moved(rows: Float[Tensor, "n d"], distance: Float[Tensor, "n"], eps: float) -> float:
    """Return the share of rows that rounding moves, relative to a neighbour, by more than `_MOVED` of the distance.

    Values between two powers of two have an even spacing, eps times the lower one. Over values of all sizes, the mean
    square of the rounding error is therefore eps^2 x^2 / 24. Both ends of a difference are rounded.
    """
    lengths = torch.cat([part.double().norm(dim=1) for part in rows.split(_BLOCK)]).to(distance.device)
    return float((eps * lengths / math.sqrt(12) > _MOVED * distance).double().mean())
