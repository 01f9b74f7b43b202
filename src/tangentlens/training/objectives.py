"""What a model is asked to predict: the batch of a step, from a seed and the step's number alone."""

import torch
from jaxtyping import Int
from torch import Tensor

Sequences = Int[Tensor, "n length"]
IGNORED = -100


def draw(sequences: Sequences, size: int, seed: int, step: int) -> tuple[Sequences, torch.Generator]:
    """The sequences of a step, and the generator for whatever else it draws: the same whenever it is asked for."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    return sequences[torch.randperm(len(sequences), generator=generator)[:size]], generator


def causal_batch(sequences: Sequences) -> dict[str, Tensor]:
    """Predict each next token."""
    return {"input_ids": sequences, "labels": sequences}


def masked_batch(sequences: Sequences, mask: int, rate: float, generator: torch.Generator) -> dict[str, Tensor]:
    """Hide a share `rate` of the tokens behind the `mask` token and predict those."""
    hidden = torch.rand(sequences.shape, generator=generator) < rate
    return {"input_ids": sequences.masked_fill(hidden, mask), "labels": sequences.masked_fill(~hidden, IGNORED)}
