"""The lens as a callback of the Hugging Face Trainer."""

from __future__ import annotations

import gc
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from tangentlens.integrations.names import prefixed
from tangentlens.lens import Lens


class LensCallback(TrainerCallback):  # type: ignore[misc]
    """Watches a Trainer's model, and reports through the Trainer's own logging to whatever tracker it has.

    Args:
        **settings: Those of `Lens`, but for the model, `step` and `loss_scale`, which the Trainer knows.

    Attributes:
        lens: The lens of the training that runs, or of the last one.
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.lens: Lens | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
        optimizer: Any,
        **_: Any,
    ) -> None:
        """Put the lens on; a training that ended in an exception has left its own, which goes."""
        self.close()
        scaler = getattr(optimizer, "scaler", None)
        scale = None if scaler is None else scaler.get_scale
        self.lens = Lens(model, step=state.global_step, loss_scale=scale, **self.settings).__enter__()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """After an optimizer step, however many batches it took: measure if it is due, and report."""
        if self.lens is None:
            return
        due = self.lens.due()
        self.lens.step()
        if due and self.lens.scalars:
            logs = prefixed(self.lens.scalars)
            state.log_history.append({**logs, "step": state.global_step})
            # Not its `on_log`, which would cancel a log of the Trainer's own that is due as well.
            _handler_of(self).call_event("on_log", args, state, control, logs=logs)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Take the lens off."""
        self.close()

    def close(self) -> None:
        """Take the lens off; to be called after a training that ended in an exception."""
        if self.lens is not None:
            self.lens.__exit__(None, None, None)


def _handler_of(callback: TrainerCallback) -> CallbackHandler:
    """What calls the Trainer's callbacks, trackers among them. A callback is not told, so it is looked for."""
    return next(
        found
        for found in gc.get_objects()
        if type(found) is CallbackHandler and any(one is callback for one in found.callbacks)
    )
