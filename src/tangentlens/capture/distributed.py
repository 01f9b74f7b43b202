"""Collective operations: rows and moments of all ranks of a distributed training. With one process they do nothing."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from tangentlens.alignment.rows import TokenRows
from tangentlens.capture.device import Devices
from tangentlens.geometry.moments import Moments


def world_size() -> int:
    """Return the number of ranks that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first() -> bool:
    """Return whether this is the first rank, which measures and writes."""
    return world_size() == 1 or dist.get_rank() == 0


def gathered_rows(rows: TokenRows | None, devices: Devices) -> TokenRows | None:
    """Return, on the first rank, the rows of all ranks in order; on other ranks, their own. None if no rank has any.

    Each rank's loss is a mean over its own tokens, and the update uses the mean gradient of the ranks. Gradients are
    therefore divided by the number of ranks, as they are in the update.

    Args:
        rows: The rows of this rank; None if it has none.
        devices: Where ranks exchange numbers, and where rows are measured.
    """
    world = world_size()
    if world == 1:
        return rows
    width = _width(None if rows is None else rows.activations, devices)
    if width == 0:
        return None
    rows = TokenRows.none(width, devices.measure) if rows is None else rows
    # Sequences get different numbers on different ranks: each rank starts after the last number of the rank before.
    numbers = of_all_ranks(int(rows.sequences.max()) + 1 if len(rows.sequences) else 0, devices.exchange)
    sequences = rows.sequences + sum(numbers[: dist.get_rank()])
    return TokenRows(
        activations=_gathered(rows.activations.float(), devices),
        gradients=_gathered(rows.gradients.float() / world, devices),
        sequences=_gathered(sequences, devices),
        tokens=_gathered(rows.tokens, devices),
        targets=_gathered(rows.targets, devices),
        positions=_gathered(rows.positions, devices),
    )


def gathered(rows: Tensor | None, devices: Devices) -> Tensor | None:
    """Return, on the first rank, the rows of all ranks in order; on other ranks, their own. None if no rank has any.

    Args:
        rows: A matrix `(n, d)` of this rank; None if it has none.
        devices: Where ranks exchange numbers, and where rows are measured.
    """
    if world_size() == 1:
        return rows
    width = _width(rows, devices)
    if width == 0:
        return None
    return _gathered(torch.empty(0, width, device=devices.measure) if rows is None else rows.float(), devices)


def _width(rows: Tensor | None, devices: Devices) -> int:
    """Return the width of the rows, also on ranks that have none; 0 if no rank has any.

    A block that is dropped at random may run on some ranks and not on others.
    """
    return max(of_all_ranks(0 if rows is None else rows.shape[1], devices.exchange))


def _gathered(rows: Tensor, devices: Devices) -> Tensor:
    """Return, on the first rank, the rows of all ranks, which may differ in number; on other ranks, their own."""
    sizes = of_all_ranks(len(rows), devices.exchange)
    padded = rows.new_zeros(max(sizes), *rows.shape[1:], device=devices.exchange)
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in sizes] if is_first() else None
    dist.gather(padded, parts)
    if parts is None:
        return rows
    return torch.cat([part[:size].to(devices.measure) for part, size in zip(parts, sizes, strict=True)])


def summed(moments: Moments | None, devices: Devices) -> Moments | None:
    """Return the moments of the rows of all ranks, on every rank; None if no rank has any."""
    if world_size() == 1:
        return moments
    width = max(of_all_ranks(0 if moments is None else moments.dim, devices.exchange))
    if width == 0:
        return None
    moments = Moments(width, device=devices.measure) if moments is None else moments
    total = Moments(width, device=devices.measure)
    total.count = sum(of_all_ranks(moments.count, devices.exchange))
    total.mean = _sum(moments.mean * (moments.count / max(total.count, 1)), devices)
    gap = moments.mean - total.mean
    total.scatter = _sum(moments.scatter + moments.count * torch.outer(gap, gap), devices)
    return total


def _sum(own: Tensor, devices: Devices) -> Tensor:
    """Return the sum of what all ranks pass."""
    total = own.to(devices.exchange, copy=True)
    dist.all_reduce(total)
    return total.to(devices.measure)


def of_all_ranks(number: int, device: torch.device) -> list[int]:
    """Return the number that each rank passes, in the order of ranks."""
    return [int(one) for one in _of_all_ranks(torch.tensor([number], device=device))]


def mean_of_all_ranks(number: float | None, device: torch.device) -> float | None:
    """Return the mean over the ranks that have the number; None if no rank has it."""
    if world_size() == 1:
        return number
    pair = torch.tensor([0.0, 0.0] if number is None else [number, 1.0], device=device)
    total = torch.stack(_of_all_ranks(pair)).double().sum(dim=0)
    return float(total[0] / total[1]) if total[1] else None


def _of_all_ranks(value: Tensor) -> list[Tensor]:
    """Return the tensor that each rank passes, all of one shape, in the order of ranks."""
    if world_size() == 1:
        return [value]
    values = [torch.empty_like(value) for _ in range(world_size())]
    dist.all_gather(values, value)
    return values
