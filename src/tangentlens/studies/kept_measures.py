"""What was measured at a site, kept in the run: a mean over sites needs replicates, which records do not hold."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import torch

from tangentlens.alignment.tangent_result import Cell, TangentTest
from tangentlens.errors import InputError
from tangentlens.geometry.massive import Places
from tangentlens.geometry.measures import Estimate
from tangentlens.lens.measures import SiteMeasures
from tangentlens.runs.run import Run
from tangentlens.statistics.interval import Interval

# Nothing else is made when a file is read, whatever it holds.
_TYPES: list[Any] = [SiteMeasures, TangentTest, Cell, Estimate, Interval, Places, InputError]


def keep_measures(run: Run, part: str, measures: SiteMeasures) -> None:
    """Write what a mean over sites needs of one of them, beside the records of the same part."""
    buffer = io.BytesIO()
    torch.save(_for_means(measures), buffer)
    run.save_tensors(part, {"measures": torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)})


def kept_measures(run: Run, part: str) -> SiteMeasures | None:
    """Return what was kept of a site, or None if nothing was."""
    kept = run.load_tensors(part)
    if kept is None:
        return None
    with torch.serialization.safe_globals(_TYPES):
        held = io.BytesIO(kept[0]["measures"].numpy().tobytes())
        measures: SiteMeasures = torch.load(held, map_location="cpu", weights_only=True)
    return measures


def _for_means(measures: SiteMeasures) -> SiteMeasures:
    """Return the measures without what takes most room, and has no mean over sites."""
    test, without = measures.test, measures.without_massive
    if isinstance(test, TangentTest):
        test = replace(test, token_shares={}, chances={}, p_values={}, subspaces={})
    return replace(
        measures, test=test, without_massive=_for_means(without) if isinstance(without, SiteMeasures) else without
    )
