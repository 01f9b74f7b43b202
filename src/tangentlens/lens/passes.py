"""The forward passes of a training: how many tokens they had, and whether there was one at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tangentlens.capture.batch import count_tokens, named_arguments
from tangentlens.capture.device import device_of
from tangentlens.capture.distributed import of_all_ranks


class Passes:
    """Counts the tokens that a model is trained on.

    Args:
        model: The model.
        before: The number of tokens that it had been trained on before.
    """

    def __init__(self, model: nn.Module, before: int) -> None:
        self.model = model
        self.before = before
        self._here: int | Tensor = 0
        self._ran = False
        self._hook: RemovableHandle | None = None

    @property
    def are_watched(self) -> bool:
        """Whether passes are counted at the moment."""
        return self._hook is not None

    def watch(self) -> None:
        """Count from now on."""
        self._hook = self.model.register_forward_pre_hook(self._count, with_kwargs=True)

    def leave(self) -> None:
        """Count no longer."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def tokens(self) -> int:
        """Return the number of tokens that all ranks have trained the model on; every rank must call this."""
        return self.before + sum(of_all_ranks(int(self._here), device_of(self.model)))

    def came(self) -> bool:
        """Return whether the model ran since this was asked last."""
        came, self._ran = self._ran, False
        return came

    def _count(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            self._ran = True
            if model.training:
                # The sum stays on the device, so that no step has to wait for it.
                self._here = self._here + count_tokens(named_arguments(model, args, kwargs))
