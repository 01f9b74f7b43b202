"""Training objectives: the batch of a step, determined by a seed and the number of the step alone."""

import torch
from jaxtyping import Int
from torch import Tensor

from tangentlens.models.small import Kind

IGNORED = -100


def draw(
    sequences: Int[Tensor, "n length"], size: int, seed: int, step: int
) -> tuple[Int[Tensor, "size length"], torch.Generator]:
    """Return the sequences of a step, drawn at random, and the generator for whatever else the step draws.

    Both depend on the seed and the step alone, so a training that continues sees the same batches.

    Args:
        sequences: The sequences to draw from, `(n, length)`.
        size: The number of sequences in a batch.
        seed: The seed of the training.
        step: The number of the step.
    """
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
    return sequences[torch.randperm(len(sequences), generator=generator)[:size]], generator


def draw_in_epochs(
    sequences: Int[Tensor, "n length"], size: int, seed: int, step: int
) -> tuple[Int[Tensor, "size length"], torch.Generator]:
    """Return the sequences of a step as `draw` does, but each sequence once before any comes again.

    An epoch has n / size steps, rounded down; a few sequences, others in each epoch, are left out of it.

    Args:
        sequences: The sequences to draw from, `(n, length)`.
        size: The number of sequences in a batch.
        seed: The seed of the training.
        step: The number of the step.
    """
    epoch, place = divmod(step, len(sequences) // size)
    order = torch.randperm(len(sequences), generator=torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63))
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
    return sequences[order[place * size : (place + 1) * size]], generator


def causal_batch(sequences: Int[Tensor, "n length"]) -> dict[str, Tensor]:
    """Return a batch in which each next token is to be predicted."""
    return {"input_ids": sequences, "labels": sequences}


def batch_for(
    kind: Kind, sequences: Int[Tensor, "n length"], mask: int, rate: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return a batch for a kind of model: causal for a decoder, masked for an encoder.

    Args:
        kind: The kind of model.
        sequences: The sequences of the step, `(n, length)`.
        mask: The id of the mask token.
        rate: The fraction of tokens to mask.
        generator: The source of the mask.
    """
    return causal_batch(sequences) if kind == "decoder" else masked_batch(sequences, mask, rate, generator)


def masked_batch(
    sequences: Int[Tensor, "n length"], mask: int, rate: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return a batch in which a fraction `rate` of the tokens is replaced by `mask` and is to be predicted.

    Args:
        sequences: The sequences of the step, `(n, length)`.
        mask: The id of the mask token.
        rate: The probability of a token to be masked.
        generator: The source of the mask.
    """
    hidden = torch.rand(sequences.shape, generator=generator) < rate
    return {"input_ids": sequences.masked_fill(hidden, mask), "labels": sequences.masked_fill(~hidden, IGNORED)}
