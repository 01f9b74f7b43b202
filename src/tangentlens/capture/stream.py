"""Moments of activations and gradients, added up over many training steps: all tokens, no rows kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import torch
from torch import Tensor, nn

from tangentlens.capture.batch import Batch
from tangentlens.capture.flow import Flow, kept_rows, on_gradient
from tangentlens.capture.ranks import world_size
from tangentlens.capture.sites import Site
from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments


class MomentStream:
    """A context in which training adds to `activations` and `gradients`, the moments of each site by its name.

    Rows that are not finite are left out and counted in `skipped`.

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
        self.skipped = 0
        self._flow = Flow(model, sites, self._see, exclude)

    def __enter__(self) -> MomentStream:
        self._flow.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flow.__exit__(kind, error, trace)

    def state_dict(self) -> dict[str, Tensor]:
        """The window so far, as tensors by name."""
        state: dict[str, Tensor] = {}
        for kind, moments in (("activations", self.activations), ("gradients", self.gradients)):
            for site, found in moments.items():
                parts = {"count": torch.tensor(found.count), "mean": found.mean, "scatter": found.scatter}
                state |= {f"window/{kind}/{site}/{part}": value for part, value in parts.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with the window of another stream."""
        for kind, moments in (("activations", self.activations), ("gradients", self.gradients)):
            for key in state:
                site = key.removeprefix(f"window/{kind}/").removesuffix("/count")
                if key == f"window/{kind}/{site}/count":
                    mean, scatter = (state[f"window/{kind}/{site}/{part}"].clone() for part in ("mean", "scatter"))
                    moments[site] = Moments(len(mean), device=mean.device)
                    moments[site].count = int(state[key])
                    moments[site].mean, moments[site].scatter = mean, scatter

    def forget(self) -> None:
        """Begin a new window."""
        self.activations.clear()
        self.gradients.clear()
        self.skipped = 0

    def _see(self, site: Site, batch: Batch, hidden: Tensor) -> None:
        self._add(self.activations, site, kept_rows(hidden, batch))
        on_gradient(hidden, lambda gradient: self._receive(site, batch, gradient))

    def _receive(self, site: Site, batch: Batch, gradient: Tensor) -> None:
        # The losses of ranks are averaged, as in `gathered_rows`.
        scale = world_size() * (1.0 if self.loss_scale is None else float(self.loss_scale()))
        rows = kept_rows(gradient, batch)
        self._add(self.gradients, site, rows if scale == 1 else rows.float() / scale)

    def _add(self, moments: dict[str, Moments], site: Site, rows: Tensor) -> None:
        try:
            new = Moments(rows.shape[1], device=rows.device).update(rows)
        except InputError:
            # A step that overflowed happens in a healthy training, and must neither end it nor spoil the window.
            self.skipped += 1
        else:
            moments[site.name] = moments[site.name].merge(new) if site.name in moments else new
