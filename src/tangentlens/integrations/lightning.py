"""The lens as a callback of Lightning."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from tangentlens.errors import InputError
from tangentlens.integrations.names import prefixed, repeated
from tangentlens.lens.lens import Lens


class LensCallback(Callback):
    """Watches the model inside a LightningModule, and tells the Trainer's loggers.

    A training that goes on from a checkpoint goes on with the same numbers. One that begins anew with the same callback
    is written into a folder of its own, `RUN-2`.

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
        self._begun = 0
        self._state: dict[str, Any] = {}
        self._steps = 0
        self._losses: list[Any] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the lens on."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        scale = None if scaler is None else scaler.get_scale
        self._steps, self._losses = trainer.global_step, []
        settings = self.settings if trainer.global_step else repeated(self.settings, self._begun)
        self._begun += not trainer.global_step
        # What a checkpoint brought, or a second `fit` of the same Trainer finds here.
        state = (self._state or self.state_dict()) if trainer.global_step else {}
        self._state = {}
        step = state.get("step", trainer.global_step)
        self.lens = Lens(_inner(pl_module, self.model), step=step, loss_scale=scale, **settings)
        self.lens.load_state_dict(state.get("lens", {}))
        self.lens.__enter__()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After an optimizer step, however many batches it took: measure if it is due, and log."""
        self._losses.append(outputs.get("loss") if isinstance(outputs, dict) else None)
        # Several batches may make a step, and several optimizers count several steps a batch.
        if self.lens is None or trainer.global_step == self._steps:
            return
        # Lightning divides losses by the number of batches in a step.
        loss = None if any(one is None for one in self._losses) else sum(self._losses)
        skipped = all(one is None for one in self._losses) and trainer.lightning_module.automatic_optimization
        self._steps, self._losses = trainer.global_step, []
        if skipped:
            self.lens.skip("the training step returned nothing")
            return
        due = self.lens.due()
        self.lens.step(loss)
        if due and self.lens.scalars:
            # `log_dict` would repeat them on every step until the next due one.
            for logger in trainer.loggers:
                logger.log_metrics(prefixed(self.lens.scalars), step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """What the lens needs to go on from a checkpoint with the same numbers."""
        return {} if self.lens is None else {"step": self.lens.current, "lens": self.lens.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Kept until the training starts."""
        self._state = state_dict

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
