"""A random sample of the tokens of a step, of a fixed size, drawn before it is known how many tokens will come."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tangentlens.capture.batch import Batch


class TokenSample:
    """Keeps at most `max_tokens` tokens over all forward passes of a step; with None, all of them.

    Every token draws a random number, its lot, and those with the smallest lots are in the sample. A batch therefore
    keeps a token only while fewer than `max_tokens` smaller lots have been drawn. Tokens of an encoder and of a decoder
    are sampled separately: `stack` says which.
    """

    def __init__(self, max_tokens: int | None) -> None:
        self.max_tokens = max_tokens
        self._lots: dict[str, Tensor] = {}
        self._counted: list[Batch] = []

    def draw(self, batch: Batch, stack: str, seed: int) -> Batch:
        """Return the batch with only those tokens kept that are in the sample so far."""
        if self.max_tokens is None:
            return batch
        # A generator of its own: the random state of the training is not touched.
        lots = torch.rand(batch.tokens.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        smallest = self._smallest(lots[batch.keep.cpu()], stack)
        if len(smallest) < self.max_tokens:
            return replace(batch, lots=lots)
        keep = batch.keep & (lots <= smallest[-1]).to(batch.keep.device)
        return replace(batch, keep=keep, whole=False, lots=lots)

    def count(self, batch: Batch, stack: str) -> None:
        """Say that the batch is used: only then do its tokens count towards `max_tokens`."""
        if batch.lots is not None and batch not in self._counted:
            self._counted.append(batch)
            self._lots[stack] = self._smallest(batch.lots[batch.keep.cpu()], stack)

    def holds(self, batch: Batch, stack: str) -> Bool[Tensor, "n"]:
        """Return which of the batch's kept tokens are still in the sample, after all batches that came later."""
        kept = torch.ones(int(batch.keep.sum()), dtype=torch.bool, device=batch.keep.device)
        if batch.lots is None:
            return kept
        return (batch.lots[batch.keep.cpu()] <= self._lots[stack][-1]).to(kept.device)

    def _smallest(self, lots: Float[Tensor, "n"], stack: str) -> Float[Tensor, "m"]:
        return torch.cat([self._lots.get(stack, lots[:0]), lots]).sort().values[: self.max_tokens]
