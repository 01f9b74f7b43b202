"""Sweeps: many checkpoints of models that others train, on one machine or on a cluster."""

from pathlib import Path

from tangentlens.studies.job import Job
from tangentlens.studies.sweep.plan import NAME, SweepPlan
from tangentlens.studies.sweep.section import SECTION
from tangentlens.studies.sweep.sweeping import run_sweep

__all__ = ["SWEEP", "SweepPlan", "run_sweep"]


def _folder(plan: SweepPlan) -> Path:
    name = plan.preset or Path(plan.models[0]).name or "models"
    return Path("runs") / f"{NAME}-{name}"


SWEEP = Job(NAME, SweepPlan, run_sweep, _folder, SECTION, smaller="tokens=2048, sites=resid:8 or dtype=bfloat16")
