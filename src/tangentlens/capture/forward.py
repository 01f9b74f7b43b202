"""Activations alone, from a forward pass without gradients: what a profile of a finished model needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tangentlens.capture.sites import Site, watch
from tangentlens.errors import InputError


@torch.no_grad()
def activations(
    model: nn.Module,
    sites: Sequence[Site],
    tokens: Int[Tensor, "batch length"],
    keep: Bool[Tensor, "batch length"],
    see: Callable[[Site, Float[Tensor, "n d"]], None],
) -> None:
    """Run `model` on `tokens` and let `see` have each site's rows at the positions to `keep`, one site at a time."""

    def look(site: Site, hidden: Tensor | None) -> None:
        if hidden is None or hidden.shape[:2] != tokens.shape:
            raise InputError(
                f"{site} must carry a (batch, length, width) tensor for the tokens of the batch, but carries "
                f"{None if hidden is None else tuple(hidden.shape)}; choose another site"
            )
        if site.name in seen:
            raise InputError(
                f"{site} must run once in a forward pass, but runs several times (shared layers?); choose other sites"
            )
        seen.add(site.name)
        see(site, hidden[keep])

    seen: set[str] = set()
    handles = [watch(site, partial(look, site)) for site in sites]
    try:
        model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
    finally:
        for handle in handles:
            handle.remove()
    missed = [site.name for site in sites if site.name not in seen]
    if missed:
        raise InputError(f"every site must be part of the forward pass, but {', '.join(missed)} is not; choose others")
