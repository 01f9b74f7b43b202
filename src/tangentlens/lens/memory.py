"""What a lens remembers from one due step to the next: rows to fit on, and the subspaces it fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tangentlens.capture.device import Devices
from tangentlens.capture.distributed import gathered, is_first
from tangentlens.capture.sites import Site
from tangentlens.capture.step import Held
from tangentlens.geometry.rows import all_finite
from tangentlens.geometry.subspace import Subspace
from tangentlens.lens.concepts import Earlier


class Memory:
    """Activations of the step before a due one, and the subspaces and concepts of the last due step.

    Attributes:
        fit_on: This rank's activations of the step before, by site.
        subspaces: The subspaces fitted at the last due step, by site and name; the first rank has them.
        concepts: The concepts of the last due step that had any, by site, if they are put into words.
    """

    def __init__(self) -> None:
        self.fit_on: dict[str, Held] = {}
        self.subspaces: dict[str, dict[str, Subspace]] = {}
        self.concepts: dict[str, Earlier] = {}

    def earlier(self, site: Site, devices: Devices) -> Tensor | None:
        """Return the activations of the step before, of all ranks; None if there are none, or not all are finite."""
        rows = self._rows(site, devices)
        return rows if rows is not None and all_finite(rows) else None

    def _rows(self, site: Site, devices: Devices) -> Tensor | None:
        """Return the activations of the step before, of all ranks."""
        held = self.fit_on.get(site.name)
        return gathered(None if held is None else held.read(), devices)

    def state_dict(self, sites: Sequence[Site], devices: Devices) -> dict[str, Tensor]:
        """Return everything that is remembered, of all ranks, as tensors by name; all ranks must ask."""
        rows = {site.name: self._rows(site, devices) for site in sites}
        state = {f"fit_on/{site}": of_site for site, of_site in rows.items() if of_site is not None}
        for site, subspaces in self.subspaces.items():
            state |= {f"proxy/{site}/{name}": q.basis for name, q in subspaces.items()}
        return state | {f"concepts/{one.step}/{site}": one.directions for site, one in self.concepts.items()}

    def load_state_dict(self, state: Mapping[str, Tensor], devices: Devices) -> None:
        """Continue with what another lens remembered."""
        self.subspaces = {}
        for key, value in state.items():
            kind, _, name = key.partition("/")
            # The rows of all ranks are the first one's now.
            if kind == "fit_on" and is_first():
                rows = value.to(devices.measure)
                self.fit_on[name] = Held([(rows, torch.ones_like(rows[:, 0]).bool())])
            elif kind == "proxy":
                site, _, subspace = name.rpartition("/")
                self.subspaces.setdefault(site, {})[subspace] = Subspace(value.to(devices.measure))
            elif kind == "concepts":
                step, _, site = name.partition("/")
                self.concepts[site] = Earlier(int(step), value.to(devices.measure))
