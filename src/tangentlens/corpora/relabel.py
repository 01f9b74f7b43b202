"""New labels for the tokens of a text, by which token frequencies change and the text does not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.corpora.counts import TokenCounts
from tangentlens.errors import InputError, check_whole

# Ends of types on the line of labels are rounded to so many decimals, so that a sum of ones ends at a whole number.
_DECIMALS = 9


@dataclass(frozen=True, eq=False)
class Relabelling:
    """Labels in place of token types: a frequent type has several, and rare types share one.

    Types lie one after the other on a line, the most frequent one first, and each unit of the line is a label. An
    occurrence of a type gets the label at a random place of the type. So labels are distributed more evenly than types,
    and every sentence stays as it is.

    Attributes:
        start: Where each type begins on the line.
        length: How long each type is: the number of labels that it is worth.
        first: The first label that the type reaches.
        last: The last one.
        part_of_first: The part of the tokens with the first label that are of the type.
        part_of_last: The part of those with the last label. All tokens with labels between the two are of the type.
        size: The number of labels, that of the types.
    """

    start: Float[Tensor, "vocabulary"]
    length: Float[Tensor, "vocabulary"]
    first: Int[Tensor, "vocabulary"]
    last: Int[Tensor, "vocabulary"]
    part_of_first: Float[Tensor, "vocabulary"]
    part_of_last: Float[Tensor, "vocabulary"]
    size: int

    @classmethod
    def of(cls, counts: TokenCounts, alpha: float) -> Relabelling:
        """Return labels such that those of a type of count n have counts proportional to n^alpha.

        A type is worth a number of labels that is proportional to n^(1 - alpha). One that does not occur keeps a label
        of its own.

        Args:
            counts: The counts of the types.
            alpha: 1 leaves the types as they are; 0 makes all labels equally frequent.

        >>> labels = Relabelling.of(TokenCounts(torch.tensor([6, 1, 1])), alpha=0.0)
        >>> labels.first.tolist(), labels.last.tolist(), labels.part_of_last.tolist()
        ([0, 2, 2], [2, 2, 2], [0.25, 0.375, 0.375])
        """
        if not 0 <= alpha <= 1:
            raise InputError(f"alpha must be from 0 to 1 for labels, but is {alpha!r}; 0 makes them equally frequent")
        order = counts.most_frequent(len(counts.counts))
        n = counts.counts[order].double()
        worth = n ** (1 - alpha)
        absent = (counts.counts == 0).nonzero()[:, 0]
        order, n = torch.cat([order, absent]), torch.cat([n, torch.ones(len(absent), dtype=torch.float64)])
        length = torch.cat([worth * len(worth) / worth.sum(), torch.ones(len(absent), dtype=torch.float64)])
        end = length.cumsum(dim=0).round(decimals=_DECIMALS)
        start = torch.cat([end.new_zeros(1), end[:-1]])
        first = start.floor().long()
        last = torch.maximum(end.ceil().long() - 1, first)
        # Tokens of a type lie evenly on its part of the line.
        density = n / length
        in_first = (torch.minimum(first + 1.0, end) - start) * density
        in_last = (end - torch.maximum(last.double(), start)) * density
        totals = torch.zeros(len(n), dtype=torch.float64).index_add_(0, first, in_first)
        totals.index_add_(0, last, in_last.where(last > first, 0.0))
        return cls(
            start=_by_id(start, order),
            length=_by_id(length, order),
            first=_by_id(first, order),
            last=_by_id(last, order),
            part_of_first=_by_id(in_first / totals[first], order),
            part_of_last=_by_id(in_last / totals[last], order),
            size=len(n),
        )

    def apply(self, tokens: Int[Tensor, "*shape"], seed: int) -> Int[Tensor, "*shape"]:
        """Return labels of tokens, drawn at random among those of their types."""
        check_whole(0, seed=seed)
        drawn = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        labels = (self.start[tokens] + drawn * self.length[tokens]).floor().long()
        return torch.minimum(torch.maximum(labels, self.first[tokens]), self.last[tokens])

    def log_probabilities(self, logits: Float[Tensor, "n labels"], tokens: Int[Tensor, "n"]) -> Float[Tensor, "n"]:
        """Return the log-probability of tokens, given scores of labels.

        A type has the probability of its labels together, each times the type's part of it. So the loss of a network
        that predicts labels can be compared with that of one that predicts types.

        Args:
            logits: The scores of all labels, `(n, labels)`.
            tokens: The types that came, `(n,)`.
        """
        of_label = logits.double().softmax(dim=1)
        sums = of_label.cumsum(dim=1)
        first, last, part_of_first, part_of_last = (
            values.to(logits.device)[tokens, None]
            for values in (self.first, self.last, self.part_of_first, self.part_of_last)
        )
        at_first, at_last = of_label.gather(1, first), of_label.gather(1, last)
        between = sums.gather(1, last) - at_last - sums.gather(1, first)
        beyond_first = (between + at_last * part_of_last).where(last > first, 0.0)
        held = (at_first * part_of_first + beyond_first)[:, 0]
        return held.clamp_min(torch.finfo(torch.float64).tiny).log()

    def loss(self, logits: Float[Tensor, "m length labels"], sequences: Int[Tensor, "m length"]) -> float:
        """Return the loss of each next token of sequences of the text, in nats per token of the text.

        Args:
            logits: The scores that a network gives, after it has read the labels of the sequences.
            sequences: The sequences as they are in the text.
        """
        scores, targets = logits[:, :-1].flatten(0, 1), sequences[:, 1:].flatten().to(logits.device)
        return -float(self.log_probabilities(scores, targets).mean())


def _by_id(values: Tensor, order: Int[Tensor, "t"]) -> Tensor:
    """Return values by token id, given those of the ids in `order`."""
    return torch.empty_like(values).index_copy_(0, order, values)
