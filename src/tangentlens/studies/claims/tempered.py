"""The claims about token frequencies: what changes if the distribution that a network is trained on is flatter."""

from __future__ import annotations

from tangentlens.runs.vocabulary import ACTIVATION, HELD_OUT
from tangentlens.studies.claims.claim import ANISOTROPY_MARGIN, DYNAMICS, RATIO_MARGIN, Claim, Needs
from tangentlens.studies.claims.estimands import Select
from tangentlens.studies.claims.twins import at_equal_loss
from tangentlens.training.tempering import WAYS

# What is looked at in each network, on the same held-out text.
ANISOTROPY = Select("anisotropy", quantity=ACTIVATION, site=None, null=HELD_OUT)
ENRICHMENT = Select("log_ratio", "random", order=1.0, site=None, null=HELD_OUT)
CURVATURE = Select("visible_curvature", quantity=ACTIVATION, site=None, null=HELD_OUT)
_NEEDS = Needs("trainings on tempered token frequencies, and on the text as it is", "tangentlens study frequency")
# The power of token frequencies at which claims are judged: the middle one of those that the study draws.
JUDGED = 0.5


def _flatter(number: str, way: str) -> Claim:
    return Claim(
        id=number,
        statement=f"Training on a flatter distribution of tokens ({way}) lowers anisotropy at equal loss.",
        source=DYNAMICS,
        effect=f"anisotropy on held-out text, {way} with alpha {JUDGED:g}, minus that of the twin, mean over sites",
        of=at_equal_loss(ANISOTROPY, f"{way} {JUDGED:g}"),
        needs=_NEEDS,
        margin=-ANISOTROPY_MARGIN,
        unit="difference",
        below=True,
        of_treated=True,
    )


def _poorer(number: str, way: str) -> Claim:
    return Claim(
        id=number,
        statement=f"Training on a flatter distribution of tokens ({way}) lowers tangent enrichment at equal loss.",
        source=DYNAMICS,
        effect=f"enrichment on held-out text, {way} with alpha {JUDGED:g} / that of the twin, mean over sites",
        of=at_equal_loss(ENRICHMENT, f"{way} {JUDGED:g}"),
        needs=_NEEDS,
        margin=-RATIO_MARGIN,
        below=True,
        of_treated=True,
    )


TEMPERED = (
    *(_flatter(f"8{letter}", way) for letter, way in zip("abc", WAYS, strict=True)),
    *(_poorer(f"8{letter}", way) for letter, way in zip("def", WAYS, strict=True)),
)
