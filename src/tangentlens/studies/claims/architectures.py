"""The claims about networks that are no transformers."""

from __future__ import annotations

from tangentlens.studies.claims.claim import OPEN_QUESTION, Claim, Needs
from tangentlens.studies.claims.estimands import Select, last

_NEEDS = Needs("tangent tests of networks without attention", "tangentlens study architectures")


def _enriched(number: str, kind: str, words: str) -> Claim:
    return Claim(
        id=number,
        statement=f"In {words}, the proxy takes a larger share of the gradient's energy than the normal control.",
        source=OPEN_QUESTION,
        effect="energy share of the proxy / of the normal control, mean over sites, last step",
        of=last(Select("log_ratio", "normal", order=1.0, kind=kind)),
        needs=_NEEDS,
    )


ARCHITECTURES = (_enriched("16a", "LSTM", "LSTMs"), _enriched("16b", "state space", "state-space models"))
