"""Moments of activations and gradients over many training steps, from all tokens and without keeping rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import torch
from torch import Tensor, nn

from tangentlens.capture.batch import Batch
from tangentlens.capture.device import Devices, MeasureOn
from tangentlens.capture.distributed import summed, world_size
from tangentlens.capture.flow import Flow, on_gradient, rows_of
from tangentlens.capture.sites import Site
from tangentlens.capture.split import split_of
from tangentlens.errors import InputError
from tangentlens.geometry.massive import THRESHOLD
from tangentlens.geometry.moments import Moments
from tangentlens.runs.vocabulary import ALL_ROWS, WITHOUT_MASSIVE

KINDS = ("activations", "gradients")


class MomentStream:
    """A context in which training steps add to the moments of each site's activations and gradients.

    A forward pass is added when it is back-propagated. A pass with values that are not finite is left out. Moments of
    massive rows are kept separately, so that they can be left out: a row is massive by the median length of its own
    pass, and its gradient goes with it.

    Args:
        model: The model in training.
        sites: Where to look.
        exclude: Token ids to leave out.
        loss_scale: Returns the factor by which the loss is multiplied in mixed precision; gradients are divided by it.
        skip_first: How many positions at the beginning of each sequence to leave out.
        massive: How many times as long as the median row of its pass a row must be to count as massive.
        measure_on: 'cpu' if rows are moved to the host as they come.

    Attributes:
        ordinary: The moments of rows that are not massive, on this rank, by `kind/site`.
        massive: The moments of massive rows, likewise; sites without any are missing.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Sequence[Site],
        exclude: Sequence[int] = (),
        loss_scale: Callable[[], float] | None = None,
        skip_first: int = 0,
        massive: float = THRESHOLD,
        measure_on: MeasureOn | None = None,
    ) -> None:
        self.loss_scale = loss_scale
        self.threshold = massive
        self.ordinary: dict[str, Moments] = {}
        self.massive: dict[str, Moments] = {}
        # Whether the moments are from a checkpoint that did not keep massive rows apart.
        self._mixed = False
        self._sites = sites
        self._scale: float | None = None
        self._flow = Flow(model, sites, self._see, exclude, skip_first=skip_first, measure_on=measure_on)

    @property
    def devices(self) -> Devices:
        """Return where ranks exchange numbers, and where rows are measured."""
        return self._flow.devices

    def __enter__(self) -> MomentStream:
        self._scale = None
        self._flow.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flow.__exit__(kind, error, trace)

    def total(self, site: str) -> dict[str, dict[str, Moments]]:
        """Return the moments so far, over all ranks; every rank must call this.

        Returns:
            The moments of `activations` and `gradients`, if any came, of the rows `all` and, if some rows are massive,
            `without_massive`.
        """
        totals: dict[str, dict[str, Moments]] = {}
        for kind in KINDS:
            ordinary, massive = self._summed(f"{kind}/{site}")
            together = [part for part in (ordinary, massive) if part is not None]
            if together:
                whole = Moments(together[0].dim, device=together[0].mean.device)
                for part in together:
                    whole.merge(part)
                totals.setdefault(ALL_ROWS, {})[kind] = whole
            if len(together) == 2 and not self._mixed:
                totals.setdefault(WITHOUT_MASSIVE, {})[kind] = together[0]
        return totals

    def _summed(self, key: str) -> list[Moments | None]:
        """Return the moments of ordinary and of massive rows, over all ranks."""
        own = [moments.get(key) for moments in (self.ordinary, self.massive)]
        return [summed(None if one is None or not one.count else one, self.devices) for one in own]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the moments since the last `forget`, as tensors by name; every rank must call this."""
        state: dict[str, Tensor] = {}
        for key in (f"{kind}/{site.name}" for site in self._sites for kind in KINDS):
            for name, moments in zip(("ordinary", "massive"), self._summed(key), strict=True):
                if moments is not None:
                    parts = {"count": torch.tensor(moments.count), "mean": moments.mean, "scatter": moments.scatter}
                    state |= {f"{name}/{key}/{part}": value for part, value in parts.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from the `state_dict` of another stream."""
        self._mixed = any(key.startswith("window/") for key in state)
        for name, moments in (("window", self.ordinary), ("ordinary", self.ordinary), ("massive", self.massive)):
            for count in (key for key in state if key.startswith(f"{name}/") and key.endswith("/count")):
                key = count.removeprefix(f"{name}/").removesuffix("/count")
                moments[key] = Moments(len(state[f"{name}/{key}/mean"]), device=self.devices.measure)
                moments[key].count = int(state[count])
                for part in ("mean", "scatter"):
                    getattr(moments[key], part).copy_(state[f"{name}/{key}/{part}"])

    def forget(self) -> None:
        """Forget all moments, to begin a new window."""
        self.ordinary.clear()
        self.massive.clear()
        self._mixed = False

    def _see(self, site: Site, batch: Batch, hidden: Tensor) -> None:
        """Compute the moments of the activations, and add them when the gradient comes."""
        rows = rows_of(hidden, batch)
        try:
            split = split_of(rows, batch.at_stored(batch.keep), self.threshold)
            waiting = [split.moments(rows)]
        except InputError:
            # Overflow happens in a healthy training (loss scaling): it must neither end it nor make the window NaN.
            return

        def receive(gradient: Tensor) -> None:
            if not waiting:
                raise InputError(
                    "a forward pass must be back-propagated once if moments are streamed (moments_every), but a second "
                    f"gradient came at {site.name}; add the losses and call backward once, or leave moments_every out"
                )
            # The scale does not change before the optimizer's step, and to read it may mean to wait for a GPU.
            if self._scale is None:
                self._scale = 1.0 if self.loss_scale is None else float(self.loss_scale())
            # The losses of ranks are averaged, as in `gathered_rows`.
            scale = world_size() * self._scale
            rows = rows_of(gradient, batch)
            activations = waiting.pop()
            try:
                both = split.both(activations, rows if scale == 1 else rows.float() / scale)
            except InputError:
                return
            for kind, (ordinary, few) in zip(KINDS, both, strict=True):
                _add(self.ordinary, f"{kind}/{site.name}", ordinary)
                _add(self.massive, f"{kind}/{site.name}", few)

        on_gradient(hidden, receive)


def _add(moments: dict[str, Moments], key: str, new: Moments | None) -> None:
    """Merge new moments into those under a key."""
    if new is not None:
        moments[key] = moments[key].merge(new) if key in moments else new
