"""Frequency bins, to compare shares between frequent and rare tokens."""

from __future__ import annotations

import hashlib
import warnings
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
    """A bin for every token type, such that each bin holds about the same number of tokens of the corpus.

    The bins of frequent types therefore hold few types.

    Attributes:
        bin_of: The bin of each token id: 0 for the rarest types, `n_bins` - 1 for the most frequent, -1 for types that
            were never counted.
        n_bins: The number of bins.
    """

    bin_of: Int[Tensor, "vocabulary"]
    n_bins: int

    @classmethod
    def of(cls, counts: Any, n_bins: int = N_BINS) -> FrequencyBins:
        """Return bins of about equal token mass.

        Args:
            counts: The number of occurrences of each token id, `(vocabulary,)`.
            n_bins: The number of bins.

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

    @property
    def sha256(self) -> str:
        """Return a fingerprint of the bins."""
        return hashlib.sha256(str(self.bin_of.tolist()).encode()).hexdigest()

    def assign(self, tokens: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """Return the bin of each token; -1 for ids outside the vocabulary, such as -100, 'no target'."""
        known = (tokens >= 0) & (tokens < len(self.bin_of))
        bins = self.bin_of.to(tokens.device)[tokens.where(known, 0)]
        return bins.where(known, -1)

    def warn_of_unknown(self, tokens: Int[Tensor, "n"]) -> None:
        """Warn if there are token ids for which nothing can have been counted: they are in no bin."""
        if bool((tokens >= len(self.bin_of)).any()):
            # The same words each time, so that Python shows them once.
            warnings.warn(
                f"token ids must be below the length of the token counts, {len(self.bin_of)}, but some are not, and "
                "these tokens are in no frequency bin; count the corpus with the tokenizer of the model",
                stacklevel=2,
            )


def checked_counts(given: Any) -> Tensor:
    """Return token counts as a tensor `(vocabulary,)`, or raise if they are not at least 0 or all 0."""
    counts = as_numbers("token counts", given)
    if counts.ndim != 1 or not bool((counts >= 0).all()):
        raise InputError(
            f"token counts must be a number of at least 0 for each token id, but their shape is {tuple(counts.shape)}"
            + ("" if counts.ndim != 1 else " and some are negative or NaN")
            + "; count a corpus first"
        )
    if not bool(counts.any()):
        raise InputError("token counts must not all be zero, but they are; count a corpus first")
    return counts
