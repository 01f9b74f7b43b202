"""The study of architectures: which part of a decoder makes the shape of its space, and what LSTMs do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tangentlens.models.variations import PLAIN, VARIATIONS
from tangentlens.report.sections.architectures import ABLATIONS
from tangentlens.studies.claims.architectures import ARCHITECTURES as CLAIMED
from tangentlens.studies.claims.section import LEDGER
from tangentlens.studies.study import Inputs, Part, Study
from tangentlens.studies.train import TRAIN
from tangentlens.studies.train_plan import TrainPlan, at_full_scale

_SMALL = TrainPlan(
    models=(*VARIATIONS, "masked decoder", "encoder"),
    seeds=3,
    vocabulary=1024,
    width=96,
    batch=16,
    held_out=0.1,
    evaluate=True,
    look="last",
    by_frequency=False,
    rank=8,
)
_PLANS = {
    "smoke": replace(
        _SMALL,
        models=(PLAIN, "LSTM", "state space", "masked decoder", "encoder"),
        seeds=2,
        vocabulary=300,
        length=16,
        layers=2,
        width=32,
        steps=2,
        rank=4,
    ),
    "small": _SMALL,
    "full": at_full_scale(_SMALL),
}


def _parts(scale: str, inputs: Inputs) -> Sequence[Part]:
    return [Part("training", TRAIN, replace(_PLANS[scale], text=inputs.text, device=inputs.device))]


ARCHITECTURES = Study(
    name="architectures",
    about="Trains decoders that differ in one respect each, LSTMs and state-space models: which part makes the shape?",
    claims=tuple(claim.id for claim in CLAIMED),
    costs={
        "smoke": "half a minute on two cores",
        "small": "10 to 20 minutes on two cores with --ray local, up to 45 without",
        "full": "60 networks of 100 million parameters; weeks on one GPU (estimated, not measured)",
    },
    parts=_parts,
    sections=(ABLATIONS, LEDGER),
)
