"""See how a language model's representation space takes shape while it learns."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tangentlens.alignment.active_concepts import active_concepts
from tangentlens.alignment.active_result import ActiveConcepts
from tangentlens.alignment.audit import Audit, audit
from tangentlens.alignment.chance import Chance, chance
from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.movement import movement
from tangentlens.alignment.movement_result import Movement
from tangentlens.alignment.share import share
from tangentlens.alignment.tangent_result import TangentTest
from tangentlens.alignment.tangent_test import tangent_test
from tangentlens.corpora.counts import TokenCounts
from tangentlens.corpora.relabel import Relabelling
from tangentlens.errors import InputError
from tangentlens.geometry import manifolds
from tangentlens.geometry.curvature.local_geometry import LocalGeometry, local_geometry
from tangentlens.geometry.dimension.entropy import ManifoldEntropy, manifold_entropy
from tangentlens.geometry.dimension.intrinsic import IntrinsicDimension, intrinsic_dimension
from tangentlens.geometry.linear_probe import LinearProbe, linear_probe
from tangentlens.geometry.massive import MassiveRows, massive_rows
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.spectrum.alpha_req import alpha_req
from tangentlens.geometry.spectrum.anisotropy import anisotropy
from tangentlens.geometry.spectrum.cosine import mean_cosine, rogue_dimensions
from tangentlens.geometry.spectrum.direction_counts import (
    effective_rank,
    entropy_rank,
    isoscore,
    participation_ratio,
    rankme,
    stable_rank,
)
from tangentlens.geometry.spectrum.local_anisotropy import LocalAnisotropy, local_anisotropy
from tangentlens.geometry.spectrum.partition import partition_isotropy
from tangentlens.geometry.subspace import Subspace
from tangentlens.lens.alarms import Alarm
from tangentlens.lens.lens import Lens
from tangentlens.lens.schedule import log_steps
from tangentlens.proxies.semi_nmf import SemiNMF
from tangentlens.runs.run import Run, open_run
from tangentlens.statistics.corrections import benjamini_hochberg, holm
from tangentlens.statistics.interval import Interval
from tangentlens.training import regularisers
from tangentlens.training.penalty import Penalty

if TYPE_CHECKING:
    from tangentlens.studies.functions import model_audit, model_test, profile, show, sweep
else:
    # The commands as functions need everything that draws a report, which others need not wait for. Type checkers see
    # the names above alone, so that they find a name that does not exist.
    _COMMANDS = ("model_audit", "model_test", "profile", "show", "sweep")

    def __getattr__(name: str) -> Any:
        if name not in _COMMANDS:
            raise AttributeError(f"module 'tangentlens' has no attribute {name!r}")
        return getattr(import_module("tangentlens.studies.functions"), name)


def __dir__() -> list[str]:
    """Return the public names, for those who look what there is."""
    return __all__


__all__ = [
    "ActiveConcepts",
    "Alarm",
    "Audit",
    "Chance",
    "FrequencyBins",
    "InputError",
    "Interval",
    "IntrinsicDimension",
    "Lens",
    "LinearProbe",
    "LocalAnisotropy",
    "LocalGeometry",
    "ManifoldEntropy",
    "MassiveRows",
    "Moments",
    "Movement",
    "Penalty",
    "Relabelling",
    "Run",
    "SemiNMF",
    "Subspace",
    "TangentTest",
    "TokenCounts",
    "active_concepts",
    "alpha_req",
    "anisotropy",
    "audit",
    "benjamini_hochberg",
    "chance",
    "effective_rank",
    "entropy_rank",
    "holm",
    "intrinsic_dimension",
    "isoscore",
    "linear_probe",
    "local_anisotropy",
    "local_geometry",
    "log_steps",
    "manifold_entropy",
    "manifolds",
    "massive_rows",
    "mean_cosine",
    "model_audit",
    "model_test",
    "movement",
    "open_run",
    "participation_ratio",
    "partition_isotropy",
    "profile",
    "rankme",
    "regularisers",
    "rogue_dimensions",
    "share",
    "show",
    "stable_rank",
    "sweep",
    "tangent_test",
]
