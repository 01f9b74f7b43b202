"""The study of token frequencies: the same networks, trained on flatter distributions made in three ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tangentlens.studies.claims.section import LEDGER
from tangentlens.studies.claims.tempered import JUDGED, TEMPERED
from tangentlens.studies.frequency_section import FREQUENCIES
from tangentlens.studies.study import Inputs, Part, Study
from tangentlens.studies.train import TRAIN
from tangentlens.studies.train_plan import many_decoders
from tangentlens.training.tempering import WAYS

# Powers of token frequencies below 1, with the one that claims are judged at in the middle.
_ALPHAS = {"smoke": (JUDGED,), "small": (0.75, JUDGED, 0.0), "full": (0.75, JUDGED, 0.0)}


def _parts(scale: str, inputs: Inputs) -> Sequence[Part]:
    plain = replace(many_decoders(steps=129, look="every")[scale], text=inputs.text, device=inputs.device)
    return [
        Part("plain", TRAIN, plain),
        *(
            Part(f"{way}-{alpha:g}", TRAIN, replace(plain, tempering=way, alpha=alpha))
            for way in WAYS
            for alpha in _ALPHAS[scale]
        ),
    ]


FREQUENCY = Study(
    name="frequency",
    about="Trains decoders on token frequencies p^alpha, made in three ways: what does a flatter distribution change?",
    claims=tuple(claim.id for claim in TEMPERED),
    costs={
        "smoke": "half a minute on two cores",
        "small": "6 to 12 minutes on two cores with --ray local, up to 20 without",
        "full": "50 networks of 100 million parameters; weeks on one GPU (estimated, not measured)",
    },
    parts=_parts,
    sections=(FREQUENCIES, LEDGER),
)
