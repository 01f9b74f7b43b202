"""The batch of one forward pass: token ids, what each position has to predict, and which positions count."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tangentlens.errors import InputError

NO_TARGET = -100

# Wrappers from libraries that may not be installed, by class name. To look for an attribute `module` would not do: a
# model may call a part of its own so.
_WRAPPERS = ("FullyShardedDataParallel", "DeepSpeedEngine")


@dataclass(frozen=True, eq=False)
class Batch:
    """What one forward pass was given.

    Attributes:
        tokens: Token ids.
        targets: The token that each position has to predict; `NO_TARGET` where none is known.
        sequences: The number of the sequence that each position belongs to.
        positions: The place of each position in its sequence, padding not counted, from 0 on.
        keep: Which positions count.
        whole: Whether all positions are known to count, without looking at `keep`.
        lots: If tokens are sampled, a random number for each position; those with the smallest are kept.
        stored: The positions, numbered over the whole batch, whose rows are copied: all that count, on a GPU also
            others, because how many count is not known before the host has waited for it. None means all positions.
    """

    tokens: Int[Tensor, "batch length"]
    targets: Int[Tensor, "batch length"]
    sequences: Int[Tensor, "batch length"]
    positions: Int[Tensor, "batch length"]
    keep: Bool[Tensor, "batch length"]
    whole: bool = False
    lots: Int[Tensor, "batch length"] | None = None
    stored: Int[Tensor, "n"] | None = None

    def at_stored(self, of_positions: Shaped[Tensor, "batch length"]) -> Shaped[Tensor, "n"]:
        """Return the entries of something like `tokens` that belong to the stored rows."""
        return self.among_stored(of_positions.flatten())

    def among_stored(self, of_all: Shaped[Tensor, "positions *width"]) -> Shaped[Tensor, "n *width"]:
        """Return the entries that belong to the stored rows, given one for each position of the whole batch."""
        return of_all if self.stored is None else of_all[self.stored]

    def to(self, device: torch.device) -> Batch:
        """Return the batch on another device."""
        parts: dict[str, Any] = {name: part.to(device) for name, part in vars(self).items() if isinstance(part, Tensor)}
        return replace(self, **parts)


Objective = Literal["causal", "masked", "seq2seq"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside of `torch.compile`, data-parallel wrappers and engines."""
    inner = getattr(model, "_orig_mod", None)
    if isinstance(model, nn.DataParallel | DistributedDataParallel) or type(model).__name__ in _WRAPPERS:
        inner = model.module
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def objective_of(model: nn.Module) -> Objective | None:
    """Return the objective of a Hugging Face model, from its configuration and class name; None for other models."""
    inner = unwrapped(model)
    if getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        return "seq2seq"
    name = type(inner).__name__
    endings: dict[str, Objective] = {
        "ForCausalLM": "causal",
        "GPT2LMHeadModel": "causal",
        "OpenAIGPTLMHeadModel": "causal",
        "CTRLLMHeadModel": "causal",
        # Models of images and text; encoder-decoders with this name were recognised above.
        "ForConditionalGeneration": "causal",
        "ForMaskedLM": "masked",
    }
    return next((objective for ending, objective in endings.items() if name.endswith(ending)), None)


def named_arguments(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name; without an `input_ids`, the first parameter takes that name."""
    if not args and "input_ids" in kwargs:
        return dict(kwargs)
    names = list(inspect.signature(unwrapped(model).forward).parameters)
    named = dict(zip(names, args, strict=False)) | dict(kwargs)
    return {"input_ids": named.get(names[0]) if names else None} | named


def count_tokens(named: Mapping[str, Any]) -> Tensor | int:
    """Return the number of tokens that a model is called with, without padding; 0 if it is called without token ids."""
    tokens = named["input_ids"]
    if not isinstance(tokens, Tensor) or tokens.is_floating_point():
        return 0
    mask = _like(named.get("attention_mask"), tokens)
    return tokens.numel() if mask is None else mask.bool().sum()


def read_batch(
    named: Mapping[str, Any],
    exclude: Sequence[int] = (),
    objective: Objective | None = None,
    skip_first: int = 0,
    given: Int[Tensor, "_ _"] | None = None,
) -> Batch:
    """Return the batch that a model is called with.

    Args:
        named: The arguments of the call by name.
        exclude: Token ids that do not count.
        objective: What positions predict; None if that is not known.
        skip_first: How many positions at the beginning of each sequence do not count.
        given: The targets themselves, if they are known; labels and objective are then not used.
    """
    ids = named["input_ids"]
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.ndim != 2:
        came = f"{tuple(ids.shape)} of {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
        raise InputError(
            "the model must be called with token ids (batch, length), as input_ids or as its first argument, but "
            f"{came} came; call it with token ids"
        )
    tokens = ids.detach().long()
    mask = _like(named.get("attention_mask"), tokens)
    labels = _like(named.get("labels"), tokens)
    if labels is None and objective == "causal":
        labels = tokens if mask is None else tokens.masked_fill(~mask.bool(), NO_TARGET)
    # The labels of an encoder-decoder belong to its decoder, not to the input tokens.
    targets = _targets(tokens, labels, None if objective == "seq2seq" else objective)
    targets = targets if given is None else check_aligned(given, tokens)
    starts = _starts(tokens, named.get("position_ids"))
    positions = _positions(starts, mask)
    keep = _kept(tokens, mask, exclude) & (positions >= skip_first)
    whole = mask is None and not exclude and not skip_first
    return Batch(tokens, targets, _sequences(starts), positions, keep, whole)


def read_decoder_batch(
    tokens: Int[Tensor, "batch length"],
    named: Mapping[str, Any],
    exclude: Sequence[int],
    skip_first: int = 0,
    given: Int[Tensor, "_ _"] | None = None,
) -> Batch:
    """Return the batch of the decoder of an encoder-decoder.

    Without a mask, positions whose label is ignored do not count, as if they were padding. They still have their place
    in the sequence.

    Args:
        tokens: The decoder's token ids.
        named: The arguments of the model's call by name.
        exclude: Token ids that do not count.
        skip_first: How many positions at the beginning of each sequence do not count.
        given: The labels, if the user says what they are; those of the call are then not used.
    """
    tokens = tokens.detach().long()
    labels = _like(named.get("labels"), tokens) if given is None else check_aligned(given, tokens)
    mask = _like(named.get("decoder_attention_mask"), tokens)
    starts = _starts(tokens, None)
    # Before ignored labels enter the mask.
    positions = _positions(starts, mask)
    if mask is None and labels is not None:
        mask = labels != NO_TARGET
    keep = _kept(tokens, mask, exclude) & (positions >= skip_first)
    return Batch(tokens, _targets(tokens, labels, "seq2seq"), _sequences(starts), positions, keep)


def check_aligned(targets: Tensor, tokens: Tensor) -> Tensor:
    """Return targets on the device of the tokens, or raise if there is not one for each token."""
    if targets.shape != tokens.shape:
        raise InputError(
            f"targets must have one token id for each of the {tuple(tokens.shape)} positions, but have the shape "
            f"{tuple(targets.shape)}; return what position i has to predict at place i"
        )
    return targets.to(tokens.device)


def _like(value: Any, tokens: Tensor) -> Tensor | None:
    """Return the value if it has one entry for each token, else None.

    A mask of more dimensions says which positions attend to which, not which ones are padding.
    """
    return value if isinstance(value, Tensor) and value.shape == tokens.shape else None


def _kept(tokens: Tensor, mask: Tensor | None, exclude: Sequence[int]) -> Tensor:
    """Return which positions are neither padding nor in `exclude`."""
    keep = torch.ones_like(tokens).bool() if mask is None else mask.bool()
    for token in exclude:
        keep = keep & (tokens != token)
    return keep


def _starts(tokens: Tensor, positions: Any) -> Tensor:
    """Return 1 where a sequence begins, else 0.

    Each row is one sequence, or several that are packed into a row; a new one begins where positions stop increasing.
    """
    starts = torch.zeros_like(tokens)
    starts[:, 0] = 1
    packed = _like(positions, tokens)
    if packed is not None:
        starts[:, 1:] = packed[:, 1:] <= packed[:, :-1]
    return starts


def _sequences(starts: Tensor) -> Tensor:
    """Return the number of the sequence of each position."""
    return starts.flatten().cumsum(dim=0).view_as(starts) - 1


def _positions(starts: Tensor, mask: Tensor | None) -> Tensor:
    """Return the place of each position in its sequence, from 0 on; padding, on either side, is not counted."""
    real = torch.ones_like(starts) if mask is None else mask.bool().long()
    so_far = real.cumsum(dim=1)
    before = (so_far - real).where(starts.bool(), 0).cummax(dim=1).values
    return (so_far - before - 1).clamp_min(0)


def _targets(tokens: Tensor, labels: Tensor | None, objective: Objective | None) -> Tensor:
    """Return the targets: the next labels for a causal model, the labels themselves for others, `NO_TARGET` if unknown.

    The labels of a causal model are not shifted when they are passed.
    """
    targets = torch.full_like(tokens, NO_TARGET)
    if labels is not None and objective == "causal":
        targets[:, :-1] = labels[:, 1:]
    elif labels is not None and objective is not None:
        targets[:] = labels
    return targets
