"""How much memory is free, so that a model that does not fit is not loaded."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_memory(device: str = "cpu") -> int | None:
    """Return how many bytes are free on a device, or None where that cannot be known.

    Args:
        device: Where a model would be put.
    """
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    known = [free for free in (_free_here(), _left_in_container()) if free is not None]
    return min(known, default=None)


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
