"""Activations and gradients of a model that is not trained: one backward pass for each batch, and no update."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tangentlens.alignment.rows import TokenRows
from tangentlens.capture.batch import Objective
from tangentlens.capture.sites import Site, watch
from tangentlens.capture.step import Capture


def gradients(
    model: nn.Module,
    batches: Iterable[Mapping[str, Tensor]],
    sites: Sequence[Site],
    objective: Objective,
    exclude: Sequence[int] = (),
    skip_first: int = 0,
) -> tuple[dict[str, TokenRows], float]:
    """Return the rows of every site over all batches, by name of the site, and the mean of the losses.

    Args:
        model: A model that returns its loss.
        batches: The arguments of each call of the model, by name.
        sites: The sites to capture.
        objective: What positions predict.
        exclude: Token ids to leave out.
        skip_first: How many positions at the beginning of each sequence to leave out.
    """
    losses = []
    with _beginning_at(sites, model), Capture(model, sites, exclude, objective, skip_first=skip_first) as capture:
        for batch in batches:
            loss = model(**batch).loss
            # If no site is in the loss, that is told below.
            if loss.requires_grad:
                loss.backward()
            losses.append(loss.item())
    rows = {}
    for site in sites:
        rows[site.name] = capture.rows(site)
        capture.forget(site)
    return rows, sum(losses) / len(losses)


@contextmanager
def _beginning_at(sites: Sequence[Site], model: nn.Module) -> Iterator[None]:
    """Let gradients flow back as far as the first site, and into no weight: a gradient is as large as its weight."""
    paused = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in paused:
        weight.requires_grad_(False)
    # Before the hooks of a capture, which looks for gradients.
    handles = [watch(site, _begin) for site in sites]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for weight in paused:
            weight.requires_grad_(True)


def _begin(hidden: Tensor | None) -> None:
    """Make a tensor one through which gradients flow, unless they do already."""
    if hidden is not None and torch.is_grad_enabled() and not hidden.requires_grad:
        # Not by its flag: a model could not change it in place any more.
        hidden.add_(hidden.new_zeros((), requires_grad=True))
