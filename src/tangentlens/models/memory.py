"""How much memory is free, so that a model that does not fit is not loaded; and whether memory ran out."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from tangentlens.errors import InputError
from tangentlens.models.device import find_device

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_GIB = 2**30
_RAN_OUT = ("can't allocate memory", "not enough memory", "out of memory")


def free_memory(device: str | torch.device = "cpu") -> int | None:
    """Return how many bytes are free on a device, or None where that cannot be known.

    Args:
        device: Where a model would be put.
    """
    device = find_device(str(device))
    look = getattr(torch.get_device_module(device), "mem_get_info", None)
    if look is not None:
        return int(look(device)[0])
    # What has no memory of its own, as an Apple GPU, uses that of the machine.
    known = [free for free in (_free_here(), _left_in_container()) if free is not None]
    return min(known, default=None)


def check_fits(name: str, model: nn.Module, device: torch.device, copies: int = 1) -> None:
    """Raise if the weights of a model are larger than the memory that is free.

    Args:
        name: What the error calls the model.
        model: The model without its weights, on the meta device.
        device: Where it would be put.
        copies: How many models of this size must fit.
    """
    needed = copies * sum(weight.nbytes for weight in model.parameters())
    free = free_memory(device)
    if free is not None and needed > free:
        count = sum(weight.numel() for weight in model.parameters())
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        times = "" if copies == 1 else f", {copies} times"
        raise InputError(
            f"{name} must fit into memory, but its {count / 1e9:.3g} billion weights in {dtype}{times} need "
            f"{needed / _GIB:.1f} GiB, and {free / _GIB:.1f} GiB are free on {device}; use dtype=bfloat16, another "
            "device, or, for profile and visibility, device_map=auto"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on any device."""
    # The allocator of the CPU raises a plain RuntimeError, in words that depend on the system.
    said = isinstance(error, RuntimeError) and any(words in str(error) for words in _RAN_OUT)
    return said or isinstance(error, MemoryError | torch.OutOfMemoryError)


def _free_here() -> int | None:
    """Return what Linux calls available; elsewhere all memory of the machine."""
    try:
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _left_in_container() -> int | None:
    """Return what the limit of a container leaves; None without one."""
    try:
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):
        return None
    return max(0, limit - used)
