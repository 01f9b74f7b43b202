"""The lens as a callback of Lightning."""

from __future__ import annotations

from typing import Any

from torch import nn

from tangentlens.errors import InputError, MissingExtra
from tangentlens.integrations.names import prefixed, repeated
from tangentlens.lens.lens import Lens

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise MissingExtra(
        "a callback of Lightning must have Lightning, but it is not installed; pip install 'tangentlens[lightning]'"
    ) from error


class LensCallback(Callback):
    """A callback that measures the model inside a LightningModule, and logs to the Trainer's loggers.

    A training that continues from a checkpoint continues with the same numbers. A training that starts over with the
    same callback is written to a folder of its own, `RUN-2`.

    Args:
        model: The attribute of the LightningModule that is called with token ids; '' if it is the module itself.
        **settings: The settings of `Lens`, except `step` and `loss_scale`, which the Trainer provides.

    Attributes:
        lens: The lens of the present training, or of the last one.
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
        """Open the lens, with the state of the checkpoint if the training continues from one."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        scale = None if scaler is None else scaler.get_scale
        self._steps, self._losses = trainer.global_step, []
        settings = self.settings if trainer.global_step else repeated(self.settings, self._begun)
        self._begun += not trainer.global_step
        # The state comes from a checkpoint or, in a second `fit` of the same Trainer, from the lens of the first.
        state = (self._state or self.state_dict()) if trainer.global_step else {}
        self._state = {}
        step = state.get("step", trainer.global_step)
        self.lens = Lens(_inner(pl_module, self.model), step=step, loss_scale=scale, **settings)
        self.lens.load_state_dict(state.get("lens", {}))
        self.lens.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the lens's step if the optimizer has stepped, and log the scalars if the step was due."""
        self._losses.append(outputs.get("loss") if isinstance(outputs, dict) else None)
        # A step may take several batches, and with several optimizers the Trainer counts several steps for one batch.
        if self.lens is None or trainer.global_step == self._steps:
            return
        automatic = trainer.lightning_module.automatic_optimization
        # Lightning has divided each loss by the number of batches in a step, of which the last step may have fewer.
        divided = trainer.accumulate_grad_batches if automatic else 1
        n = len(self._losses)
        loss = None if any(one is None for one in self._losses) else sum(self._losses) * divided / n
        skipped = all(one is None for one in self._losses) and automatic
        self._steps, self._losses = trainer.global_step, []
        if skipped:
            self.lens.skip("the training step returned nothing")
            return
        due, step = self.lens.due(), self.lens.current
        self.lens.step(loss)
        if due and self.lens.scalars:
            # `log_dict` would repeat them on every step until the next due one.
            for logger in trainer.loggers:
                logger.log_metrics(prefixed(self.lens.scalars), step=step)

    def state_dict(self) -> dict[str, Any]:
        """Return what the lens needs to continue from a checkpoint with the same numbers."""
        return {} if self.lens is None else {"step": self.lens.current, "lens": self.lens.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until the training starts."""
        self._state = state_dict

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the lens."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the lens, so that no hooks are left on the model."""
        self._close()

    def _close(self) -> None:
        if self.lens is not None:
            self.lens.close()


def _inner(module: LightningModule, name: str) -> nn.Module:
    """Return the part of a LightningModule that is called with token ids."""
    if not name:
        return module
    inner = getattr(module, name, None)
    if not isinstance(inner, nn.Module):
        parts = ", ".join(part for part, _ in module.named_children())
        raise InputError(
            f"model must name the part of the LightningModule that is called with token ids, but {name!r} is none; "
            f"it has {parts}"
        )
    return inner
