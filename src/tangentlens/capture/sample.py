"""A random sample of the tokens of a step, of a fixed size, drawn before it is known how many tokens will come."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tangentlens.capture.batch import Batch

# Larger than the bits of any number below 1.
_LARGEST = 2**62


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
        """Return the batch with only those tokens kept that are in the sample so far, and with positions to store."""
        if self.max_tokens is not None:
            # A generator of its own: the random state of the training is not touched. Not every device has fp64, but
            # the bits of numbers from 0 to 1, as whole numbers, are in the same order.
            lots = torch.rand(batch.tokens.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            lots = lots.view(torch.int64).to(batch.keep.device, non_blocking=True)
            smallest = self._smallest(lots, batch.keep, stack)
            batch = replace(batch, lots=lots)
            if len(smallest) == self.max_tokens:
                batch = replace(batch, keep=batch.keep & (lots <= smallest[-1]), whole=False)
        return replace(batch, stored=self._stored(batch, stack))

    def count(self, batch: Batch, stack: str) -> None:
        """Say that the batch is used: only then do its tokens count towards `max_tokens`."""
        if batch.lots is not None and batch not in self._counted:
            self._counted.append(batch)
            self._lots[stack] = self._smallest(batch.lots, batch.keep, stack)

    def holds(self, batch: Batch, stack: str) -> Bool[Tensor, "n"]:
        """Return which of the batch's stored tokens are still in the sample, after all batches that came later."""
        held = batch.keep if batch.lots is None else batch.keep & (batch.lots <= self._lots[stack][-1])
        return batch.at_stored(held)

    def _smallest(self, lots: Int[Tensor, "b l"], keep: Bool[Tensor, "b l"], stack: str) -> Int[Tensor, "m"]:
        """Return the smallest lots so far; a token that does not count has the largest of all."""
        new = lots.where(keep, _LARGEST).flatten()
        return torch.cat([self._lots.get(stack, new[:0]), new]).sort().values[: self.max_tokens]

    def _stored(self, batch: Batch, stack: str) -> Int[Tensor, "n"] | None:
        """Return the positions whose rows are copied; None for all of them.

        A GPU does not know how many tokens count without making the host wait. It therefore stores all positions or,
        if they are more, the `max_tokens` ones with the smallest lots. Only when the sample is full does it wait, once
        for each further pass: these add few tokens each.
        """
        most, keep = self.max_tokens, batch.keep.flatten()
        if batch.whole:
            return None
        if keep.device.type == "cpu" or len(self._lots.get(stack, ())) == most:
            return keep.nonzero()[:, 0]
        if most is None or len(keep) <= most or batch.lots is None:
            return None
        return batch.lots.where(batch.keep, _LARGEST).flatten().topk(most, largest=False).indices.sort().values
