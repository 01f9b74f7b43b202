"""What a model is asked to predict: the batch of a step, from a seed and the step's number alone."""

import torch
from jaxtyping import Int
from torch import Tensor

from tangentlens.models.small import Kind

IGNORED = -100


def draw(
    sequences: Int[Tensor, "n length"], size: int, seed: int, step: int
) -> tuple[Int[Tensor, "size length"], torch.Generator]:
    """The sequences of a step, and the generator for whatever else it draws: the same whenever it is asked for."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
    return sequences[torch.randperm(len(sequences), generator=generator)[:size]], generator


def causal_batch(sequences: Int[Tensor, "n length"]) -> dict[str, Tensor]:
    """Predict each next token."""
    return {"input_ids": sequences, "labels": sequences}


def batch_for(
    kind: Kind, sequences: Int[Tensor, "n length"], mask: int, rate: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """What a decoder or an encoder is asked to predict."""
    return causal_batch(sequences) if kind == "decoder" else masked_batch(sequences, mask, rate, generator)


def masked_batch(
    sequences: Int[Tensor, "n length"], mask: int, rate: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """Hide a share `rate` of the tokens behind the `mask` token and predict those."""
    hidden = torch.rand(sequences.shape, generator=generator) < rate
    return {"input_ids": sequences.masked_fill(hidden, mask), "labels": sequences.masked_fill(~hidden, IGNORED)}
