"""Activations from a forward pass without gradients: of a finished model, or of a model on a probe."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tangentlens.capture.device import Devices
from tangentlens.capture.sites import Site, check_carried, watch, wrong_calls
from tangentlens.errors import InputError

See = Callable[[Site, Float[Tensor, "n d"]], None]


def activations(
    model: nn.Module,
    sites: Sequence[Site],
    tokens: Int[Tensor, "batch length"],
    keep: Bool[Tensor, "batch length"],
    see: See,
) -> None:
    """Run a model and call `see` with the rows of each site, one site at a time.

    Args:
        model: The model. One that takes no `input_ids` is called with the token ids alone.
        sites: The sites to capture.
        tokens: The token ids to run the model on.
        keep: The positions whose rows are passed on.
        see: Called with the site and its rows `(n, d)`; if the device of the model has no fp64, they are on the CPU.
    """
    run = _call(_body(model, sites), tokens)
    device = Devices.of(model).measure
    rows_of_call(run, sites, lambda site: (tokens, keep), lambda site, rows: see(site, rows.to(device)))


def _call(body: nn.Module, tokens: Int[Tensor, "batch length"]) -> Callable[[], Any]:
    """Return what runs a model on tokens, all of which it is to see."""
    takes = inspect.signature(body.forward).parameters
    if "input_ids" not in takes:
        return partial(body, tokens)
    # Keys and values of all layers, which a decoder returns for a continuation, may take more memory than the rest.
    more = {"attention_mask": torch.ones_like(tokens), "use_cache": False}
    return partial(body, input_ids=tokens, **{name: value for name, value in more.items() if name in takes})


def _body(model: nn.Module, sites: Sequence[Site]) -> nn.Module:
    """Return the part of a Hugging Face model without its head if all sites are in it, else the model.

    The logits of a batch may take more memory than everything else.
    """
    body = getattr(model, "base_model", model)
    inside = {*body.modules()} if isinstance(body, nn.Module) else set()
    return body if all(site.module in inside for site in sites) else model


@torch.no_grad()
def rows_of_call(
    run: Callable[[], Any], sites: Sequence[Site], batch: Callable[[Site], tuple[Tensor, Tensor]], see: See
) -> None:
    """Call `see` with the rows of each site in one forward pass, one site at a time.

    Args:
        run: Runs the model.
        sites: The sites to capture.
        batch: Returns the token ids that a site carries, and the positions whose rows are passed on.
        see: Called with the site and its rows `(n, d)`.
    """

    def look(site: Site, hidden: Tensor | None) -> None:
        call = seen[site.name]
        seen[site.name] += 1
        if call >= site.calls:
            raise wrong_calls(site)
        if call == site.call:
            tokens, keep = batch(site)
            rows = check_carried(site, hidden, tokens).flatten(0, -2)
            # Blocks may be spread over devices, and tokens are where the embeddings are.
            see(site, rows[keep.flatten().to(rows.device)])

    seen: Counter[str] = Counter()
    handles = [watch(site, partial(look, site)) for site in sites]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    missed = [site.name for site in sites if not seen[site.name]]
    if missed:
        raise InputError(f"every site must be part of the forward pass, but {', '.join(missed)} is not; choose others")
    for site in sites:
        if seen[site.name] < site.calls:
            raise wrong_calls(site)
