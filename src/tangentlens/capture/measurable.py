"""Rows that are measured stay on their device, unless it cannot compute in fp64."""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Shaped
from torch import Tensor


def measurable(rows: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Return rows where they can be measured: on the CPU, if their device has no fp64."""
    return rows if _has_fp64(rows.device) else rows.cpu()


@cache
def _has_fp64(device: torch.device) -> bool:
    """Return whether a device computes in fp64; Apple's do not."""
    try:
        torch.ones(1, dtype=torch.float64, device=device) + 1
    except (RuntimeError, TypeError):
        return False
    return True
