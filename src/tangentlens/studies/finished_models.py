"""The tangent test and the audit of models that others trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tangentlens.errors import InputError
from tangentlens.models.load import check_model
from tangentlens.studies.audit import AUDIT, AuditPlan
from tangentlens.studies.study import Inputs, Part, Study
from tangentlens.studies.tangent import TEST, TestPlan

# Tokens whose gradients are looked at.
_TOKENS = {"smoke": 1024, "small": 8192, "full": 65_536}
# Where the tangent test looks: at `small` at sites evenly spread over depth, so that a deep model does not take hours.
# The audit looks at the stream half-way.
_SITES = {"smoke": "resid:3", "small": "resid:7", "full": "resid"}
# Steps for which a missing head is trained.
_FIT_HEAD = {"smoke": 5, "small": 200, "full": 2000}


def _parts(scale: str, inputs: Inputs) -> Sequence[Part]:
    if not inputs.models:
        raise InputError("finished-models must be given models, but got none; name them: models=path/to/one,hub/id")
    # A name is that of a folder, and what models are told apart by.
    names = [Path(model).absolute().name for model in inputs.models]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"models must have different names, but several are called {twice}; rename their folders")
    parts = []
    for name, model in zip(names, inputs.models, strict=True):
        check_model(model)
        how: dict[str, Any] = {
            "text": inputs.text,
            "tokens": _TOKENS[scale],
            "fit_head": _FIT_HEAD[scale],
            "device": inputs.device,
            "tokenizer": inputs.tokenizer,
        }
        parts.append(Part(f"test-{name}", TEST, TestPlan(model, sites=_SITES[scale], nulls=True, **how)))
        parts.append(Part(f"audit-{name}", AUDIT, AuditPlan(model, **how)))
    return parts


FINISHED_MODELS = Study(
    name="finished-models",
    about="Tests and audits finished models, given with --models, against their nulls.",
    claims=(
        *("1", "2", "3a", "3b", "5a", "5b", "9a", "9b", "10", "11", "12a", "12b"),
        *("21", "22", "23", "24", "25", "26"),
    ),
    costs={
        "smoke": "seconds to a minute for a small model",
        "small": "about 20 minutes on two cores for all-MiniLM-L6-v2, stories260K and SmolLM2-135M together",
        "full": "at all sites with eight times the tokens; hours on two cores (estimated, not measured)",
    },
    parts=_parts,
    takes_models=True,
)
