"""What a lens remembers from one due step to the next: rows to fit on, and the subspaces it fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tangentlens.capture.distributed import gathered, is_first
from tangentlens.capture.sites import Site
from tangentlens.geometry.subspace import Subspace


class Memory:
    """Activations of the step before a due one, and the subspaces of the last due step.

    Attributes:
        fit_on: This rank's activations of the step before, by site.
        subspaces: The subspaces fitted at the last due step, by site and name; the first rank has them.
    """

    def __init__(self) -> None:
        self.fit_on: dict[str, Tensor] = {}
        self.subspaces: dict[str, dict[str, Subspace]] = {}

    def earlier(self, site: Site, device: torch.device) -> Tensor | None:
        """Return the activations of the step before, of all ranks; None if there are none, or not all are finite."""
        rows = gathered(self.fit_on.get(site.name), device)
        return rows if rows is not None and bool(rows.isfinite().all()) else None

    def state_dict(self, sites: Sequence[Site], device: torch.device) -> dict[str, Tensor]:
        """Return everything that is remembered, of all ranks, as tensors by name; all ranks must ask."""
        rows = {site.name: gathered(self.fit_on.get(site.name), device) for site in sites}
        state = {f"fit_on/{site}": of_site for site, of_site in rows.items() if of_site is not None}
        for site, subspaces in self.subspaces.items():
            state |= {f"proxy/{site}/{name}": q.basis for name, q in subspaces.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Continue with what another lens remembered."""
        self.subspaces = {}
        for key, value in state.items():
            kind, _, name = key.partition("/")
            # The rows of all ranks are the first one's now.
            if kind == "fit_on" and is_first():
                self.fit_on[name] = value.to(device)
            elif kind == "proxy":
                site, _, subspace = name.rpartition("/")
                self.subspaces.setdefault(site, {})[subspace] = Subspace(value.to(device))
