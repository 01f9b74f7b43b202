"""The claims on trial: each is data, and its verdict is computed from records.

A new claim is an entry in `CLAIMS`; if none of the numbers in `estimands.py` fits, also a function there. Claims about
the movement of representations are in `moving.py`, and those about trainings that are changed on purpose in
`treated.py` and `tempered.py`; those about probes are in `downstream.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tangentlens.runs.vocabulary import (
    ACTIVATION,
    ALL_ROWS,
    AUDIT,
    LATER_GRADIENT,
    UPDATE,
    WITHOUT_MASSIVE,
    derived,
)
from tangentlens.studies.claims.architectures import ARCHITECTURES
from tangentlens.studies.claims.claim import (
    ANISOTROPY_MARGIN,
    CORRELATION_MARGIN,
    DYNAMICS,
    FINISHED_STUDY,
    LOOKED,
    OURS,
    REFEREE,
    SHAPE,
    SHAPE_STUDY,
    TRAINING_STUDY,
    Claim,
    Needs,
)
from tangentlens.studies.claims.downstream import DOWNSTREAM
from tangentlens.studies.claims.estimands import (
    EARLY,
    Select,
    among_above,
    among_massive,
    bell,
    beside_twin,
    difference,
    emergence_of,
    last,
    logarithm,
    of_kept_rows,
    over_steps,
    persistence_of,
    rank_correlation,
    relative_range,
    rise_and_fall,
    smaller,
)
from tangentlens.studies.claims.moving import MOVING
from tangentlens.studies.claims.tempered import TEMPERED
from tangentlens.studies.claims.treated import TREATED

_NORMAL = Select("log_ratio", "normal", order=1.0)
_RANDOM = Select("log_ratio", "random", order=1.0)
_TESTS = Needs("tangent tests of gradients at all sites, with the mean over sites", TRAINING_STUDY)
_STEPS = Needs("tangent tests at three or more steps of a training", TRAINING_STUDY)
_BINS = Needs("tangent tests in frequency bins", TRAINING_STUDY)
_UPDATES = Needs("updates of the embedding", TRAINING_STUDY)
_AUDITS = Needs("an audit", TRAINING_STUDY)
_ACTIVE = Needs("a test of active concepts", TRAINING_STUDY)
_LATER = Needs("predictions of later gradients in a training", TRAINING_STUDY)
_PROFILES = Needs("anisotropy at all residual sites", SHAPE_STUDY)


def _of_updates(variant: str) -> Select:
    return Select("share", variant, quantity=UPDATE, order=1.0, site=None)


def _later(control: str) -> Select:
    return Select("log_ratio", control, quantity=LATER_GRADIENT, order=1.0)


def _audited(check: str) -> Select:
    return Select(derived(AUDIT, check), "log_ratio", site=None)


_ENTROPY = Select("manifold_entropy", quantity=ACTIVATION, site=None)
_ANISOTROPY = Select("anisotropy", quantity=ACTIVATION, site=None)

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="1",
        statement="In encoders, the proxy takes a larger share of the gradient's energy than the normal control.",
        source=DYNAMICS,
        effect="energy share of the proxy / of the normal control, mean over sites, last step",
        of=last(replace(_NORMAL, kind="encoder")),
        needs=_TESTS,
    ),
    Claim(
        id="2",
        statement="In decoders, the proxy takes a larger share of the gradient's energy than the normal control.",
        source=DYNAMICS,
        effect="energy share of the proxy / of the normal control, mean over sites, last step",
        of=last(replace(_NORMAL, kind="decoder")),
        needs=_TESTS,
    ),
    Claim(
        id="3a",
        statement="The proxy takes a larger share of the gradient's anisotropy than the normal control.",
        source=DYNAMICS,
        effect="anisotropy share (order 2) of the proxy / of the normal control, mean over sites, last step",
        of=last(Select("log_ratio", "normal", order=2.0)),
        needs=_TESTS,
    ),
    Claim(
        id="3b",
        statement="The enrichment of anisotropy exceeds that of energy.",
        source=DYNAMICS,
        effect="anisotropy share of the proxy / its energy share, mean over sites, last step",
        of=difference(last(Select("log_ratio", "random", order=2.0)), last(_RANDOM)),
        needs=_TESTS,
    ),
    Claim(
        id="4a",
        statement="The enrichment over the normal control emerges within the first tenth of training.",
        source=DYNAMICS,
        effect="log2(step from which the 95% interval stays above 1 / last step)",
        of=emergence_of(_NORMAL),
        needs=_STEPS,
        margin=math.log2(EARLY),
        unit="doublings",
        below=True,
        resolution=1.0,
    ),
    Claim(
        id="4b",
        statement="Once it has emerged, the enrichment persists.",
        source=DYNAMICS,
        effect="part of the due steps, from the first at which it holds, at which the 95% interval lies above 1",
        of=persistence_of(_NORMAL),
        needs=_STEPS,
        margin=0.9,
        unit="fraction",
        resolution=0.1,
    ),
    Claim(
        id="5a",
        statement="The proxy takes more of the gradients of frequent targets than of rare ones.",
        source=DYNAMICS,
        effect="energy share on the most frequent target tokens / on the rarest, mean over sites, last step",
        of=last(Select("frequency_log_ratio", "proxy", order=1.0, freq_bin="target")),
        needs=_BINS,
        known=LOOKED,
    ),
    Claim(
        id="5b",
        statement="The proxy takes more of the gradients at frequent input tokens than at rare ones.",
        source=DYNAMICS,
        effect="energy share on the most frequent input tokens / on the rarest, mean over sites, last step",
        of=last(Select("frequency_log_ratio", "proxy", order=1.0, freq_bin="input")),
        needs=_BINS,
        known=LOOKED,
    ),
    Claim(
        id="6",
        statement="Updates of the embedding are enriched in tangent directions.",
        source=DYNAMICS,
        effect="energy share of the embedding's update in the proxy / in random subspaces, last step",
        of=difference(logarithm(last(_of_updates("proxy"))), logarithm(last(_of_updates("random")))),
        needs=_UPDATES,
    ),
    Claim(
        id="9a",
        statement="The proxy takes more than the top principal components of the same rank.",
        source=REFEREE,
        effect="energy share of the proxy / of `pca`, mean over sites, last step",
        of=last(Select("log_ratio", "pca", order=1.0)),
        needs=_TESTS,
        known=LOOKED,
    ),
    Claim(
        id="9b",
        statement="The proxy takes more than random directions with the covariance of the activations.",
        source=REFEREE,
        effect="energy share of the proxy / of `covariance`, mean over sites, last step",
        of=last(Select("log_ratio", "covariance", order=1.0)),
        needs=_TESTS,
        known=LOOKED,
    ),
    Claim(
        id="10",
        statement="Gradients prefer the tangent plane of their own chart to that of another chart.",
        source=OURS,
        effect="energy share in the plane of the own chart / of another, mean over audited sites",
        of=last(_audited("charts")),
        needs=_AUDITS,
        known=LOOKED,
    ),
    Claim(
        id="11",
        statement="Proxies are closer to local tangents than to local normals.",
        source=REFEREE,
        effect="energy of local tangents in the proxy / of local normals, mean over audited sites",
        of=last(_audited("proxy and tangents")),
        needs=_AUDITS,
    ),
    Claim(
        id="12a",
        statement="The anisotropy of decoders is a bell over depth.",
        source=SHAPE,
        effect="anisotropy in the middle third of the depth minus that at the higher end, of all rows",
        of=bell("decoder", ALL_ROWS),
        needs=_PROFILES,
        margin=ANISOTROPY_MARGIN,
        unit="difference",
    ),
    Claim(
        id="12b",
        statement="The anisotropy of encoders is flat over depth.",
        source=SHAPE,
        effect="range of anisotropy over depth / its mean, of all rows",
        of=relative_range("encoder"),
        needs=_PROFILES,
        margin=0.1,
        unit="fraction",
        below=True,
    ),
    Claim(
        id="13",
        statement="The causal mask makes the bell: the same network with the same loss has none without it.",
        source=SHAPE,
        effect="height of the bell with the causal mask, or by how much it is above that without, if that is less",
        of=smaller(bell("masked decoder", ALL_ROWS), beside_twin(bell(None, ALL_ROWS), ("masked decoder", "encoder"))),
        needs=Needs(
            "anisotropy at all residual sites of networks trained with and without the causal mask", SHAPE_STUDY
        ),
        margin=ANISOTROPY_MARGIN,
        unit="difference",
        known="written before the runs; changed after them, because a difference alone does not show a bell",
    ),
    Claim(
        id="14a",
        statement="In training, the intrinsic dimension of a decoder rises and then falls, all tokens counted.",
        source=SHAPE,
        effect="dimension at the peak / at the first or last step, whichever is higher, mean over sites",
        of=rise_and_fall(Select("intrinsic_dimension", quantity=ACTIVATION, site=None, kind="decoder")),
        needs=Needs("the dimension at three or more steps of two or more trainings", SHAPE_STUDY),
    ),
    Claim(
        id="14b",
        statement="In training, the intrinsic dimension of a decoder rises and then falls, one row per token type.",
        source=SHAPE,
        effect="dimension at the peak / at the first or last step, whichever is higher, mean over sites",
        of=rise_and_fall(Select("intrinsic_dimension", "one_per_type", quantity=ACTIVATION, site=None, kind="decoder")),
        needs=Needs("the dimension of token types at three or more steps of two or more trainings", SHAPE_STUDY),
    ),
    Claim(
        id="14c",
        statement="The rise and the fall of the dimension happen inside the first epoch.",
        source=SHAPE,
        effect="the same within the first epoch, every step of which was measured, all tokens counted",
        of=rise_and_fall(
            Select("intrinsic_dimension", quantity=ACTIVATION, site=None, kind="decoder"), within_epoch=True
        ),
        needs=Needs("the dimension at every step of the first epoch of two or more trainings", SHAPE_STUDY),
    ),
    Claim(
        id="15",
        statement="Representations are more isotropic inside clusters than as a whole.",
        source=SHAPE,
        effect="anisotropy of as many random rows / inside clusters, mean over sites, last step",
        of=difference(
            logarithm(last(Select("local_anisotropy", "matched", quantity=ACTIVATION, site=None))),
            logarithm(last(Select("local_anisotropy", quantity=ACTIVATION, site=None))),
        ),
        needs=Needs("anisotropy inside clusters", SHAPE_STUDY),
    ),
    Claim(
        id="18a",
        statement="A proxy of activations alone predicts where later gradients go.",
        source=REFEREE,
        effect="energy share of the proxy of the last due step / of random subspaces, mean over sites and due steps",
        of=over_steps(_later("random")),
        needs=_LATER,
    ),
    Claim(
        id="18b",
        statement="It reaches at least half of what the leading directions of the earlier gradients reach.",
        source=OURS,
        effect="energy share of the proxy of the last due step / of the leading directions of the gradients then",
        of=over_steps(_later("gradients_then")),
        needs=_LATER,
        margin=math.log(0.5),
    ),
    Claim(
        id="20",
        statement="Over training, on-manifold entropy falls where anisotropy rises.",
        source=DYNAMICS,
        effect="Spearman's correlation of entropy and anisotropy over due steps, means over sites",
        of=rank_correlation(_ENTROPY, _ANISOTROPY),
        needs=Needs("entropy at four or more steps of a training", TRAINING_STUDY),
        margin=-CORRELATION_MARGIN,
        unit="correlation",
        below=True,
    ),
    Claim(
        id="21",
        statement="Enrichment needs training: the untrained network has less.",
        source=REFEREE,
        effect="enrichment / that of the untrained network, mean over sites",
        of=difference(last(_RANDOM), last(replace(_RANDOM, null="untrained"))),
        needs=Needs("tangent tests of the network and of its untrained twin (`--nulls`)", TRAINING_STUDY),
        known=LOOKED,
    ),
    Claim(
        id="22",
        statement="Enrichment needs the labels: with shuffled labels there is less.",
        source=REFEREE,
        effect="enrichment / that with shuffled labels, mean over sites",
        of=difference(last(_RANDOM), last(replace(_RANDOM, null="shuffled labels"))),
        needs=Needs("tangent tests of the network with true and with shuffled labels (`--nulls`)", TRAINING_STUDY),
        known=LOOKED,
    ),
    Claim(
        id="23",
        statement="A token's gradient prefers the concepts active in it to those active in another token.",
        source=OURS,
        effect="energy share in a token's own active concepts / in another token's, mean over sites",
        of=last(Select("active_log_ratio", "concepts", site=None)),
        needs=_ACTIVE,
        known=LOOKED,
    ),
    Claim(
        id="24",
        statement="In that test, concepts do better than principal components.",
        source=OURS,
        effect="own / other of active concepts, relative to that of principal components, mean over sites",
        of=last(Select("active_advantage", site=None)),
        needs=_ACTIVE,
        known=LOOKED,
    ),
    Claim(
        id="25",
        statement="The bell of decoders is made by massive activations: without them there is none.",
        source=OURS,
        effect="height of the bell without massive rows, in decoders that have such rows, and a bell with them",
        of=among_massive(among_above(bell("decoder", WITHOUT_MASSIVE), bell("decoder", ALL_ROWS), ANISOTROPY_MARGIN)),
        needs=Needs("anisotropy at all residual sites of decoders with massive rows and a bell", FINISHED_STUDY),
        margin=ANISOTROPY_MARGIN,
        unit="difference",
        below=True,
        known=LOOKED,
    ),
    Claim(
        id="26",
        statement="Tangent enrichment does not come from massive tokens: it stays without them.",
        source=OURS,
        effect="enrichment without massive rows, mean over sites, in networks that have such rows",
        of=of_kept_rows(last(_RANDOM)),
        needs=Needs("tangent tests of networks with massive rows", FINISHED_STUDY),
        known=LOOKED,
    ),
    *MOVING,
    *ARCHITECTURES,
    *TREATED,
    *TEMPERED,
    *DOWNSTREAM,
)
