"""The forward passes of a training: how many tokens they had, and whether there was one at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tangentlens.capture.batch import count_tokens, named_arguments
from tangentlens.capture.device import device_of
from tangentlens.capture.distributed import of_all_ranks
from tangentlens.errors import InputError


class Passes:
    """Counts the tokens that a model is trained on.

    Args:
        model: The model.
        before: The number of tokens that it had been trained on before; None if that is not known yet.
    """

    def __init__(self, model: nn.Module, before: int | None) -> None:
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
        device = device_of(self.model)
        # The first rank is the one that reads the run.
        return of_all_ranks(self.before or 0, device)[0] + sum(of_all_ranks(int(self._here), device))

    def check_watched(self, name: str) -> None:
        """Raise if the lens's method `name` is called before the lens is open."""
        if not self.are_watched:
            raise InputError(
                f"lens.{name}() must be called inside `with Lens(...) as lens:` or after `lens.start()`, but is not; "
                "open the lens first"
            )

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
