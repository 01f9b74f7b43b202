"""The lens and the penalty as callbacks of the Hugging Face Trainer."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from tangentlens.capture.distributed import is_first
from tangentlens.errors import InputError, MissingExtra
from tangentlens.integrations.names import prefixed, repeated
from tangentlens.lens.lens import Lens
from tangentlens.models.loading import has_accelerate
from tangentlens.training.penalty import Penalty

if not has_accelerate():
    # Said here because a program imports its callbacks before it makes the Trainer, which says it in other words.
    raise MissingExtra(
        "a callback of the Trainer must have a Trainer, which needs accelerate, but that is not installed; "
        "pip install 'tangentlens[trainer]'"
    )

# The file in a checkpoint's folder that holds the state of the lens.
_STATE = "tangentlens.safetensors"


class LensCallback(TrainerCallback):  # type: ignore[misc]
    """A callback that measures a Trainer's model, and reports to the Trainer's trackers through its own logging.

    A training that continues from a checkpoint continues with the same numbers. A training that starts over with the
    same callback is written to a folder of its own, `RUN-2`.

    Args:
        **settings: The settings of `Lens`, except the model, `step` and `loss_scale`, which the Trainer provides.

    Attributes:
        lens: The lens of the present training, or of the last one.
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
        """Open the lens, with the state of the checkpoint if the training continues from one.

        A training that ended in an exception has left its lens open; that one is closed first.
        """
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
                f"the training continues at step {state.global_step}, but the lens has no state at {kept}: windows "
                "start over; keep the checkpoint in output_dir, with that file",
                stacklevel=2,
            )
        self.lens.start()
        self._handler = _handler_of(self, model)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """End the lens's step after an optimizer step, and report the scalars if the step was due."""
        if self.lens is None:
            return
        due, step = self.lens.due(), self.lens.current
        self.lens.step()
        if due and self.lens.scalars:
            logs = prefixed(self.lens.scalars)
            state.log_history.append({**logs, "step": step})
            if self._handler is not None:
                # Trackers take the number of the step from the state, which has counted the update by now.
                then = replace(state, global_step=step)
                # Its own `on_log` would cancel a log of the Trainer that is due at the same step.
                self._handler.call_event("on_log", args, then, control, logs=logs)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save what the lens needs to continue to the checkpoint that was just written."""
        folder = _checkpoint(args, state)
        if self.lens is not None:
            kept = {name: value.cpu().contiguous() for name, value in self.lens.state_dict().items()}
            if is_first() and folder.exists():
                safetensors.torch.save_file(kept, folder / _STATE)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Close the lens."""
        self.close()

    def close(self) -> None:
        """Close the lens; to be called after a training that ended in an exception."""
        if self.lens is not None:
            self.lens.close()


class PenaltyCallback(TrainerCallback):  # type: ignore[misc]
    """A callback that adds a penalty to the loss that the model returns, in forward passes with gradients.

    The losses that the Trainer logs contain it. Evaluation is without it.

    Args:
        **settings: The settings of `Penalty`, except the model.
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self._penalty: Penalty | None = None
        self._handle: RemovableHandle | None = None
        # How many forward passes a step has, on all ranks together.
        self._passes = 1

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **_: Any
    ) -> None:
        """Begin to add the penalty. A training that ended in an exception has left its hooks, which go first."""
        self.close()
        self._passes = args.gradient_accumulation_steps * args.world_size
        self._penalty = Penalty(model, **self.settings).start()
        # Registered after the hooks of the penalty itself, which sees the end of the pass first.
        self._handle = model.register_forward_hook(self._add, with_kwargs=True)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop adding it."""
        self.close()

    def close(self) -> None:
        """Remove all hooks; to be called after a training that ended in an exception."""
        if self._penalty is not None and self._handle is not None:
            self._penalty.close()
            self._handle.remove()

    def _add(self, model: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        if self._penalty is None or not torch.is_grad_enabled():
            return output
        loss = output.get("loss") if isinstance(output, Mapping) else None
        if loss is None:
            raise InputError(
                "a model in a Trainer must return its loss for a penalty to be added, but returned none; pass labels, "
                "or add `Penalty` to the loss that you compute"
            )
        # A loss that the model divides by the tokens of the whole step is added up over its passes, others are
        # averaged.
        divided = self._passes if kwargs.get("num_items_in_batch") is not None else 1
        output["loss"] = loss + self._penalty() / divided
        return output


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the folder of the checkpoint of the current step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _handler_of(callback: TrainerCallback, model: nn.Module) -> CallbackHandler | None:
    """Return the handler that calls the Trainer's callbacks, trackers among them; None if it is not found.

    The Trainer does not pass it to callbacks, so it is searched for among all objects.
    """
    for one in gc.get_objects():
        if type(one) is CallbackHandler and one.model is model and any(each is callback for each in one.callbacks):
            return one
    warnings.warn("the Trainer's logging was not found; numbers go to the run directory only", stacklevel=2)
    return None
