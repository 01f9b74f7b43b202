"""Training on a flatter distribution of tokens: three ways to change it, of which one leaves every sentence whole."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from tangentlens.corpora.counts import TokenCounts
from tangentlens.corpora.relabel import Relabelling
from tangentlens.errors import InputError, check_name
from tangentlens.statistics.influence import effective_number

# Sequences are drawn again, targets get weights, or tokens get new labels.
WAYS = ("resampled", "reweighted", "relabelled")


@dataclass(frozen=True, eq=False)
class Tempered:
    """What a network is trained on if token frequencies p are to become p^alpha.

    Attributes:
        sequences: The sequences to train on, `(n, length)`.
        counts: The token counts of these sequences.
        vocabulary: The number of token types, or of labels.
        entropy: The entropy in nats of the distribution that the loss sees: how far the change went.
        weights: The weight of each type as a target, if targets are weighted.
        labels: The labels in place of types, if there are any.
    """

    sequences: Int[Tensor, "n length"]
    counts: Int[Tensor, "vocabulary"]
    vocabulary: int
    entropy: float
    weights: Float[Tensor, "vocabulary"] | None = None
    labels: Relabelling | None = None

    def read(self, sequences: Int[Tensor, "m length"]) -> Int[Tensor, "m length"]:
        """Return sequences of the text as the network reads them."""
        return sequences if self.labels is None else self.labels.apply(sequences, seed=1)


def tempered(
    way: str, alpha: float, sequences: Int[Tensor, "n length"], vocabulary: int, batch: int, seed: int = 0
) -> Tempered:
    """Return what to train on.

    Args:
        way: One of `WAYS`.
        alpha: The power of token frequencies: 1 keeps them, 0 makes all types equally frequent.
        sequences: The sequences of the text, `(n, length)`.
        vocabulary: The number of token types.
        batch: The number of sequences in a step, which must be left in effect.
        seed: The seed of draws.
    """
    check_name("a way to temper", way, WAYS)
    counts = TokenCounts.of([sequences], vocabulary)
    if way == "relabelled":
        labels = Relabelling.of(counts, alpha)
        read = labels.apply(sequences, seed)
        found = TokenCounts.of([read], labels.size).counts
        return Tempered(read, found, labels.size, entropy(found), labels=labels)
    if way == "reweighted":
        weights = counts.loss_weights(alpha)
        _check_left(effective_number(weights[sequences].flatten()), batch * sequences.shape[1], "tokens", alpha)
        return Tempered(sequences, counts.counts, vocabulary, entropy(weights * counts.counts), weights=weights.float())
    drawn = counts.draw_sequences(sequences, len(sequences), alpha, seed)
    _check_left(effective_number(drawn.bincount().double()), batch, "sequences", alpha)
    found = TokenCounts.of([sequences[drawn]], vocabulary).counts
    return Tempered(sequences[drawn], found, vocabulary, entropy(found))


def entropy(counts: Float[Tensor, "v"] | Int[Tensor, "v"]) -> float:
    """Return the entropy, in nats, of a distribution that is proportional to counts."""
    return float(torch.special.entr(counts.double() / counts.sum()).sum())


def weighted_loss(
    logits: Float[Tensor, "n length v"], labels: Int[Tensor, "n length"], weights: Float[Tensor, "v"]
) -> Float[Tensor, ""]:
    """Return the weighted mean of the losses of each next token."""
    scores, targets = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return functional.cross_entropy(scores, targets, weight=weights.to(scores))


def _check_left(left: float, least: int, what: str, alpha: float) -> None:
    """Raise if a few sequences or tokens have nearly all the weight."""
    if left < least:
        raise InputError(
            f"tempering must leave at least {least} {what} in effect, those of one step, but alpha {alpha:g} leaves "
            f"{left:.3g}, because a few rare types have nearly all the weight; use a longer text or a larger alpha"
        )
