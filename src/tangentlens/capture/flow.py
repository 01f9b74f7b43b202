"""Hooks on a model in training that see each tensor at a site once, with the batch it belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Bool, Float
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
from tangentlens.capture.device import Devices, MeasureOn
from tangentlens.capture.recomputed import RecomputedPasses, in_backward
from tangentlens.capture.sample import TokenSample
from tangentlens.capture.sites import Site, check_carried, check_visible, watch, wrong_calls
from tangentlens.capture.stacks import find_stacks
from tangentlens.capture.targets import Targets, targets_of_call

See = Callable[[Site, Batch, Tensor], None]


def rows_of(hidden: Tensor, batch: Batch) -> Float[Tensor, "n d"]:
    """Return the rows of a tensor (batch, length, width) at the stored positions, on the device of the batch.

    They are no copy if all positions are stored.
    """
    rows = hidden.detach().flatten(0, -2)
    if batch.stored is not None:
        rows = rows[batch.stored.to(rows.device)]
    return rows.to(batch.tokens.device)


def copied_rows(hidden: Tensor, batch: Batch) -> Float[Tensor, "n d"]:
    """Return a copy of the rows at the stored positions, which later in-place operations cannot change."""
    rows = rows_of(hidden, batch)
    return rows.clone() if batch.stored is None and rows.device == hidden.device else rows


@dataclass(eq=False)
class Flow:
    """A context in which `see` is called with the tensor of each site in each forward pass that has gradients.

    `see` gets the tensor itself and not a copy, so a hook on it receives its true gradient. Passes without gradients,
    as in evaluation, are ignored. What activation checkpointing computes twice is seen once, in the pass through whose
    graph the gradient flows.

    Args:
        model: The model in training.
        sites: Where to look.
        see: Called with the site, the batch and the tensor.
        exclude: Token ids to leave out, such as padding or a begin-of-sequence token.
        objective: What positions predict; None if that is not known.
        max_tokens: Keep at most this many tokens of all forward passes together; if there are more, a random sample.
        skip_first: How many positions at the beginning of each sequence to leave out.
        targets: What positions predict, if the user says it: the name of an argument of the call, or a function of it.
        measure_on: 'cpu' if rows are moved to the host as they come; None if only a device without fp64 requires it.
        n_sequences: The number that the next sequence gets, which is also the seed of its sample.
    """

    model: nn.Module
    sites: Sequence[Site]
    see: See
    exclude: Sequence[int] = ()
    objective: Objective | None = None
    max_tokens: int | None = None
    skip_first: int = 0
    targets: Targets | None = None
    measure_on: MeasureOn | None = None
    n_sequences: int = 0
    _handles: list[RemovableHandle] = field(default_factory=list)
    _named: dict[str, Any] = field(default_factory=dict)
    _given: Tensor | None = None
    _has_decoder: bool = False
    _batches: dict[str, Batch] = field(default_factory=dict)
    _calls: Counter[str] = field(default_factory=Counter)
    _miscounted: set[str] = field(default_factory=set)
    _ran: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._sample = TokenSample(self.max_tokens)
        self._recomputed = RecomputedPasses()

    def __enter__(self) -> Flow:
        check_visible(self.model, self.sites)
        self._handles.append(self.model.register_forward_pre_hook(self._begin, with_kwargs=True))
        self._handles.append(self.model.register_forward_hook(self._end, always_call=True))
        for stack in find_stacks(unwrapped(self.model)):
            if stack.name == "decoder" and stack.embedding is not None:
                self._has_decoder = True
                self._handles.append(stack.embedding.register_forward_pre_hook(self._begin_decoder))
        for site in self.sites:
            self._handles.append(watch(site, partial(self._watch, site)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._batches.clear()
        self._named.clear()
        self._given = None
        self._recomputed.clear()

    @property
    def devices(self) -> Devices:
        """Return where ranks exchange numbers, and where rows are measured."""
        return Devices.of(self.model, self.measure_on)

    def ran(self, site: Site) -> bool:
        """Return whether any forward pass came through the site. If blocks are dropped at random, none may."""
        return site.name in self._ran

    def count(self, batch: Batch, site: Site) -> None:
        """Mark a batch as used, so that its tokens count towards `max_tokens`."""
        self._sample.count(batch, _stack(site))

    def in_sample(self, site: Site, batch: Batch) -> Bool[Tensor, "n"]:
        """Return which of the tokens stored of a batch are still in the sample, after all batches that came later."""
        return self._sample.holds(batch, _stack(site))

    def check_calls(self, site: Site) -> None:
        """Raise if a site ran more or less often in a forward pass than expected: its tensors cannot be assigned."""
        if site.name in self._miscounted:
            raise wrong_calls(site)

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read the batch of a forward pass that begins, unless the pass is without gradients."""
        self._batches.clear()
        self._calls.clear()
        if torch.is_grad_enabled():
            self._named = named_arguments(model, args, kwargs)
            if self.targets is not None:
                self._given = targets_of_call(model, self.targets, args, kwargs)
            # The targets of an encoder-decoder belong to its decoder.
            given = None if self._has_decoder else self._given
            batch = read_batch(self._named, self.exclude, self.objective, self.skip_first, given)
            batch = self._numbered(batch, "encoder")
            self._batches = dict.fromkeys(("", "encoder"), batch)

    def _end(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Forget the batch, as parts of the model may be used on their own after the pass; see what ran too rarely."""
        # A pass that raised an error has no output, and ended early.
        if self._batches and output is not None:
            self._miscounted |= {site.name for site in self.sites if 0 < self._calls[site.name] < site.calls}
        self._batches.clear()

    def _begin_decoder(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Read the decoder's batch from what its embedding is called with."""
        if self._batches and not in_backward():
            batch = read_decoder_batch(args[0], self._named, self.exclude, self.skip_first, self._given)
            self._batches["decoder"] = self._numbered(batch, "decoder")

    def _numbered(self, batch: Batch, stack: str) -> Batch:
        """Return the batch with only sampled tokens kept, its sequences numbered after those of earlier batches."""
        first = self.n_sequences
        self.n_sequences += batch.tokens.numel()
        batch = batch.to(self.devices.measure)
        return self._sample.draw(replace(batch, sequences=batch.sequences + first), stack, seed=first)

    def _watch(self, site: Site, hidden: Tensor | None) -> None:
        """Decide what to do with a tensor at a site: show it, let it wait for recomputation, or ignore it."""
        if in_backward():
            self._run_again(site, hidden)
            return
        batch = self._batches.get(site.stack)
        if batch is None:
            return
        self._ran.add(site.name)
        call = self._calls[site.name]
        self._calls[site.name] += 1
        if call >= site.calls:
            self._miscounted.add(site.name)
        elif call == site.call and torch.is_grad_enabled():
            self._show(site, hidden, batch)
        elif call == site.call and hidden is not None:
            self._recomputed.wait(site.name, batch, hidden)

    def _run_again(self, site: Site, hidden: Tensor | None) -> None:
        """Show a tensor that activation checkpointing computes again inside the backward pass, if it must be shown.

        If the block first ran without gradients (reentrant checkpointing), its gradients come through this second run;
        otherwise they come through the first one, which has been seen already.
        """
        if hidden is not None and torch.is_grad_enabled():
            batch = self._recomputed.match(site.name, hidden)
            if batch is not None:
                self._show(site, hidden, batch)

    def _show(self, site: Site, hidden: Tensor | None, batch: Batch) -> None:
        """Call `see` with a tensor that has been checked, if a gradient will flow through it."""
        hidden = check_carried(site, hidden, batch.tokens)
        if hidden.requires_grad:
            self.see(site, batch, hidden)


def _stack(site: Site) -> str:
    return site.stack or "encoder"


def on_gradient(hidden: Tensor, receive: Callable[[Tensor], None]) -> None:
    """Call `receive` with the gradient of the present value of `hidden`, even if it is changed in place afterwards.

    An in-place change gives a view a new autograd history without its hooks, while the base of the view keeps its own.
    The output of a linear layer, for example, is a view of a matrix. So the hook is put on the base where possible.
    """
    # The hook refers to the shape only: a reference to the tensor would be a cycle that keeps it alive.
    base, shape = hidden._base, hidden.shape
    whole = base is not None and base.requires_grad and base.numel() == hidden.numel()
    if base is not None and whole and base.is_contiguous() and hidden.is_contiguous():
        base.register_hook(lambda gradient: receive(gradient.reshape(shape)))
    else:
        hidden.register_hook(receive)
