"""The study of arXiv 2311.05928: anisotropy and dimension over depth and over training, with and without the mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tangentlens.errors import InputError
from tangentlens.studies.study import Inputs, Part, Study
from tangentlens.studies.train import TRAIN
from tangentlens.studies.train_plan import TrainPlan


@dataclass(frozen=True)
class _Scale:
    """One scale of the study.

    Attributes:
        plan: The trainings.
        epoch_sites: Where every step of the first epoch is measured.
    """

    plan: TrainPlan
    epoch_sites: tuple[str, ...]


_SMALL = TrainPlan(
    models=("decoder", "encoder", "masked decoder"),
    seeds=3,
    units="enwik8",
    size=400_000,
    batch=16,
    steps=385,
    in_epochs=True,
    held_out=0.1,
    measures=("manifold_entropy", "local_anisotropy"),
)
_SCALES = {
    "smoke": _Scale(
        replace(_SMALL, seeds=2, units="symbols", size=3000, length=32, layers=2, width=32, steps=5, rank=8),
        epoch_sites=("resid.1",),
    ),
    "small": _Scale(_SMALL, epoch_sites=("resid.3",)),
    "full": _Scale(
        replace(_SMALL, seeds=5, size=None, length=512, layers=12, width=768, batch=64, steps=8001, learning_rate=6e-4),
        epoch_sites=("resid.6",),
    ),
}


def _parts(scale: str, inputs: Inputs) -> Sequence[Part]:
    chosen = _SCALES[scale]
    plan = replace(chosen.plan, text=inputs.text, device=inputs.device)
    if plan.units == "enwik8" and plan.text is None:
        raise InputError(
            f"shape-of-learning at {scale} must be given enwik8, but got no text; name the file with text=FILE (plain, "
            ".zip, .gz or .xz), or download it with `tangentlens enwik8`"
        )
    # Other seeds, so that these are further networks, in which every step of the first epoch is measured.
    dense = replace(
        plan, models=("decoder",), seed=plan.seeds, sites=chosen.epoch_sites, measures=(), dense=plan.epoch()
    )
    return [Part("training", TRAIN, plan), Part("first-epoch", TRAIN, dense)]


SHAPE_OF_LEARNING = Study(
    name="shape-of-learning",
    about="Trains decoders, encoders, and encoders with a causal mask: how do anisotropy and dimension take shape?",
    claims=(
        *("1", "2", "3a", "3b", "4a", "4b", "5a", "5b", "9a", "9b"),
        *("12a", "12b", "13", "14a", "14b", "14c", "15", "20"),
    ),
    costs={
        "smoke": "less than half a minute on two cores; characters of the built-in text",
        "small": "about 25 minutes on two cores; needs enwik8 (--text)",
        "full": "twenty networks of 85 million parameters; days on one GPU (estimated, not measured); needs enwik8",
    },
    parts=_parts,
)
