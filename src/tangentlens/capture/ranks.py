"""Rows and moments of all ranks of a distributed training, brought together. With one process nothing happens."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from tangentlens.capture.hooks import Rows
from tangentlens.geometry.moments import Moments


def world_size() -> int:
    """How many ranks train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first() -> bool:
    """Whether this is the rank that measures and writes."""
    return world_size() == 1 or dist.get_rank() == 0


def gathered_rows(rows: Rows) -> Rows:
    """The rows of all ranks on the first one, in the order of ranks; others get their own back.

    Each rank's loss is a mean over its own tokens, and the ranks' gradients are averaged: so a gradient is divided by
    the number of ranks, as it is in the update.
    """
    world = world_size()
    if world == 1:
        return rows
    # Sequences of later ranks are numbered on from those of earlier ones.
    numbers = of_all_ranks(int(rows.sequences.max()) + 1 if len(rows.sequences) else 0, rows.sequences.device)
    sequences = rows.sequences + sum(numbers[: dist.get_rank()])
    return Rows(
        activations=gathered(rows.activations),
        gradients=gathered(rows.gradients.float() / world),
        sequences=gathered(sequences),
        tokens=gathered(rows.tokens),
        targets=gathered(rows.targets),
    )


def gathered(rows: Tensor) -> Tensor:
    """A tensor's rows of all ranks on the first one; others get their own back."""
    world = world_size()
    if world == 1:
        return rows
    sizes = of_all_ranks(len(rows), rows.device)
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in range(world)] if is_first() else None
    dist.gather(padded, parts)
    return rows if parts is None else torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def summed(moments: Moments) -> Moments:
    """The moments of all ranks together, on every rank."""
    if world_size() == 1:
        return moments
    found = Moments(moments.dim, device=moments.mean.device)
    found.count = sum(of_all_ranks(moments.count, moments.mean.device))
    found.mean = moments.mean * (moments.count / max(found.count, 1))
    dist.all_reduce(found.mean)
    gap = moments.mean - found.mean
    found.scatter = moments.scatter + moments.count * torch.outer(gap, gap)
    dist.all_reduce(found.scatter)
    return found


def of_all_ranks(number: int, device: torch.device | None = None) -> list[int]:
    """A number of each rank."""
    if world_size() == 1:
        return [number]
    found = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(world_size())]
    dist.all_gather(found, torch.tensor([number], device=device))
    return [int(one) for one in found]
