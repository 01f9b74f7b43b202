"""The probe of a lens: rows of a fixed text at the last due step and now, and the movement between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tangentlens.capture.distributed import is_first
from tangentlens.capture.probe import ProbeText
from tangentlens.capture.sites import Site
from tangentlens.errors import InputError
from tangentlens.lens.measures import Fitting
from tangentlens.lens.movement import (
    Pair,
    SiteMovement,
    mean_movement_records,
    measure_movement,
    site_movement_records,
)
from tangentlens.runs.records import Record
from tangentlens.runs.vocabulary import MEAN_SITE, MOVEMENT


class Probe:
    """Compares the activations of a fixed text between due steps; without a text, it does nothing.

    The model is run on the text just before a due step begins, so that movements are between the very weights with
    which the due steps themselves are measured. All ranks run it; the first one keeps rows and measures.

    Args:
        model: The model in training.
        sites: Where to look.
        probe: Token ids (sequences, length), a mapping of model inputs, or None.
        exclude: Token ids to leave out.
        skip_first: How many positions at the beginning of each sequence to leave out.
    """

    def __init__(
        self, model: nn.Module, sites: Sequence[Site], probe: Any, exclude: Sequence[int], skip_first: int
    ) -> None:
        self._model, self._sites = model, sites
        self._text = None if probe is None else ProbeText.of(probe, model, exclude, skip_first)
        if self._text is not None:
            for site in sites:
                self._text.tokens(site)
        # By site: the rows at the last due step, the number of that step, and the rows at the one that begins.
        self._before: dict[str, Tensor] = {}
        self._since: dict[str, int] = {}
        self._now: dict[str, Tensor] = {}

    @property
    def sha256(self) -> str | None:
        """The hash of the text, for the manifest."""
        return None if self._text is None else self._text.sha256

    def look(self) -> None:
        """Run the model on the text. Every rank must call this before a due step."""
        if self._text is not None:
            rows = self._text.rows(self._model, self._sites)
            self._now = rows if is_first() else {}

    def measure(self, about: Record, fitting: Fitting, device: torch.device) -> tuple[list[Record], dict[str, str]]:
        """Measure the movement since the last due step, and keep the rows of this one for the next.

        Args:
            about: What all records of the step have in common.
            fitting: The proxy and how it is compared.
            device: Where to compute.

        Returns:
            The records; and for sites that could not be measured, the reason.
        """
        records: list[Record] = []
        troubles: dict[str, str] = {}
        measured: list[SiteMovement] = []
        for site in (site for site in self._sites if site.name in self._now):
            here = replace(about, site=site.name, depth=site.depth)
            try:
                moved = self._moved(site, fitting, device)
                if moved is not None:
                    measured.append(moved)
                    records.extend(site_movement_records(here, moved))
            except InputError as error:
                troubles[f"{site.name} (probe)"] = str(error)
                records.append(replace(here, quantity=MOVEMENT).unmeasured(str(error)))
            self._keep(site, about.step)
        if measured:
            records.extend(mean_movement_records(replace(about, site=MEAN_SITE), measured))
        return records, troubles

    def _moved(self, site: Site, fitting: Fitting, device: torch.device) -> SiteMovement | None:
        """Return how a site moved; None at the first due step."""
        text, before = self._text, self._before.get(site.name)
        if text is None or before is None:
            return None
        pair = Pair(
            self._since[site.name],
            before.to(device),
            self._now[site.name].to(device),
            text.sequences(site).to(device),
            text.tokens(site).to(device),
        )
        return measure_movement(pair, fitting)

    def _keep(self, site: Site, step: int) -> None:
        """Keep the rows of this step, unless they are not finite: then those of the last due step serve on."""
        now = self._now.pop(site.name)
        if bool(now.isfinite().all()):
            self._before[site.name], self._since[site.name] = now, step

    def state_dict(self) -> dict[str, Tensor]:
        """Return the rows of the last due step, as tensors by name; the first rank has them."""
        rows = {f"probe/{site}": of_site for site, of_site in self._before.items()}
        return rows | {f"probe_step/{site}": torch.tensor(step) for site, step in self._since.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with the rows that another lens kept."""
        if self._text is None or not is_first():
            return
        for site in self._sites:
            rows = state.get(f"probe/{site.name}")
            if rows is None:
                continue
            if len(rows) != len(self._text.tokens(site)):
                raise InputError(
                    f"the state must be of the same probe, but has {len(rows)} rows at {site.name}, where this probe "
                    f"has {len(self._text.tokens(site))}; continue with the probe that the training began with"
                )
            self._before[site.name] = rows.cpu()
            self._since[site.name] = int(state[f"probe_step/{site.name}"])
