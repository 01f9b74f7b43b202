"""The audit of a checkpoint of a sweep: a run of its own, in the folder `audits` of the sweep."""

from __future__ import annotations

from dataclasses import fields

from tangentlens.runs.files import Place
from tangentlens.runs.run import is_run, open_run
from tangentlens.studies.audit import AUDIT, AuditPlan
from tangentlens.studies.sweep.measuring import Look

AUDITS = "audits"


def audit_checkpoint(look: Look) -> None:
    """Audit a checkpoint at the site half-way; one that has been audited is left as it is."""
    same = {one.name: getattr(look.plan, one.name) for one in fields(AuditPlan) if hasattr(look.plan, one.name)}
    plan = AuditPlan(**{**same, "target": look.checkpoint.spec, "sites": (), "tokenizer": look.tokenizer})
    AUDIT.run(plan, audit_folder(look))


def is_audited(look: Look) -> bool:
    """Return whether a checkpoint has been audited."""
    folder = audit_folder(look)
    return is_run(folder) and bool(open_run(folder).manifest.get("audits"))


def audit_folder(look: Look) -> Place:
    """Return the folder of the run that audits a checkpoint."""
    return look.out / AUDITS / look.part.replace("/", "--")
