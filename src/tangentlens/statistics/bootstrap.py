"""The cluster bootstrap: whole sequences are drawn with replacement, because tokens of one sequence are dependent."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.statistics.interval import Interval, student


def cluster_bootstrap(
    sums: Float[Tensor, "sequences *part"], n_draws: int = 400, seed: int = 0
) -> Float[Tensor, "draws_plus_1 *part"]:
    """Return the sum over sequences, followed by sums over as many sequences drawn with replacement."""
    n = len(sums)
    make = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, n, (n_draws, n), generator=make)
    counts = (
        torch.zeros(n_draws, n, dtype=torch.float64).scatter_add_(1, drawn, torch.ones(n_draws, n).double()).to(sums)
    )
    times = torch.cat([torch.ones_like(counts[:1]), counts])
    return (times @ sums.flatten(1)).unflatten(1, sums.shape[1:])


def bootstrap_means(
    values: Float[Tensor, "n q"], sequences: Int[Tensor, "n"], seed: int
) -> tuple[Float[Tensor, "draws_plus_1 q"], int]:
    """Return means over rows, of all sequences and of each bootstrap draw, and the number of sequences."""
    _, index = sequences.unique(return_inverse=True)
    n_sequences = int(index.max()) + 1
    counted = torch.cat([values, torch.ones_like(values[:, :1])], dim=1).double()
    drawn = cluster_bootstrap(counted.new_zeros(n_sequences, counted.shape[1]).index_add_(0, index, counted), seed=seed)
    return drawn[:, :-1] / drawn[:, -1:], n_sequences


def bootstrap_interval(replicates: Float[Tensor, "draws_plus_1"], n_sequences: int, level: float = 0.95) -> Interval:
    """Return the estimate with an interval from the spread over draws; Student's t accounts for few sequences."""
    return bootstrap_intervals(replicates[None], n_sequences, level)[0]


def bootstrap_intervals(
    replicates: Float[Tensor, "estimates draws_plus_1"], n_sequences: int, level: float = 0.95
) -> list[Interval]:
    """Return `bootstrap_interval` of several estimates from the same sequences."""
    # Draws from n sequences spread too little, by the factor that divides a variance by n in place of n - 1.
    errors = replicates[:, 1:].std(dim=1) * math.sqrt(n_sequences / (n_sequences - 1))
    values, reach = replicates[:, 0], student(level, n_sequences - 1) * errors
    return [Interval(*row) for row in torch.stack([values, values - reach, values + reach], dim=1).tolist()]
