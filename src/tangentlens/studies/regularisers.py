"""The study of regularisers: what they do to anisotropy, dimension and enrichment, and what that costs in loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tangentlens.report.sections.treatments import TREATMENTS
from tangentlens.studies.claims.section import LEDGER
from tangentlens.studies.claims.treated import JUDGED, TREATED
from tangentlens.studies.study import Inputs, Part, Study
from tangentlens.studies.train import TRAIN
from tangentlens.studies.train_plan import many_decoders
from tangentlens.training.regularisers import TERMS

# Strengths, with the one that claims are judged at in the middle.
_STRENGTHS = {"smoke": (JUDGED,), "small": (0.03, JUDGED, 3.0), "full": (0.03, JUDGED, 3.0)}
# Networks of what claims are judged by: those without a penalty, and those at that strength.
_JUDGED_SEEDS = {"smoke": 2, "small": 5, "full": 5}


def _parts(scale: str, inputs: Inputs) -> Sequence[Part]:
    drawn = replace(many_decoders(steps=257, look="last")[scale], text=inputs.text, device=inputs.device)
    plain = replace(drawn, seeds=_JUDGED_SEEDS[scale])
    return [
        Part("plain", TRAIN, plain),
        *(
            Part(
                f"{name}-{strength:g}",
                TRAIN,
                replace(plain if strength == JUDGED else drawn, penalty=name, strength=strength),
            )
            for name in TERMS
            for strength in _STRENGTHS[scale]
        ),
    ]


REGULARISERS = Study(
    name="regularisers",
    about="Trains decoders with each regulariser at several strengths, and without: what changes at equal loss?",
    claims=tuple(claim.id for claim in TREATED),
    costs={
        "smoke": "half a minute on two cores",
        "small": "10 to 20 minutes on two cores with --ray local, up to 30 without",
        "full": "65 networks of 100 million parameters; weeks on one GPU (estimated, not measured)",
    },
    parts=_parts,
    sections=(TREATMENTS, LEDGER),
)
