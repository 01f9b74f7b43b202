"""The lens as a callback of the Hugging Face Trainer."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from tangentlens.capture.distributed import is_first
from tangentlens.errors import InputError
from tangentlens.integrations.names import prefixed, repeated
from tangentlens.lens.lens import Lens

# What the lens keeps in a checkpoint's folder.
_STATE = "tangentlens.safetensors"


class LensCallback(TrainerCallback):  # type: ignore[misc]
    """Watches a Trainer's model, and reports through the Trainer's own logging to whatever tracker it has.

    A training that goes on from a checkpoint goes on with the same numbers. One that begins anew with the same callback
    is written into a folder of its own, `RUN-2`.

    Args:
        **settings: Those of `Lens`, but for the model, `step` and `loss_scale`, which the Trainer knows.

    Attributes:
        lens: The lens of the training that runs, or of the last one.
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.lens: Lens | None = None
        self._begun = 0
        self._handler: CallbackHandler | None = None

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
        if args.torch_compile:
            raise InputError(
                "the lens must see the model's blocks, but torch_compile=True compiles it as a whole; leave it out and "
                "compile the blocks instead, each on its own: `for block in blocks: block.compile()`"
            )
        scaler = getattr(optimizer, "scaler", None)
        scale = None if scaler is None else scaler.get_scale
        settings = self.settings if state.global_step else repeated(self.settings, self._begun)
        self._begun += not state.global_step
        self.lens = Lens(model, step=state.global_step, loss_scale=scale, **settings)
        kept = _checkpoint(args, state) / _STATE
        if kept.exists():
            self.lens.load_state_dict(safetensors.torch.load_file(kept))
        elif state.global_step:
            warnings.warn(
                f"the training goes on at step {state.global_step}, but the lens kept nothing at {kept}: tokens_seen "
                "and windows begin anew; keep the checkpoint in output_dir, with that file",
                stacklevel=2,
            )
        self.lens.__enter__()
        self._handler = _handler_of(self, model)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """After an optimizer step, however many batches it took: measure if it is due, and report."""
        if self.lens is None:
            return
        due = self.lens.due()
        self.lens.step()
        if due and self.lens.scalars:
            logs = prefixed(self.lens.scalars)
            state.log_history.append({**logs, "step": state.global_step})
            if self._handler is not None:
                # Not its `on_log`, which would cancel a log of the Trainer's own that is due as well.
                self._handler.call_event("on_log", args, state, control, logs=logs)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Keep what the lens needs to go on, in the checkpoint that was just written."""
        folder = _checkpoint(args, state)
        if self.lens is not None:
            kept = {name: value.cpu().contiguous() for name, value in self.lens.state_dict().items()}
            if is_first() and folder.exists():
                safetensors.torch.save_file(kept, folder / _STATE)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Take the lens off."""
        self.close()

    def close(self) -> None:
        """Take the lens off; to be called after a training that ended in an exception."""
        if self.lens is not None:
            self.lens.__exit__(None, None, None)


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _handler_of(callback: TrainerCallback, model: nn.Module) -> CallbackHandler | None:
    """What calls the Trainer's callbacks, trackers among them. A callback is not told, so it is looked for."""
    for found in gc.get_objects():
        if type(found) is CallbackHandler and found.model is model and any(one is callback for one in found.callbacks):
            return found
    warnings.warn("the Trainer's logging was not found; numbers go to the run directory alone", stacklevel=2)
    return None
