"""The lens as a callback of Lightning."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from tangentlens.errors import InputError
from tangentlens.integrations.names import prefixed
from tangentlens.lens import Lens


class LensCallback(Callback):
    """Watches the model inside a LightningModule, and tells the Trainer's loggers.

    Args:
        model: The attribute of the LightningModule that is called with token ids; '' if it is the module itself.
        **settings: Those of `Lens`, but for `step` and `loss_scale`, which the Trainer knows.

    Attributes:
        lens: The lens of the training that runs, or of the last one.
    """

    def __init__(self, model: str = "model", **settings: Any) -> None:
        self.model = model
        self.settings = settings
        self.lens: Lens | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the lens on."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        scale = None if scaler is None else scaler.get_scale
        model = _inner(pl_module, self.model)
        self.lens = Lens(model, step=trainer.global_step, loss_scale=scale, **self.settings).__enter__()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After an optimizer step, however many batches it took: measure if it is due, and log."""
        # Several batches may make a step, and several optimizers count several steps a batch.
        if self.lens is None or trainer.global_step <= self.lens.current:
            return
        due = self.lens.due()
        self.lens.step(_loss(outputs))
        if due and self.lens.scalars:
            # `log_dict` would repeat them on every step until the next due one.
            for logger in trainer.loggers:
                logger.log_metrics(prefixed(self.lens.scalars), step=trainer.global_step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the lens off."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Take the lens off."""
        self._close()

    def _close(self) -> None:
        if self.lens is not None:
            self.lens.__exit__(None, None, None)


def _inner(module: LightningModule, name: str) -> nn.Module:
    if not name:
        return module
    found = getattr(module, name, None)
    if not isinstance(found, nn.Module):
        parts = ", ".join(part for part, _ in module.named_children())
        raise InputError(
            f"model must name the part of the LightningModule that is called with token ids, but {name!r} is none; "
            f"it has {parts}"
        )
    return found


def _loss(outputs: Any) -> Any:
    """The loss of the last batch, if the training step returned it as is usual."""
    return outputs.get("loss") if isinstance(outputs, dict) else None
