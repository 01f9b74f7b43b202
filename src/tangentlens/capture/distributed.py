"""TokenRows and moments of all ranks of a distributed training, brought together. With one process nothing happens."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tangentlens.alignment.rows import TokenRows
from tangentlens.geometry.moments import Moments


def world_size() -> int:
    """How many ranks train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first() -> bool:
    """Whether this is the rank that measures and writes."""
    return world_size() == 1 or dist.get_rank() == 0


def device_of(model: nn.Module) -> torch.device:
    """Where a model is, and so where its ranks exchange numbers: a backend may know one kind of device only."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def gathered_rows(rows: TokenRows | None, device: torch.device) -> TokenRows | None:
    """The rows of all ranks on the first one, in the order of ranks; others get their own back. None if none has any.

    Each rank's loss is a mean over its own tokens, and the ranks' gradients are averaged: so a gradient is divided by
    the number of ranks, as it is in the update.
    """
    world = world_size()
    if world == 1:
        return rows
    width = _width(None if rows is None else rows.activations, device)
    if width == 0:
        return None
    rows = TokenRows.none(width, device) if rows is None else rows
    # Sequences of later ranks are numbered on from those of earlier ones.
    numbers = of_all_ranks(int(rows.sequences.max()) + 1 if len(rows.sequences) else 0, device)
    sequences = rows.sequences + sum(numbers[: dist.get_rank()])
    return TokenRows(
        activations=_gathered(rows.activations.float()),
        gradients=_gathered(rows.gradients.float() / world),
        sequences=_gathered(sequences),
        tokens=_gathered(rows.tokens),
        targets=_gathered(rows.targets),
    )


def gathered(rows: Tensor | None, device: torch.device) -> Tensor | None:
    """A matrix's rows of all ranks on the first one; others get their own back. None if none has any."""
    if world_size() == 1:
        return rows
    width = _width(rows, device)
    if width == 0:
        return None
    return _gathered(torch.empty(0, width, device=device) if rows is None else rows.float())


def _width(rows: Tensor | None, device: torch.device) -> int:
    """Of the rows, on ranks that have none too: a block may be dropped at random on some ranks and not on others."""
    return max(of_all_ranks(0 if rows is None else rows.shape[1], device))


def _gathered(rows: Tensor) -> Tensor:
    sizes = of_all_ranks(len(rows), rows.device)
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in sizes] if is_first() else None
    dist.gather(padded, parts)
    return rows if parts is None else torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def summed(moments: Moments | None, device: torch.device) -> Moments | None:
    """The moments of all ranks together, on every rank. None if none has any."""
    if world_size() == 1:
        return moments
    width = max(of_all_ranks(0 if moments is None else moments.dim, device))
    if width == 0:
        return None
    moments = Moments(width, device=device) if moments is None else moments
    found = Moments(width, device=device)
    found.count = sum(of_all_ranks(moments.count, device))
    found.mean = moments.mean * (moments.count / max(found.count, 1))
    dist.all_reduce(found.mean)
    gap = moments.mean - found.mean
    found.scatter = moments.scatter + moments.count * torch.outer(gap, gap)
    dist.all_reduce(found.scatter)
    return found


def of_all_ranks(number: int, device: torch.device) -> list[int]:
    """A number of each rank."""
    return [int(one) for one in _of_all_ranks(torch.tensor([number], device=device))]


def mean_of_all_ranks(number: float | None, device: torch.device) -> float | None:
    """The mean over the ranks that have the number."""
    if world_size() == 1:
        return number
    pair = torch.tensor([0.0, 0.0] if number is None else [number, 1.0], device=device)
    total = torch.stack(_of_all_ranks(pair)).double().sum(dim=0)
    return float(total[0] / total[1]) if total[1] else None


def _of_all_ranks(value: Tensor) -> list[Tensor]:
    if world_size() == 1:
        return [value]
    found = [torch.empty_like(value) for _ in range(world_size())]
    dist.all_gather(found, value)
    return found
