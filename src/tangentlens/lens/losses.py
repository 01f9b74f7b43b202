"""The loss of a step, from what the model itself returned in the step's forward passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tangentlens.capture.flow import on_gradient


@dataclass(eq=False)
class _Loss:
    """The loss of one forward pass.

    Attributes:
        value: The loss, on its device: no step waits for it.
        is_part: Whether it was divided by the number of tokens of the whole step, and not of this pass alone.
        scale: Returns the factor by which the loss is multiplied in mixed precision.
        weight: How often it counts in what was back-propagated; None before the backward pass.
    """

    value: Float[Tensor, ""]
    is_part: bool
    scale: Callable[[], float] | None
    weight: Tensor | None = None

    def receive(self, gradient: Tensor) -> None:
        """Take the weight from the gradient of the loss, in which mixed precision has multiplied it."""
        self.weight = gradient.detach().float() / (1.0 if self.scale is None else float(self.scale()))


class Losses:
    """A context that keeps the losses that a model returns, of those forward passes that are back-propagated.

    Args:
        model: The model in training.
        loss_scale: Returns the factor by which the loss is multiplied in mixed precision.
    """

    def __init__(self, model: nn.Module, loss_scale: Callable[[], float] | None = None) -> None:
        self.model = model
        self.loss_scale = loss_scale
        self._kept: list[_Loss] = []
        self._hook: RemovableHandle | None = None

    def __enter__(self) -> Losses:
        self._kept = []
        self._hook = self.model.register_forward_hook(self._see, with_kwargs=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def mean(self) -> float | None:
        """Return the mean loss over the forward passes since the context was entered; None if there was no loss."""
        used = [(loss.value, loss.weight) for loss in self._kept if loss.weight is not None]
        if not used:
            return None
        # Parts of a mean add up. Over several ranks the weights are their number, and the mean over ranks is the sum.
        if any(loss.is_part for loss in self._kept):
            return float(torch.stack([value * weight for value, weight in used]).sum())
        return float(torch.stack([value for value, _ in used]).mean())

    def _see(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        loss = returned_loss(output)
        if loss is not None:
            # The Hugging Face Trainer passes this number, of all batches of the step, to models that take it.
            is_part = kwargs.get("num_items_in_batch") is not None
            # A copy, because a loop may divide the loss in place.
            kept = _Loss(loss.detach().clone().float(), is_part, self.loss_scale)
            self._kept.append(kept)
            on_gradient(loss, kept.receive)


def returned_loss(output: Any) -> Tensor | None:
    """Return the loss in what a model returns: a single floating-point number that has a gradient; None without one.

    It is the output itself, its `loss`, or the only such number in a tuple, as in `(loss, logits)` or `(logits, loss)`.

    >>> loss = torch.ones((), requires_grad=True)
    >>> [returned_loss(output) is loss for output in (loss, {"loss": loss}, (torch.ones(2, 3), loss))]
    [True, True, True]
    >>> returned_loss((loss, loss + 1))
    """
    if isinstance(output, Mapping):
        found = [output.get("loss")]
    elif isinstance(output, tuple | list) and not hasattr(output, "loss"):
        found = list(output)
    else:
        found = [output if isinstance(output, Tensor) else getattr(output, "loss", None)]
    losses = [one for one in found if isinstance(one, Tensor) and one.ndim == 0 and one.is_floating_point()]
    with_gradient = [one for one in losses if one.requires_grad]
    return with_gradient[0] if len(with_gradient) == 1 else None
