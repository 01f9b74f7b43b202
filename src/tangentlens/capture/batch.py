"""What one forward pass was given: token ids, what each position has to predict, and which positions count."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from tangentlens.errors import InputError

NO_TARGET = -100


@dataclass(frozen=True, eq=False)
class Batch:
    """Token ids, targets (`NO_TARGET` where none is known) and which positions are real tokens."""

    tokens: Int[Tensor, "batch length"]
    targets: Int[Tensor, "batch length"]
    keep: Bool[Tensor, "batch length"]

    def sequences(self, first: int) -> Int[Tensor, "n"]:
        """The sequence id of every kept position, counted from `first`."""
        ids = torch.arange(len(self.tokens), device=self.tokens.device) + first
        return ids[:, None].expand_as(self.tokens)[self.keep]


Objective = Literal["causal", "masked"]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of `torch.compile` and data-parallel wrappers."""
    inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def objective_of(model: nn.Module) -> Objective | None:
    """What a Hugging Face class says of itself by its name; None for any other."""
    name = type(unwrapped(model)).__name__
    if name.endswith(("ForCausalLM", "GPT2LMHeadModel")):
        return "causal"
    return "masked" if name.endswith("ForMaskedLM") else None


def read_batch(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    exclude: Sequence[int] = (),
    objective: Objective | None = None,
) -> Batch:
    """The batch that `model` is called with; tokens in `exclude` do not count."""
    # Only positional arguments need the signature, and most models are called without any.
    names = inspect.signature(unwrapped(model).forward).parameters if args else ()
    named = dict(zip(names, args, strict=False)) | dict(kwargs)
    given = named.get("input_ids", args[0] if args else None)
    if not isinstance(given, Tensor) or given.is_floating_point() or given.ndim != 2:
        came = f"{tuple(given.shape)} of {given.dtype}" if isinstance(given, Tensor) else type(given).__name__
        raise InputError(
            "the model must be called with token ids (batch, length), as input_ids or as its first argument, but "
            f"{came} came; call it with token ids"
        )
    tokens = given.detach().long()
    mask = named.get("attention_mask")
    # A mask of more dimensions says which positions see which, not which are there.
    keep = mask.bool() if isinstance(mask, Tensor) and mask.shape == tokens.shape else torch.ones_like(tokens).bool()
    for token in exclude:
        keep = keep & (tokens != token)
    return Batch(tokens, _targets(tokens, named.get("labels"), objective), keep)


def _targets(tokens: Tensor, labels: Any, objective: Objective | None) -> Tensor:
    """Next tokens for a causal model (labels come unshifted), the labels themselves for a masked one, else none."""
    targets = torch.full_like(tokens, NO_TARGET)
    given = labels if isinstance(labels, Tensor) and labels.shape == tokens.shape else None
    if objective == "causal":
        targets[:, :-1] = (tokens if given is None else given)[:, 1:]
    elif objective == "masked" and given is not None:
        targets[:] = given
    return targets
