"""The device on which a model is measured: its own or, if that lacks fp64 or its memory is needed, the CPU."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import nn

MeasureOn = Literal["cpu"]
CPU = torch.device("cpu")


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model. Ranks exchange numbers there, as a backend may support one kind of device only.

    Of a model that is spread over devices it is the first; weights that wait on the disk have none.
    """
    return next((parameter.device for parameter in model.parameters() if not parameter.is_meta), CPU)


class Devices(NamedTuple):
    """Where things happen.

    Attributes:
        exchange: Where ranks exchange numbers.
        measure: Where rows are moved as they are captured, and measured.
    """

    exchange: torch.device
    measure: torch.device

    @classmethod
    def of(cls, model: nn.Module, measure_on: MeasureOn | None = None) -> Devices:
        """Return the devices of a model.

        Args:
            model: The model.
            measure_on: 'cpu' to measure there in any case; by default the model's own device measures, if it has fp64.
        """
        own = device_of(model)
        return cls(own, CPU if measure_on == "cpu" or not _has_fp64(own) else own)


@cache
def _has_fp64(device: torch.device) -> bool:
    """Return whether a device computes in fp64, as moments and subspaces must; the first time, say so if not."""
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        warnings.warn(
            f"{device.type} has no fp64, in which second moments are summed, so rows are moved to the CPU and measured "
            'there; pass measure_on="cpu" to say that this is meant',
            stacklevel=2,
        )
        return False
    return True
