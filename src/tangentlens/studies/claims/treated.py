"""The claims about what changes if training is changed: each is judged beside untreated twins, at equal loss."""

from __future__ import annotations

from tangentlens.runs.vocabulary import ACTIVATION
from tangentlens.studies.claims.claim import ANISOTROPY_MARGIN, OPEN_QUESTION, Claim, Needs
from tangentlens.studies.claims.estimands import Select
from tangentlens.studies.claims.twins import at_equal_loss

_ANISOTROPY = Select("anisotropy", quantity=ACTIVATION, site=None)
_NEEDS = Needs("trainings with and without a penalty, with losses on held-out text", "tangentlens study regularisers")
# The strength at which a regulariser is judged: the middle one of those that the study draws.
JUDGED = 0.3


def _lowers(number: str, name: str, words: str) -> Claim:
    return Claim(
        id=number,
        statement=f"A penalty on {words} lowers anisotropy at equal loss.",
        source=OPEN_QUESTION,
        effect=f"anisotropy with `{name}` at strength {JUDGED:g} minus that of the twin without it, mean over sites",
        of=at_equal_loss(_ANISOTROPY, f"{name} {JUDGED:g}"),
        needs=_NEEDS,
        margin=-ANISOTROPY_MARGIN,
        unit="difference",
        below=True,
        known="written after a look at one network of each kind, with a seed that is not among those judged",
        of_treated=True,
    )


TREATED = (
    _lowers("17a", "cosine", "the mean cosine"),
    _lowers("17b", "spectral", "the inverse of the participation ratio"),
    _lowers("17c", "isoscore", "1 - IsoScore*"),
    _lowers("17d", "bending", "the distance from the flat through neighbours (curvature-aware)"),
)
