"""The study of arXiv 2604.08764: does training push along directions tangent to the representations?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tangentlens.studies.audit import AUDIT, AuditPlan
from tangentlens.studies.study import Inputs, Part, Study
from tangentlens.studies.tangent import TEST, TestPlan
from tangentlens.studies.train import TRAIN
from tangentlens.studies.train_plan import TrainPlan, at_full_scale

_SMALL = TrainPlan(seeds=3, held_out=0.1, measures=("manifold_entropy",), updates=("embed",), predict=True, probe=True)
_PLANS = {
    "smoke": replace(_SMALL, seeds=2, vocabulary=512, length=16, layers=2, width=32, batch=16, steps=17, rank=4),
    "small": _SMALL,
    "full": at_full_scale(_SMALL),
}
# Tokens of held-out text whose gradients are looked at after training.
_TOKENS = {"smoke": 256, "small": 8192, "full": 32_768}
# Where the tangent test looks.
_SITES: dict[str, str] = {"smoke": "resid.1", "small": "resid", "full": "resid"}


def _parts(scale: str, inputs: Inputs) -> Sequence[Part]:
    plan = replace(_PLANS[scale], text=inputs.text, device=inputs.device)
    trained, tokens = str(inputs.out / "training"), _TOKENS[scale]
    test = TestPlan(trained, sites=_SITES[scale], rank=plan.rank, nulls=True, tokens=tokens, device=inputs.device)
    return [
        Part("training", TRAIN, plan),
        Part("test", TEST, test),
        Part("audit", AUDIT, AuditPlan(trained, rank=plan.rank, tokens=tokens, device=inputs.device)),
    ]


LEARNING_DYNAMICS = Study(
    name="learning-dynamics",
    about="Trains encoders and decoders with the lens on, then tests and audits each: do gradients follow the proxy?",
    claims=(
        *("1", "2", "3a", "3b", "4a", "4b", "5a", "5b", "6", "9a", "9b", "10", "11", "12a", "12b"),
        *("14a", "14b", "18a", "18b", "20", "21", "22", "23", "24", "27a", "27b", "27c", "28a", "28b"),
    ),
    costs={
        "smoke": "a minute on two cores",
        "small": "about 20 minutes on two cores",
        "full": "ten networks of 100 million parameters; days on one GPU (estimated, not measured)",
    },
    parts=_parts,
)
