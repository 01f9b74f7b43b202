"""Activations and their true gradients, taken from the training step as it runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tangentlens.capture.batch import (
    Batch,
    Objective,
    named_arguments,
    read_batch,
    read_decoder_batch,
    unwrapped,
)
from tangentlens.capture.sites import Site, check_carried, ran_twice, watch
from tangentlens.capture.stacks import find_stacks
from tangentlens.errors import InputError


@dataclass(frozen=True, eq=False)
class Rows:
    """Activations and gradients at one site, a row a token; a target that is not known is `NO_TARGET`."""

    activations: Float[Tensor, "n d"]
    gradients: Float[Tensor, "n d"]
    sequences: Int[Tensor, "n"]
    tokens: Int[Tensor, "n"]
    targets: Int[Tensor, "n"]


@dataclass(eq=False)
class _Piece:
    """What one forward pass left at a site, and the gradient that has come for it so far."""

    batch: Batch
    activations: Float[Tensor, "n d"]
    gradients: Float[Tensor, "n d"] | None = None

    def add(self, gradient: Tensor) -> None:
        """Several backward passes through one forward pass add up, as they do in any parameter's gradient."""
        kept = _kept_rows(gradient, self.batch)
        self.gradients = kept if self.gradients is None else self.gradients + kept


def _kept_rows(hidden: Tensor, batch: Batch) -> Float[Tensor, "n d"]:
    return hidden.detach().flatten(0, -2)[batch.keep.flatten()]


@dataclass(eq=False)
class Capture:
    """A context in which every backward pass through `model` leaves rows for each site.

    The gradient hook sits on the very tensor that flows on, so it fires for each backward pass through it: evaluation,
    passes that are never back-propagated and what activation checkpointing computes twice leave nothing twice. Hooks
    read and copy; they never change what flows.

    Args:
        model: The model in training.
        sites: Where to look.
        exclude: Token ids to leave out, such as padding or a begin-of-sequence token.
        objective: What positions predict; None if that is not known.
        max_tokens: Keep at most so many tokens of all forward passes together; of a batch with more, a random sample.
    """

    model: nn.Module
    sites: Sequence[Site]
    exclude: Sequence[int] = ()
    objective: Objective | None = None
    max_tokens: int | None = None
    _pieces: dict[str, list[_Piece]] = field(default_factory=dict)
    _handles: list[RemovableHandle] = field(default_factory=list)
    _named: dict[str, Any] = field(default_factory=dict)
    _batches: dict[str, Batch] = field(default_factory=dict)
    _calls: Counter[str] = field(default_factory=Counter)
    _awaited: defaultdict[str, list[Batch]] = field(default_factory=lambda: defaultdict(list))
    _too_often: set[str] = field(default_factory=set)
    _n_sequences: int = 0
    _n_tokens: Counter[str] = field(default_factory=Counter)

    def __enter__(self) -> Capture:
        self._handles.append(self.model.register_forward_pre_hook(self._begin, with_kwargs=True))
        for stack in find_stacks(unwrapped(self.model)):
            if stack.name == "decoder" and stack.embedding is not None:
                self._handles.append(stack.embedding.register_forward_pre_hook(self._begin_decoder))
        for site in self.sites:
            self._pieces[site.name] = []
            self._handles.append(watch(site, partial(self._watch, site)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _with_gradient(self, site: Site) -> list[_Piece]:
        return [piece for piece in self._pieces[site.name] if piece.gradients is not None]

    @property
    def n_backward(self) -> int:
        """How many forward passes have been back-propagated."""
        return max((len(self._with_gradient(site)) for site in self.sites), default=0)

    def rows(self, site: Site) -> Rows:
        """The rows of a site, which are then forgotten."""
        pieces = self._with_gradient(site)
        if not pieces:
            raise InputError(
                f"{site} must be in the loss, but no gradient came through it since the last step; call backward "
                "before lens.step(), check that the site is not frozen, or choose other sites"
            )
        if site.name in self._too_often:
            raise ran_twice(site)
        self._pieces[site.name] = []
        return Rows(
            activations=torch.cat([piece.activations for piece in pieces]),
            gradients=torch.cat([piece.gradients for piece in pieces if piece.gradients is not None]),
            sequences=torch.cat([piece.batch.sequences[piece.batch.keep] for piece in pieces]),
            tokens=torch.cat([piece.batch.tokens[piece.batch.keep] for piece in pieces]),
            targets=torch.cat([piece.batch.targets[piece.batch.keep] for piece in pieces]),
        )

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pass begins; one without gradients leaves nothing."""
        self._batches.clear()
        self._calls.clear()
        if torch.is_grad_enabled():
            self._named = named_arguments(model, args, kwargs)
            batch = read_batch(self._named, self.exclude, self.objective)
            self._batches = dict.fromkeys(("", "encoder"), self._sampled(batch, "encoder"))

    def _begin_decoder(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._batches and not _in_backward():
            batch = read_decoder_batch(args[0], self._named, self.exclude)
            self._batches["decoder"] = self._sampled(batch, "decoder")

    def _sampled(self, batch: Batch, stack: str) -> Batch:
        """Of the batch what there is still room for, with sequences numbered on from those before."""
        keep = batch.keep
        if self.max_tokens is not None:
            places = keep.flatten().nonzero()[:, 0].cpu()
            room = self.max_tokens - self._n_tokens[stack]
            # A generator of its own: no random state of the training is touched.
            order = torch.randperm(len(places), generator=torch.Generator().manual_seed(len(places)))
            chosen = torch.zeros(keep.numel(), dtype=torch.bool)
            chosen[places[order[:room]]] = True
            self._n_tokens[stack] += min(room, len(places))
            keep = chosen.view_as(keep).to(keep.device)
        first = self._n_sequences
        self._n_sequences += int(batch.sequences.max()) + 1
        return replace(batch, sequences=batch.sequences + first, keep=keep)

    def _watch(self, site: Site, hidden: Tensor | None) -> None:
        if _in_backward():
            self._recomputed(site, hidden)
            return
        batch = self._batches.get(site.stack)
        if batch is None:
            return
        call = self._calls[site.name]
        self._calls[site.name] += 1
        if call >= site.calls:
            self._too_often.add(site.name)
        elif call == site.call and torch.is_grad_enabled():
            self._add_piece(site, hidden, batch)
        elif call == site.call:
            self._awaited[site.name].append(batch)

    def _recomputed(self, site: Site, hidden: Tensor | None) -> None:
        """Activation checkpointing runs a block again in the backward pass.

        If the block first ran without gradients ('reentrant'), its gradients come now; else they come to what ran then.
        """
        awaited = self._awaited[site.name]
        if not awaited or not torch.is_grad_enabled():
            return
        if len(awaited) > 1 or site.calls > 1:
            raise InputError(
                f"{site} must be back-propagated after each forward pass under reentrant activation checkpointing, but "
                "several passes wait for it; pass use_reentrant=False to the checkpointing"
            )
        self._add_piece(site, hidden, awaited.pop())

    def _add_piece(self, site: Site, hidden: Tensor | None, batch: Batch) -> None:
        hidden = check_carried(site, hidden, batch.tokens)
        if hidden.requires_grad:
            piece = _Piece(batch, _kept_rows(hidden, batch))
            self._pieces[site.name].append(piece)
            hidden.register_hook(piece.add)


def _in_backward() -> bool:
    """Whether this runs inside a backward pass, as what activation checkpointing recomputes does."""
    return torch._C._current_graph_task_id() != -1
