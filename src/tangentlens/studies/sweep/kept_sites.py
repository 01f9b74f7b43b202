"""What is kept of the sites of a checkpoint until all are measured, wherever that is done.

No machine may have all sites at hand, and readers of the run shall see no checkpoint with a part of its sites. So each
site is kept in a file of its own, and becomes records together with the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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

# The text about a file of tensors that says what is kept beside them.
_KEPT = "kept"


@dataclass(frozen=True, eq=False)
class KeptSite:
    """What is kept of a site of a checkpoint.

    Attributes:
        records: Its records.
        measured: What a mean over sites needs; None if the site could not be measured.
        subspaces: What a later checkpoint is compared with, by name.
        earlier: The label of the checkpoint that it was compared with; empty if there was none.
        between: What happened since then; None if the site has no proxy.
        facts: What is known of the checkpoint as a whole, with its first site; empty with the others.
    """

    records: Sequence[Record]
    measured: SiteMeasures | None = None
    subspaces: Mapping[str, Subspace] = field(default_factory=dict)
    earlier: str = ""
    between: SiteBetween | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def keep_site(run: Run, name: str, kept: KeptSite) -> None:
    """Write what is kept of a site, under a name that no other site of the run has."""
    told = {
        "records": _told_records(kept.records),
        "measured": None if kept.measured is None else told_measures(kept.measured),
        "earlier": kept.earlier,
        "between": None if kept.between is None else _told_between(kept.between),
        "facts": dict(kept.facts),
    }
    run.save_tensors(name, {one: space.basis for one, space in kept.subspaces.items()}, {_KEPT: json.dumps(told)})


def is_kept(run: Run, name: str) -> bool:
    """Return whether a site is kept."""
    return _KEPT in (run.about_tensors(name) or {})


def kept_site(run: Run, name: str) -> KeptSite | None:
    """Return what is kept of a site; None if it is not kept yet, or not any more."""
    tensors, about = run.load_tensors(name) or ({}, {})
    if _KEPT not in about:
        return None
    told, subspaces = json.loads(about[_KEPT]), {one: Subspace(basis) for one, basis in tensors.items()}
    return KeptSite(
        records=_read_records(told["records"]),
        measured=told["measured"] and read_measures(told["measured"]),
        subspaces=subspaces,
        earlier=told["earlier"],
        between=told["between"] and _read_between(told["between"], subspaces[GRADIENTS_THEN]),
        facts=told["facts"],
    )


def _told_records(records: Sequence[Record]) -> list[dict[str, Any]]:
    return [vars(record) for record in records]


def _read_records(told: Sequence[dict[str, Any]]) -> list[Record]:
    return [Record(**record) for record in told]


def _told_between(between: SiteBetween) -> dict[str, Any]:
    """Return what happened at a site, in the types of JSON."""
    tests = {rows: told_test(test) for rows, test in between.prediction.tests.items()}
    return {"records": _told_records(between.records), "tests": tests}


def _read_between(told: dict[str, Any], leading: Subspace) -> SiteBetween:
    """Return what happened at a site as it was told."""
    prediction = SitePrediction({rows: read_test(test) for rows, test in told["tests"].items()}, leading)
    return SiteBetween(_read_records(told["records"]), prediction)
