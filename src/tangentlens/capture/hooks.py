"""Activations and their true gradients, taken from the training step as it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tangentlens.capture.batch import Batch, Objective, read_batch
from tangentlens.capture.sites import Site, check_carried, ran_twice, watch
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
    first_sequence: int
    activations: Float[Tensor, "n d"]
    gradients: Float[Tensor, "n d"] | None = None

    def add(self, gradient: Tensor) -> None:
        """Several backward passes through one forward pass add up, as they do in any parameter's gradient."""
        kept = gradient[self.batch.keep]
        self.gradients = kept if self.gradients is None else self.gradients + kept


@dataclass(eq=False)
class Capture:
    """A context in which every backward pass through `model` leaves rows for each site.

    The gradient hook sits on the very tensor that flows on, so it fires for each backward pass through it: evaluation,
    passes that are never back-propagated and the first pass of activation checkpointing leave nothing. Hooks read and
    copy; they never change what flows.

    Args:
        model: The model in training.
        sites: Where to look.
        exclude: Token ids to leave out, such as padding or a begin-of-sequence token.
        objective: What positions predict; None if that is not known.
    """

    model: nn.Module
    sites: Sequence[Site]
    exclude: Sequence[int] = ()
    objective: Objective | None = None
    _pieces: dict[str, list[_Piece]] = field(default_factory=dict)
    _handles: list[RemovableHandle] = field(default_factory=list)
    _batch: Batch | None = None
    _first: int = 0
    _sequences: int = 0

    def __enter__(self) -> Capture:
        self._handles.append(self.model.register_forward_pre_hook(self._read_batch, with_kwargs=True))
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
        if len({id(piece.batch) for piece in pieces}) < len(pieces):
            raise ran_twice(site)
        self._pieces[site.name] = []
        return Rows(
            activations=torch.cat([piece.activations for piece in pieces]),
            gradients=torch.cat([piece.gradients for piece in pieces if piece.gradients is not None]),
            sequences=torch.cat([piece.batch.sequences(piece.first_sequence) for piece in pieces]),
            tokens=torch.cat([piece.batch.tokens[piece.batch.keep] for piece in pieces]),
            targets=torch.cat([piece.batch.targets[piece.batch.keep] for piece in pieces]),
        )

    def _read_batch(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            self._batch = read_batch(model, args, kwargs, self.exclude, self.objective)
            self._first = self._sequences
            self._sequences += len(self._batch.tokens)

    def _watch(self, site: Site, hidden: Tensor | None) -> None:
        if not torch.is_grad_enabled():
            return
        batch = self._batch
        hidden = check_carried(site, hidden, None if batch is None else batch.tokens)
        if batch is not None and hidden.requires_grad:
            piece = _Piece(batch, self._first, hidden.detach()[batch.keep])
            self._pieces[site.name].append(piece)
            hidden.register_hook(piece.add)
