"""The profile of finished models: every measure of the activations, layer by layer."""

from pathlib import Path

from tangentlens.studies.job import Job
from tangentlens.studies.profile.measuring import run_profile
from tangentlens.studies.profile.plan import NAME, Profile
from tangentlens.studies.profile.section import SECTION

__all__ = ["PROFILE", "Profile", "run_profile"]

PROFILE = Job(
    NAME,
    Profile,
    run_profile,
    folder=lambda plan: Path("runs") / f"{NAME}-{'-'.join(Path(model).name or 'model' for model in plan.models)}",
    section=SECTION,
)
