"""What a sweep would take: checkpoints, downloads, disk, memory and time, before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tangentlens.models.memory import free_memory
from tangentlens.runs.files import Place
from tangentlens.runs.run import is_run, open_run
from tangentlens.studies.sweep.downloads import is_here, size_on_hub
from tangentlens.studies.sweep.measuring import part_of
from tangentlens.studies.sweep.plan import SweepPlan
from tangentlens.studies.sweep.series import Series
from tangentlens.studies.sweep.trial import expected_cost


@dataclass(frozen=True)
class Estimate:
    """What a series would take.

    Attributes:
        model: The name of the series.
        checkpoints: The labels of all checkpoints.
        done: How many of them have been measured at all sites.
        to_download: How many of the others are to be downloaded.
        download_bytes: The size of these downloads; None where the hub does not say.
        seconds: The time for what is missing, on one machine like this one, without downloads.
        disk_bytes: The size of the results of what is missing.
        memory_bytes: The memory that each task needs.
        free_bytes: The memory that is free here; None where that cannot be known.
    """

    model: str
    checkpoints: Sequence[str]
    done: int
    to_download: int
    download_bytes: int | None
    seconds: float
    disk_bytes: int
    memory_bytes: int
    free_bytes: int | None


def estimate_sweep(plan: SweepPlan, out: str | Place, site_groups: int = 1) -> list[Estimate]:
    """Return what each series of a sweep would take; one checkpoint of each is loaded, and one site measured.

    Args:
        plan: The plan.
        out: The run directory or its URL, which may hold a part of the sweep.
        site_groups: Into how many tasks the sites of a checkpoint are split.
    """
    written = open_run(out).parts if is_run(out) else set()
    return [_estimate(plan, series, written, site_groups) for series in plan.series()]


def _estimate(plan: SweepPlan, series: Series, written: set[str], site_groups: int) -> Estimate:
    # This loads one checkpoint, and downloads it if it must.
    cost = expected_cost(plan, series, site_groups)
    missing = [one for one in series.checkpoints if part_of(series.name, one) not in written]
    far = [one for one in missing if not is_here(one)]
    size = size_on_hub(far[0]) if far else 0
    return Estimate(
        model=series.name,
        checkpoints=[one.label for one in series.checkpoints],
        done=len(series.checkpoints) - len(missing),
        to_download=len(far),
        download_bytes=None if size is None else size * len(far),
        seconds=cost.seconds * len(missing),
        disk_bytes=cost.disk * len(missing),
        memory_bytes=cost.memory,
        free_bytes=free_memory(plan.device),
    )
