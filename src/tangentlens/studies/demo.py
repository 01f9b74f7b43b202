"""The demo as a study: a small decoder and a small encoder on built-in text, with the lens on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tangentlens.studies.study import Inputs, Part, Study
from tangentlens.studies.train import TRAIN
from tangentlens.studies.train_plan import TrainPlan

_PLANS = {
    "smoke": TrainPlan(
        vocabulary=512,
        length=16,
        layers=2,
        width=32,
        batch=16,
        steps=3,
        rank=4,
        sites=("resid.1",),
        concepts=True,
    ),
    "small": TrainPlan(concepts=True),
}


def _parts(scale: str, inputs: Inputs) -> Sequence[Part]:
    return [Part("", TRAIN, replace(_PLANS[scale], text=inputs.text, device=inputs.device))]


DEMO = Study(
    name="demo",
    about="Trains a small decoder and a small encoder with the lens on: one network of each, so it judges no claim.",
    claims=(),
    costs={"smoke": "a few seconds", "small": "two to four minutes on two cores"},
    parts=_parts,
)
