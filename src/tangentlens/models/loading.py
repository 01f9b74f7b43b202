"""How a model is loaded: where to, in which format, and with which tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any

from tangentlens.errors import InputError, MissingExtra, check_name
from tangentlens.models.device import AUTO, find_device

# Formats of weights by their names in PyTorch; `auto` is that of the checkpoint.
DTYPES = (AUTO, "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Loading:
    """How a model is loaded.

    Attributes:
        device: Where to compute; `auto` is the accelerator of this machine, or the CPU without one.
        dtype: The format of the weights; `auto` is that of the checkpoint or, on the CPU, float32.
        device_map: `auto` spreads a model that is larger than the device over all devices, memory and disk.
        tokenizer: A directory or hub id of the tokenizer; None for the model's own.
        trust_remote_code: Whether to run code that a model's repository contains.
    """

    device: str = AUTO
    dtype: str = AUTO
    device_map: str | None = None
    tokenizer: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        check_name("dtype", self.dtype, DTYPES)
        if self.device != AUTO:
            find_device(self.device)
        if self.device_map is not None:
            self._check_device_map()

    def _check_device_map(self) -> None:
        if self.device_map != AUTO:
            raise InputError(f"device_map must be {AUTO}, but is {self.device_map!r}; device names a single one")
        if self.device != AUTO:
            raise InputError(
                f"a device map chooses the devices itself, but device is {self.device!r}; leave one of them out"
            )
        if not has_accelerate():
            raise MissingExtra(
                "a device map must have accelerate to spread a model, but it is not installed; "
                "pip install 'tangentlens[trainer]' installs it"
            )

    @property
    def format(self) -> str:
        """The name of the format to load weights in; `auto` is that of the checkpoint."""
        # Most CPUs multiply in bf16 and fp16 tens of times more slowly than in float32.
        on_cpu = self.device_map is None and find_device(self.device).type == "cpu"
        return "float32" if self.dtype == AUTO and on_cpu else self.dtype

    @classmethod
    def of(cls, plan: Any) -> Loading:
        """Return the settings of a plan that has some of these."""
        names = [field.name for field in fields(cls) if hasattr(plan, field.name)]
        return cls(**{name: getattr(plan, name) for name in names})


def has_accelerate() -> bool:
    """Return whether accelerate is installed, with which transformers puts weights straight onto a device."""
    return find_spec("accelerate") is not None
