"""Where to compute: a device by its name, or the accelerator that this machine has."""

from __future__ import annotations

import torch

from tangentlens.errors import InputError

# The name that stands for whatever this machine has.
AUTO = "auto"


def find_device(name: str = AUTO) -> torch.device:
    """Return a device by its name, or raise an error if PyTorch cannot compute on it.

    Args:
        name: Such as `cpu`, `cuda:1` or `mps`; `auto` is the accelerator of this machine, or the CPU without one.
    """
    if name == AUTO:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        name = "cpu" if accelerator is None else accelerator.type
    try:
        return (torch.ones(1, device=name) + 1).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"device must be {AUTO} or one that PyTorch can compute on here, but {name!r} is not: {error}"
        ) from error
