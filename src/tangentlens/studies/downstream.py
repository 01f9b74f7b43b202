"""The study of what geometry tells: of probes on frozen activations, and of the loss at the end of a training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tangentlens.studies.claims.downstream import DOWNSTREAM as CLAIMED
from tangentlens.studies.claims.section import LEDGER
from tangentlens.studies.downstream_section import PROBES
from tangentlens.studies.study import Inputs, Part, Study
from tangentlens.studies.train import TRAIN
from tangentlens.studies.train_plan import many_decoders
from tangentlens.studies.warning_section import WARNINGS

# Multiples of the learning rate, from far too low to far too high, so that trainings end well and badly.
_RATES = {
    "smoke": (0.1, 1.0, 10.0),
    "small": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
    "full": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
}


def _parts(scale: str, inputs: Inputs) -> Sequence[Part]:
    plan = replace(many_decoders(steps=129, look="every")[scale], text=inputs.text, device=inputs.device)
    # A correlation over due steps needs some of them.
    plan = replace(plan, steps=max(plan.steps, 9))
    return [
        Part(f"rate-{times:g}", TRAIN, replace(plan, learning_rate=times * plan.learning_rate))
        for times in _RATES[scale]
    ]


DOWNSTREAM = Study(
    name="downstream",
    about="Trains decoders at good and bad learning rates: what does geometry tell of probes, and of the end?",
    claims=tuple(claim.id for claim in CLAIMED),
    costs={
        "smoke": "half a minute on two cores",
        "small": "3 to 7 minutes on two cores with --ray local, up to 13 without",
        "full": "30 networks of 100 million parameters; weeks on one GPU (estimated, not measured)",
    },
    parts=_parts,
    sections=(PROBES, WARNINGS, LEDGER),
)
