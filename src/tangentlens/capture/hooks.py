"""Activations and their true gradients, taken from the training step as it runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tangentlens.capture.sites import Site
from tangentlens.errors import InputError


@dataclass(frozen=True, eq=False)
class Batch:
    """What one forward pass was given: token ids, what each position has to predict, and which positions count."""

    tokens: Int[Tensor, "batch length"]
    targets: Int[Tensor, "batch length"]
    keep: Bool[Tensor, "batch length"]
    first_sequence: int

    def sequences(self) -> Int[Tensor, "n"]:
        """The sequence id of every kept position."""
        ids = torch.arange(len(self.tokens), device=self.tokens.device) + self.first_sequence
        return ids[:, None].expand_as(self.tokens)[self.keep]


@dataclass(frozen=True, eq=False)
class Rows:
    """Activations and gradients at one site, a row a token; what cannot be known (no target) is -100."""

    activations: Float[Tensor, "n d"]
    gradients: Float[Tensor, "n d"]
    sequences: Int[Tensor, "n"]
    tokens: Int[Tensor, "n"]
    targets: Int[Tensor, "n"]


@dataclass(eq=False)
class Capture:
    """A context in which every backward pass through `model` leaves rows for each site.

    The gradient hook sits on the very tensor that flows on, so it fires once for each backward pass through it:
    evaluation, passes that are never back-propagated and the first pass of activation checkpointing leave nothing.
    Hooks read and copy; they never change what flows.

    Args:
        model: The model in training.
        sites: Where to look.
        exclude: Token ids to leave out, such as padding or a begin-of-sequence token.
    """

    model: nn.Module
    sites: Iterable[Site]
    exclude: Iterable[int] = ()
    _pieces: dict[str, list[tuple[Batch, Tensor, Tensor]]] = field(default_factory=dict)
    _handles: list[RemovableHandle] = field(default_factory=list)
    _batch: Batch | None = None
    _sequences: int = 0

    def __enter__(self) -> Capture:
        self._handles.append(self.model.register_forward_pre_hook(self._read_batch, with_kwargs=True))
        for site in self.sites:
            self._pieces[site.name] = []
            if site.side == "input":
                self._handles.append(site.module.register_forward_pre_hook(self._on_input(site), with_kwargs=True))
            else:
                self._handles.append(site.module.register_forward_hook(self._on_output(site)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def rows(self, site: Site) -> Rows:
        """The rows of a site, which are then forgotten."""
        pieces = self._pieces.pop(site.name)
        if not pieces:
            raise InputError(
                f"{site} must be in the loss, but no gradient came through it since the last step; call backward "
                "before lens.step(), check that the site is not frozen, or choose other sites"
            )
        return Rows(
            activations=torch.cat([activations for _, activations, _ in pieces]),
            gradients=torch.cat([gradients for _, _, gradients in pieces]),
            sequences=torch.cat([batch.sequences() for batch, _, _ in pieces]),
            tokens=torch.cat([batch.tokens[batch.keep] for batch, _, _ in pieces]),
            targets=torch.cat([batch.targets[batch.keep] for batch, _, _ in pieces]),
        )

    def _read_batch(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            self._batch = _batch(model, args, kwargs, self.exclude, self._sequences)
            self._sequences += len(self._batch.tokens)

    def _on_input(self, site: Site) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._watch(site, next((value for value in (*args, *kwargs.values()) if _is_hidden(value)), None))

        return hook

    def _on_output(self, site: Site) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            values = output.values() if hasattr(output, "values") and not isinstance(output, Tensor) else output
            candidates = [values] if isinstance(values, Tensor) else list(values)
            self._watch(site, next((value for value in candidates if _is_hidden(value)), None))

        return hook

    def _watch(self, site: Site, hidden: Tensor | None) -> None:
        if not torch.is_grad_enabled():
            return
        batch = self._batch
        if batch is None or hidden is None or hidden.shape[:2] != batch.tokens.shape:
            raise InputError(
                f"{site} must carry a (batch, length, width) tensor for the tokens of the batch, but carries "
                f"{None if hidden is None else tuple(hidden.shape)}; choose another site"
            )
        if hidden.requires_grad:
            # The gradient of this tensor is complete when the hook fires; only kept rows are copied.
            kept = hidden.detach()[batch.keep]
            hidden.register_hook(lambda grad: self._pieces[site.name].append((batch, kept, grad[batch.keep])))


def _is_hidden(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 3


def _batch(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], exclude: Iterable[int], first_sequence: int
) -> Batch:
    given = kwargs.get("input_ids", args[0] if args else None)
    if not isinstance(given, Tensor) or given.is_floating_point() or given.ndim != 2:
        raise InputError(
            "the model must be called with token ids (batch, length), as input_ids or as its first argument, but "
            f"{'nothing' if given is None else type(given).__name__} came; call it with token ids"
        )
    tokens = given.detach().long()
    labels = kwargs.get("labels")
    mask = kwargs.get("attention_mask")
    keep = torch.ones_like(tokens, dtype=torch.bool) if mask is None or mask.ndim != 2 else mask.bool()
    for token in exclude:
        keep = keep & (tokens != token)
    return Batch(tokens, _targets(model, tokens, labels), keep, first_sequence)


def _targets(model: nn.Module, tokens: Tensor, labels: Tensor | None) -> Tensor:
    """The id each position has to predict; -100 where none is known. Causal models shift their labels themselves."""
    targets = torch.full_like(tokens, -100)
    if labels is None or labels.shape != tokens.shape:
        return targets
    if is_causal(model):
        targets[:, :-1] = labels[:, 1:]
    else:
        targets[:] = labels
    return targets


def is_causal(model: nn.Module) -> bool:
    """Whether position i predicts token i + 1, as Hugging Face's causal models do with `labels`."""
    return type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))
