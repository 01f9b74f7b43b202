"""Every tensor that flows through a site in training, with its batch: once each, whatever the loop does."""

from __future__ import annotations

from collections import Counter, defaultdict
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
from tangentlens.capture.sites import Site, check_carried, check_visible, ran_twice, watch
from tangentlens.capture.stacks import find_stacks

See = Callable[[Site, Batch, Tensor], None]


def kept_rows(hidden: Tensor, batch: Batch) -> Float[Tensor, "n d"]:
    """The rows of a tensor at the positions that count; all of them are not copied."""
    rows = hidden.detach().flatten(0, -2)
    return rows if batch.whole else rows[batch.keep.flatten()]


def copied_rows(hidden: Tensor, batch: Batch) -> Float[Tensor, "n d"]:
    """The same, safe from whatever the training does with the tensor later."""
    rows = kept_rows(hidden, batch)
    return rows.clone() if batch.whole else rows


@dataclass(eq=False)
class Flow:
    """A context in which `see` is called with each site's tensor of each forward pass that has gradients.

    It is the very tensor that flows on: a hook on it sees its true gradient. Evaluation is passed over. What activation
    checkpointing computes twice is seen once, in the pass whose graph the gradient comes through.

    Args:
        model: The model in training.
        sites: Where to look.
        see: Called with the site, the batch and the tensor.
        exclude: Token ids to leave out, such as padding or a begin-of-sequence token.
        objective: What positions predict; None if that is not known.
        max_tokens: Keep at most so many tokens of all forward passes together; if there are more, a random sample.
    """

    model: nn.Module
    sites: Sequence[Site]
    see: See
    exclude: Sequence[int] = ()
    objective: Objective | None = None
    max_tokens: int | None = None
    _handles: list[RemovableHandle] = field(default_factory=list)
    _named: dict[str, Any] = field(default_factory=dict)
    _batches: dict[str, Batch] = field(default_factory=dict)
    _calls: Counter[str] = field(default_factory=Counter)
    _awaited: defaultdict[str, list[tuple[Batch, Tensor]]] = field(default_factory=lambda: defaultdict(list))
    _too_often: set[str] = field(default_factory=set)
    _n_sequences: int = 0
    _lots: dict[str, Tensor] = field(default_factory=dict)
    _counted: list[Batch] = field(default_factory=list)
    _ran: set[str] = field(default_factory=set)

    def __enter__(self) -> Flow:
        check_visible(self.model, self.sites)
        self._handles.append(self.model.register_forward_pre_hook(self._begin, with_kwargs=True))
        self._handles.append(self.model.register_forward_hook(self._end, always_call=True))
        for stack in find_stacks(unwrapped(self.model)):
            if stack.name == "decoder" and stack.embedding is not None:
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
        self._awaited.clear()

    def ran(self, site: Site) -> bool:
        """Whether any forward pass came through the site; with blocks that are dropped at random, none may."""
        return site.name in self._ran

    def count(self, batch: Batch, site: Site) -> None:
        """Say that a batch is used, so that it counts against `max_tokens`."""
        if batch.lots is not None and batch not in self._counted:
            self._counted.append(batch)
            self._lots[site.stack or "encoder"] = self._smallest(batch.lots[batch.keep.cpu()], site.stack or "encoder")

    def _smallest(self, lots: Float[Tensor, "n"], stack: str) -> Float[Tensor, "m"]:
        """The lots of the sample, once these are drawn as well."""
        return torch.cat([self._lots.get(stack, lots[:0]), lots]).sort().values[: self.max_tokens]

    def in_sample(self, site: Site, batch: Batch) -> Bool[Tensor, "n"]:
        """Which of the tokens that were kept of a batch are still in the sample, after all batches that came later."""
        kept = torch.ones(int(batch.keep.sum()), dtype=torch.bool, device=batch.keep.device)
        if batch.lots is None:
            return kept
        return (batch.lots[batch.keep.cpu()] <= self._lots[site.stack or "encoder"][-1]).to(kept.device)

    def check_calls(self, site: Site) -> None:
        """Refuse a site that ran more often in a forward pass than is known of it: its tensors are mixed up."""
        if site.name in self._too_often:
            raise ran_twice(site)

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pass begins; one without gradients leaves nothing."""
        self._batches.clear()
        self._calls.clear()
        if torch.is_grad_enabled():
            self._named = named_arguments(model, args, kwargs)
            batch = read_batch(self._named, self.exclude, self.objective)
            self._batches = dict.fromkeys(("", "encoder"), self._sampled(batch, "encoder"))

    def _end(self, *_: Any) -> None:
        """The pass is over: parts of the model that are used on their own afterwards are not of it."""
        self._batches.clear()

    def _begin_decoder(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._batches and not _in_backward():
            batch = read_decoder_batch(args[0], self._named, self.exclude)
            self._batches["decoder"] = self._sampled(batch, "decoder")

    def _sampled(self, batch: Batch, stack: str) -> Batch:
        """Of the batch what is in a random sample of all so far, with sequences numbered on from those before."""
        first = self._n_sequences
        self._n_sequences += batch.tokens.numel()
        batch = replace(batch, sequences=batch.sequences + first)
        if self.max_tokens is None:
            return batch
        # A generator of its own: no random state of the training is touched.
        generator = torch.Generator().manual_seed(first)
        lots = torch.rand(batch.tokens.shape, generator=generator, dtype=torch.float64)
        sample = self._smallest(lots[batch.keep.cpu()], stack)
        if len(sample) < self.max_tokens:
            return replace(batch, lots=lots)
        keep = batch.keep & (lots <= sample[-1]).to(batch.keep.device)
        return replace(batch, keep=keep, whole=False, lots=lots)

    def _watch(self, site: Site, hidden: Tensor | None) -> None:
        if _in_backward():
            self._recomputed(site, hidden)
            return
        batch = self._batches.get(site.stack)
        if batch is None:
            return
        self._ran.add(site.name)
        call = self._calls[site.name]
        self._calls[site.name] += 1
        if call >= site.calls:
            self._too_often.add(site.name)
        elif call == site.call and torch.is_grad_enabled():
            self._show(site, hidden, batch)
        elif call == site.call and hidden is not None:
            self._awaited[site.name].append((batch, _fingerprint(hidden)))

    def _recomputed(self, site: Site, hidden: Tensor | None) -> None:
        """Activation checkpointing runs a block again in the backward pass.

        If the block first ran without gradients ('reentrant'), its gradients come now; else they come to what ran then.
        """
        if hidden is None or not torch.is_grad_enabled():
            return
        awaited, found = self._awaited[site.name], _fingerprint(hidden)
        # Several passes may wait, some in vain; what is computed again is the same as it was.
        for number, (batch, seen) in enumerate(awaited):
            if seen.shape == found.shape and torch.allclose(seen, found, rtol=1e-3, atol=0.0, equal_nan=True):
                del awaited[number]
                self._show(site, hidden, batch)
                return

    def _show(self, site: Site, hidden: Tensor | None, batch: Batch) -> None:
        hidden = check_carried(site, hidden, batch.tokens)
        if hidden.requires_grad:
            self.see(site, batch, hidden)


def on_gradient(hidden: Tensor, receive: Callable[[Tensor], None]) -> None:
    """Let `receive` have the gradient of what `hidden` is now, whatever is done to it in place afterwards.

    A change in place gives a view a new history, without its hooks, but not what it is a view of (as the output of a
    linear layer is of a matrix).
    """
    # The hook keeps the shape and not the tensor, which would keep itself.
    base, shape = hidden._base, hidden.shape
    whole = base is not None and base.requires_grad and base.numel() == hidden.numel()
    if base is not None and whole and base.is_contiguous() and hidden.is_contiguous():
        base.register_hook(lambda gradient: receive(gradient.reshape(shape)))
    else:
        hidden.register_hook(receive)


def _fingerprint(hidden: Tensor) -> Tensor:
    """Enough of a tensor to know it again."""
    return hidden.detach()[..., :2].clone()


def _in_backward() -> bool:
    """Whether this runs inside a backward pass, as what activation checkpointing recomputes does."""
    return torch._C._current_graph_task_id() != -1
