"""The claims about what representations are good for: do probes do better where the geometry is another?"""

from __future__ import annotations

from tangentlens.runs.vocabulary import ACTIVATION, HELD_OUT, PROBE_SKILL
from tangentlens.studies.claims.claim import CORRELATION_MARGIN, OPEN_QUESTION, Claim, Needs
from tangentlens.studies.claims.estimands import Select, change_correlation, rank_correlation
from tangentlens.studies.claims.tempered import ANISOTROPY, ENRICHMENT
from tangentlens.studies.claims.twins import HELD_OUT_LOSS

# The mean over sites and tasks, and what it is compared with; all on the same held-out text.
SKILL = Select(PROBE_SKILL, None, quantity=ACTIVATION, site=None, null=HELD_OUT)
GEOMETRY = {
    "anisotropy": ANISOTROPY,
    "intrinsic dimension": Select("intrinsic_dimension", quantity=ACTIVATION, site=None, null=HELD_OUT),
    "entropy": Select("manifold_entropy", quantity=ACTIVATION, site=None, null=HELD_OUT),
    "ln(share of the proxy / chance)": ENRICHMENT,
}
_NEEDS = Needs("probes at four or more steps of trainings", "tangentlens study downstream")

DOWNSTREAM = (
    Claim(
        id="19a",
        statement="Over training, probes do better where anisotropy is lower.",
        source=OPEN_QUESTION,
        effect="Spearman's correlation of anisotropy and the skill of probes over due steps, means over sites",
        of=rank_correlation(ANISOTROPY, SKILL),
        needs=_NEEDS,
        margin=-CORRELATION_MARGIN,
        unit="correlation",
        below=True,
    ),
    Claim(
        id="19b",
        statement="Where anisotropy falls more than the loss explains, probes get better.",
        source=OPEN_QUESTION,
        effect="rank correlation of the changes of both between due steps, given the change of the held-out loss",
        of=change_correlation(ANISOTROPY, SKILL, HELD_OUT_LOSS),
        needs=_NEEDS,
        margin=-CORRELATION_MARGIN,
        unit="correlation",
        below=True,
    ),
)
