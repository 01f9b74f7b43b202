"""The claims about where representations move during training, and where their variance grows."""

from __future__ import annotations

from tangentlens.runs.vocabulary import MOVEMENT
from tangentlens.studies.claims.claim import DYNAMICS, LOOKED, OURS, TRAINING_STUDY, Claim, Needs
from tangentlens.studies.claims.estimands import Select, over_steps, smaller

_MOVEMENTS = Needs("movement on a probe text in a training", TRAINING_STUDY)
_GROWTH = Select("growth_log_ratio", "proxy", quantity=MOVEMENT)


def _moved(control: str) -> Select:
    return Select("log_ratio", control, quantity=MOVEMENT, order=1.0)


MOVING = (
    Claim(
        id="27a",
        statement="Representations move along the proxy more than along random directions.",
        source=OURS,
        effect="movement share of the proxy / of random subspaces, mean over sites and due steps",
        of=over_steps(_moved("random")),
        needs=_MOVEMENTS,
        known=LOOKED,
    ),
    Claim(
        id="27b",
        statement="Representations move along the proxy more than along the top principal components.",
        source=OURS,
        effect="movement share of the proxy / of `pca`, mean over sites and due steps",
        of=over_steps(_moved("pca")),
        needs=_MOVEMENTS,
        known=LOOKED,
    ),
    Claim(
        id="27c",
        statement="Representations move along the proxy more than along random directions of the same covariance.",
        source=OURS,
        effect="movement share of the proxy / of `covariance`, mean over sites and due steps",
        of=over_steps(_moved("covariance")),
        needs=_MOVEMENTS,
        known=LOOKED,
    ),
    Claim(
        id="28a",
        statement="Early in training, variance inside the proxy grows faster than outside.",
        source=DYNAMICS,
        effect="growth of variance inside / outside between due steps, mean over sites and the first tenth",
        of=over_steps(_GROWTH, early=True),
        needs=_MOVEMENTS,
        known=LOOKED,
    ),
    Claim(
        id="28b",
        statement="Throughout training, variance inside the proxy grows faster than outside.",
        source=DYNAMICS,
        effect="growth of variance inside / outside, mean over the first tenth or over the rest, whichever is less",
        of=smaller(over_steps(_GROWTH, early=False), over_steps(_GROWTH, early=True)),
        needs=_MOVEMENTS,
        known=LOOKED,
    ),
)
