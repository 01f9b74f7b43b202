"""What is kept of each site of a checkpoint: for the whole checkpoint once all are measured, and for later ones.

Sites of one checkpoint may be measured by several machines, so that none of them has all sites at hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tangentlens.alignment.prediction import GRADIENTS_THEN
from tangentlens.geometry.subspace import Subspace
from tangentlens.lens.measures import SiteMeasures
from tangentlens.lens.prediction import SitePrediction
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run
from tangentlens.studies.kept_measures import read_measures, read_test, told_measures, told_test
from tangentlens.studies.sweep.between import SiteBetween


@dataclass(frozen=True, eq=False)
class KeptSite:
    """What is kept of a site of a checkpoint.

    Attributes:
        measured: What a mean over sites needs; None if the site could not be measured.
        subspaces: What a later checkpoint is compared with, by name.
        earlier: The label of the checkpoint that it was compared with; empty if there was none.
        between: What happened since then; None if the site has no proxy.
        facts: What is known of the checkpoint, with its first site; empty with the others.
    """

    measured: SiteMeasures | None = None
    subspaces: Mapping[str, Subspace] = field(default_factory=dict)
    earlier: str = ""
    between: SiteBetween | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def site_part(part: str, site: str) -> str:
    """Return the name of the part of a site, given that of its checkpoint."""
    return f"{part} at {site}"


def keep_site(run: Run, part: str, site: str, kept: KeptSite) -> None:
    """Write what is kept of a site of a checkpoint.

    Args:
        run: The run.
        part: The name of the checkpoint's part.
        site: The name of the site.
        kept: What is kept.
    """
    told = {
        "measures": None if kept.measured is None else told_measures(kept.measured),
        "earlier": kept.earlier,
        "between": None if kept.between is None else _told_between(kept.between),
        "facts": dict(kept.facts),
    }
    bases = {f"{site}/{name}": one.basis for name, one in kept.subspaces.items()}
    run.save_tensors(site_part(part, site), bases, {"site": json.dumps(told)})


def kept_site(run: Run, part: str, site: str) -> KeptSite:
    """Return what was kept of a site whose records are there."""
    tensors, metadata = run.load_tensors(site_part(part, site)) or ({}, {})
    told = json.loads(metadata["site"])
    subspaces = {key.rsplit("/", 1)[1]: Subspace(basis) for key, basis in tensors.items()}
    return KeptSite(
        measured=told["measures"] and read_measures(told["measures"]),
        subspaces=subspaces,
        earlier=told["earlier"],
        between=told["between"] and _read_between(told["between"], subspaces[GRADIENTS_THEN]),
        facts=told["facts"],
    )


def kept_subspaces(run: Run, part: str, sites: Iterable[str]) -> dict[str, dict[str, Subspace]]:
    """Return the subspaces that were kept of a checkpoint, by site and name.

    Args:
        run: The run.
        part: The name of the checkpoint's part.
        sites: The names of the sites.
    """
    subspaces: dict[str, dict[str, Subspace]] = {}
    # Earlier versions kept those of all sites in one file.
    for name in (part, *(site_part(part, site) for site in sites)):
        tensors, _ = run.load_tensors(name) or ({}, {})
        for key, basis in tensors.items():
            site, variant = key.rsplit("/", 1)
            subspaces.setdefault(site, {})[variant] = Subspace(basis)
    return subspaces


def _told_between(between: SiteBetween) -> dict[str, Any]:
    """Return what happened at a site, in the types of JSON."""
    tests = {rows: told_test(test) for rows, test in between.prediction.tests.items()}
    return {"records": [vars(record) for record in between.records], "tests": tests}


def _read_between(told: dict[str, Any], leading: Subspace) -> SiteBetween:
    """Return what happened at a site as it was told."""
    prediction = SitePrediction({rows: read_test(test) for rows, test in told["tests"].items()}, leading)
    return SiteBetween([Record(**record) for record in told["records"]], prediction)
