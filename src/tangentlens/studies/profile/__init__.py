"""The profile of finished models: every measure of the activations, layer by layer."""

from pathlib import Path

from tangentlens.studies.job import Job
from tangentlens.studies.profile.measuring import run_profile
from tangentlens.studies.profile.plan import NAME, Profile
from tangentlens.studies.profile.section import SECTION

__all__ = ["PROFILE", "Profile", "run_profile"]


def _folder(plan: Profile) -> Path:
    """Return the default folder, named after preset and models."""
    preset = [] if plan.preset is None else [plan.preset]
    limit = [] if plan.up_to is None else ["up-to", f"{plan.up_to:g}"]
    return Path("runs") / "-".join([NAME, *preset, *limit, *(Path(model).name or "model" for model in plan.models)])


PROFILE = Job(
    NAME,
    Profile,
    run_profile,
    folder=_folder,
    smaller="batch_tokens=2048, length=64, sites=resid:8 or dtype=bfloat16",
    section=SECTION,
)
