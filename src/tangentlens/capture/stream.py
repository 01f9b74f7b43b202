"""Moments of activations and gradients, added up over many training steps: all tokens, no rows kept."""

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
    """A context in which training adds to `activations` and `gradients`, the moments of each site by its name.

    A forward pass adds when it is back-propagated. Rows that are not finite are left out.

    Args:
        model: The model in training.
        sites: Where to look.
        exclude: Token ids to leave out.
        loss_scale: Tells by what the loss is multiplied in mixed precision; gradients are divided by it.
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
        """The moments of `activations` and of `gradients` so far, of all ranks; all of them must ask."""
        device = device_of(self._model)
        found = {
            "activations": summed(self.activations.get(site), device),
            "gradients": summed(self.gradients.get(site), device),
        }
        return {kind: moments for kind, moments in found.items() if moments is not None}

    def state_dict(self) -> dict[str, Tensor]:
        """The window so far, as tensors by name; all ranks must ask."""
        state: dict[str, Tensor] = {}
        for site in self._sites:
            for kind, found in self.total(site.name).items():
                parts = {"count": torch.tensor(found.count), "mean": found.mean, "scatter": found.scatter}
                state |= {f"window/{kind}/{site.name}/{part}": value for part, value in parts.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with the window of another stream."""
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
        """Begin a new window."""
        self.activations.clear()
        self.gradients.clear()

    def _see(self, site: Site, batch: Batch, hidden: Tensor) -> None:
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
        try:
            return Moments(rows.shape[1], device=rows.device).update(rows)
        except InputError:
            # A step that overflowed happens in a healthy training, and must neither end it nor spoil the window.
            return None

    def _add(self, moments: dict[str, Moments], site: Site, new: Moments | None) -> None:
        if new is not None and new.count:
            moments[site.name] = moments[site.name].merge(new) if site.name in moments else new
