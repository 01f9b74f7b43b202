"""Frequency bins: which tokens are frequent, so that shares can be told apart by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from tangentlens.errors import InputError, check_whole
from tangentlens.geometry.rows import as_numbers

N_BINS = 4


@dataclass(frozen=True, eq=False)
class FrequencyBins:
    """A bin for every token type: bin 0 holds the rarest types, the last the most frequent; -1 if never counted.

    Each bin holds about the same number of tokens of the corpus, so the frequent bins hold few types.
    """

    bin_of: Int[Tensor, "vocabulary"]
    n_bins: int

    @classmethod
    def of(cls, counts: Any, n_bins: int = N_BINS) -> FrequencyBins:
        """Bins of equal token mass from counts by token id.

        >>> FrequencyBins.of(torch.tensor([0, 100, 50, 25, 25]), n_bins=2).bin_of.tolist()
        [-1, 1, 0, 0, 0]
        """
        check_whole(1, n_bins=n_bins)
        counts = checked_counts(counts)
        order = counts.argsort(stable=True)
        mass = counts[order].double()
        middle = (mass.cumsum(dim=0) - mass / 2) / mass.sum()
        bins = torch.empty_like(order)
        bins[order] = (middle * n_bins).long().clamp_max(n_bins - 1)
        bins[counts == 0] = -1
        return cls(bins, n_bins)

    def assign(self, tokens: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """The bin of each token; ids outside the vocabulary (such as -100, 'no target') get -1."""
        known = (tokens >= 0) & (tokens < len(self.bin_of))
        bins = self.bin_of.to(tokens.device)[tokens.where(known, 0)]
        return bins.where(known, -1)


def checked_counts(given: Any) -> Tensor:
    """A number of at least 0 for each token id, not all 0."""
    counts = as_numbers("token counts", given)
    if counts.ndim != 1 or not bool((counts >= 0).all()):
        raise InputError(
            f"token counts must be a number of at least 0 for each token id, but their shape is "
            f"{tuple(counts.shape)}" + ("" if counts.ndim != 1 else " and some are negative or NaN")
        )
    if not bool(counts.any()):
        raise InputError("token counts must not all be zero, but they are; count a corpus first")
    return counts
