"""Moments of activations and gradients over many training steps, from all tokens and without keeping rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import torch
from torch import Tensor, nn

from tangentlens.capture.batch import Batch
from tangentlens.capture.distributed import device_of, summed, world_size
from tangentlens.capture.flow import Flow, kept_rows, on_gradient
from tangentlens.capture.sites import Site
from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments


class MomentStream:
    """A context in which training steps add to the moments of each site's activations and gradients.

    A forward pass is added when it is back-propagated. A pass with values that are not finite is left out.

    Args:
        model: The model in training.
        sites: Where to look.
        exclude: Token ids to leave out.
        loss_scale: Returns the factor by which the loss is multiplied in mixed precision; gradients are divided by it.

    Attributes:
        activations: The moments of the activations on this rank, by name of the site.
        gradients: The moments of the gradients on this rank, by name of the site.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Sequence[Site],
        exclude: Sequence[int] = (),
        loss_scale: Callable[[], float] | None = None,
    ) -> None:
        self.loss_scale = loss_scale
        self.activations: dict[str, Moments] = {}
        self.gradients: dict[str, Moments] = {}
        self._sites = sites
        self._model = model
        self._flow = Flow(model, sites, self._see, exclude)

    def __enter__(self) -> MomentStream:
        self._flow.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flow.__exit__(kind, error, trace)

    def total(self, site: str) -> dict[str, Moments]:
        """Return the moments of `activations` and `gradients` so far, over all ranks; every rank must call this."""
        device = device_of(self._model)
        totals = {
            "activations": summed(self.activations.get(site), device),
            "gradients": summed(self.gradients.get(site), device),
        }
        return {kind: moments for kind, moments in totals.items() if moments is not None}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the moments since the last `forget`, as tensors by name; every rank must call this."""
        state: dict[str, Tensor] = {}
        for site in self._sites:
            for kind, moments in self.total(site.name).items():
                parts = {"count": torch.tensor(moments.count), "mean": moments.mean, "scatter": moments.scatter}
                state |= {f"window/{kind}/{site.name}/{part}": value for part, value in parts.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from the `state_dict` of another stream."""
        device = device_of(self._model)
        for kind, moments in (("activations", self.activations), ("gradients", self.gradients)):
            for key in state:
                site = key.removeprefix(f"window/{kind}/").removesuffix("/count")
                if key == f"window/{kind}/{site}/count":
                    moments[site] = Moments(len(state[f"window/{kind}/{site}/mean"]), device=device)
                    moments[site].count = int(state[key])
                    for part in ("mean", "scatter"):
                        getattr(moments[site], part).copy_(state[f"window/{kind}/{site}/{part}"])

    def forget(self) -> None:
        """Forget all moments, to begin a new window."""
        self.activations.clear()
        self.gradients.clear()

    def _see(self, site: Site, batch: Batch, hidden: Tensor) -> None:
        """Compute the moments of the activations, and add them when the gradient comes."""
        waiting = [self._moments(kept_rows(hidden, batch))]

        def receive(gradient: Tensor) -> None:
            if not waiting:
                raise InputError(
                    "a forward pass must be back-propagated once if moments are streamed (moments_every), but a second "
                    f"gradient came at {site.name}; add the losses and call backward once, or leave moments_every out"
                )
            # The losses of ranks are averaged, as in `gathered_rows`.
            scale = world_size() * (1.0 if self.loss_scale is None else float(self.loss_scale()))
            rows = kept_rows(gradient, batch)
            self._add(self.activations, site, waiting.pop())
            self._add(self.gradients, site, self._moments(rows if scale == 1 else rows.float() / scale))

        on_gradient(hidden, receive)

    def _moments(self, rows: Tensor) -> Moments | None:
        """Return the moments of rows, or None if they are not finite."""
        try:
            return Moments(rows.shape[1], device=rows.device).update(rows)
        except InputError:
            # Overflow happens in a healthy training (loss scaling): it must neither end it nor make the window NaN.
            return None

    def _add(self, moments: dict[str, Moments], site: Site, new: Moments | None) -> None:
        """Merge new moments into those of a site."""
        if new is not None and new.count:
            moments[site.name] = moments[site.name].merge(new) if site.name in moments else new
