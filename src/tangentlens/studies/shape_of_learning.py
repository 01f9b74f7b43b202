"""The study of arXiv 2311.05928: anisotropy and dimension over depth and over training, with and without the mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tangentlens.studies.study import Inputs, Part, Study
from tangentlens.studies.train import TRAIN, TrainPlan

_SMALL = TrainPlan(
    models=("decoder", "encoder", "masked decoder"),
    seeds=3,
    held_out=0.1,
    measures=("manifold_entropy", "local_anisotropy"),
)
_PLANS = {
    "smoke": replace(_SMALL, seeds=2, vocabulary=512, length=32, layers=3, width=64, batch=16, steps=33, rank=8),
    "small": _SMALL,
    "full": replace(_SMALL, seeds=5, length=512, layers=12, width=768, batch=64, steps=50_001, learning_rate=6e-4),
}


def _parts(scale: str, inputs: Inputs) -> Sequence[Part]:
    return [Part("training", TRAIN, replace(_PLANS[scale], text=inputs.text, device=inputs.device))]


SHAPE_OF_LEARNING = Study(
    name="shape-of-learning",
    about="Trains decoders, encoders, and encoders with a causal mask: how do anisotropy and dimension take shape?",
    claims=("12a", "12b", "13", "14a", "14b", "15", "20"),
    costs={
        "smoke": "two minutes on two cores",
        "small": "about 20 minutes on two cores",
        "full": "fifteen networks of 85 million parameters; weeks on one GPU (estimated, not measured)",
    },
    parts=_parts,
)
