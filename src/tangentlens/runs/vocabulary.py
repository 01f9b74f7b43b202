"""The words of the records: every quantity, metric and variant, how people read it, and how it is drawn.

Measures of activations and controls bring their own words from `MEASURES` and `PROXIES`; all others stand here. A
derived metric is named after what it is derived from: `sd/anisotropy`, `shape/anisotropy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import Literal

from tangentlens.alignment.share import ORDERS
from tangentlens.geometry.measures import MEASURES
from tangentlens.proxies import CLOSED_FORM, PROXIES

# Quantities: what was measured.
ACTIVATION, GRADIENT, LOSS = "activation", "gradient", "loss"
PARAMETER_GRADIENT, UPDATE, MOVEMENT = "parameter_gradient", "update", "movement"
# What is said of a checkpoint as a whole.
CHECKPOINT = "checkpoint"

# Gradients of a due step, in subspaces of the due step before it.
LATER_GRADIENT = "later_gradient"

# The site of records that are means over all sites.
MEAN_SITE = "mean"
# The frequency bin of records that are of all tokens.
ALL_TOKENS = "all"
# Which rows records are of: all, or all but those many times as long as the median row.
ALL_ROWS, WITHOUT_MASSIVE = "all", "without_massive"
# What a model is compared with; the records of such a null are under the model's name with the null's in brackets.
NULLS = ("untrained", "shuffled labels")
# The detail of records that are of the proxy itself, and not of a control.
PROXY = "proxy"
# The detail of a loss that is not that of a training batch.
HELD_OUT = "held-out text"
# How well a linear probe reads something off frozen activations.
PROBE_SKILL = "probe_skill"
# The part of a number that the top 1% of rows or tokens hold.
HELD_BY_TOP = "held_by_top"
# The variant of gradients' anisotropy.
UNCENTRED = "uncentred"
# The metric of a checkpoint that may not be what its name says; and, as variants, suspicions of which no doubt is left:
# its weights are those of another step, or it saw other tokens.
FLAGGED, SAME_WEIGHTS, OTHER_TOKENS = "flagged", "weights", "tokens"

# Prefixes of derived metrics.
SD, SHAPE, AUDIT, ALARM = "sd", "shape", "audit", "alarm"
SHAPE_MARGIN, SHAPE_BATCHES = "shape_margin", "shape_batches_needed"
ANALYTIC, NULL, P_VALUE_OF = "analytic", "null", "p_value"


def derived(prefix: str, metric: str) -> str:
    """Return the name of a metric that is derived from another.

    >>> derived(SD, "anisotropy")
    'sd/anisotropy'
    """
    return f"{prefix}/{metric}"


def null_name(model: str, null: str) -> str:
    """Return the name in the records of a model's null; of the model itself if `null` is empty.

    >>> null_name("gpt2", "untrained")
    'gpt2 (untrained)'
    """
    return f"{model} ({null})" if null else model


@dataclass(frozen=True)
class Metric:
    """A metric in the records.

    Attributes:
        name: The name, `metric` or `metric:variant`.
        label: What people read on axes, in tables and in sentences.
        over: The source of variation that its interval covers; empty if it has none.
        unit: The unit, if there is one.
        log: Whether it is drawn on a logarithmic axis.
        shown: Where a report shows it: 'table', 'figure', or not by itself ('records').
        in_lens: Whether a lens measures it on every due step.
        decided_by: The variant of `held_by_top` that says whether a few rows decide it; empty if they cannot.
    """

    name: str
    label: str
    over: str = ""
    unit: str = ""
    log: bool = False
    shown: Literal["table", "figure", "records"] = "records"
    in_lens: bool = False
    decided_by: str = ""

    @property
    def axis(self) -> str:
        """The label with the unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


# fmt: off
_OTHERS = (
    Metric("loss", "loss", unit="nats per predicted token"),
    Metric("share", "share of the gradient in a subspace", "sequences; for controls in closed form, control draws"),
    Metric("log_ratio", "ln(share of the proxy / share of the control)", "sequences"),
    Metric("p_value", "probability that a draw of the control takes at least the proxy's share"),
    Metric("effective_tokens", "number of tokens of equal energy that would count as much"),
    Metric("effective_sequences", "number of sequences of equal energy that would count as much"),
    Metric("held_by_top", "part of the share that the top 1% of tokens hold"),
    Metric("token_share", "share of the gradient in a subspace, mean over tokens", "sequences"),
    Metric("token_log_ratio", "ln(token share of the proxy / of the control)", "sequences"),
    Metric("frequency_log_ratio", "ln(share on the most frequent tokens / on the rarest)", "sequences"),
    Metric("active_share", "share of a gradient in a token's active concepts", "sequences"),
    Metric("active_token_share", "share of a gradient in a token's active concepts, mean over tokens", "sequences"),
    Metric("active_log_ratio", "ln(share in own active concepts / in other tokens')", "sequences"),
    Metric("active_token_log_ratio", "ln(token share in own active concepts / in other tokens')", "sequences"),
    Metric("active_advantage", "ln(own / swapped) of active concepts minus that of components", "sequences"),
    Metric("active_token_advantage", "the same difference, token by token", "sequences"),
    Metric("concept_variance", "share of the variance along a concept", "sequences", log=True),
    Metric("concept_energy", "share of the gradients' energy along a concept", "sequences", log=True),
    Metric("concept_chance", "share of the variance or of the energy along a random direction, 1/d"),
    Metric("concept_usage", "part of all contributions of concepts to tokens"),
    Metric("concept_frequency", "occurrences of a concept's tokens in a million tokens, geometric mean", log=True),
    Metric("concept_found_again", "cosine of a concept with its match in a fit to other sequences of the same step"),
    Metric("concept_kept", "cosine of a concept with its match at the last due step, which detail names"),
    Metric("concept_tokens", "number of tokens in context in detail, those that use a concept most"),
    Metric("rms_norm", "root mean square length of a gradient", "sequences"),
    Metric("window_share", "share of all gradients since the last due step in the subspace fitted then (plug-in)"),
    Metric("window_anisotropy", "anisotropy of all rows since the last due step"),
    Metric("window_rms_norm", "root mean square length of all gradients since the last due step"),
    Metric("distance", "length of the movement since the last due step / of the rows then", "sequences", log=True),
    Metric("shift", "length of the mean movement / of the rows then", "sequences", log=True),
    Metric("variance_share", "share of the variance at the last due step in a subspace", "sequences"),
    Metric("growth", "variance now / at the last due step", "sequences", log=True),
    Metric("growth_inside", "variance inside a subspace now / at the last due step", "sequences", log=True),
    Metric("growth_outside", "variance outside a subspace now / at the last due step", "sequences", log=True),
    Metric("growth_log_ratio", "ln(growth inside a subspace / growth outside)", "sequences"),
    Metric("rms_curvature", "root mean square curvature", "anchors"),
    Metric("visible_curvature", "visible curvature", "anchors"),
    Metric("visible_curvature_ratio", "visible curvature relative to types of equal weight", "anchors and types"),
    Metric("visible_curvature_fell", "share of draws in which visible curvature fell with every step of alpha"),
    Metric("frequency_distance_correlation", "rank correlation of frequency with distance", "anchors and types"),
    Metric("normal_share", "share of a patch's variance outside its tangent plane", "anchors"),
    Metric(PROBE_SKILL, "skill of a linear probe: 0 by chance, 1 without an error", "sequences"),
    Metric("tangent_gap", "least variance in the tangent plane over the most outside"),
    Metric("resolved", "1 if tangent planes stand out from noise"),
    Metric("overlap", "overlap of a subspace with that of the checkpoint before: 1 if it has not turned"),
    Metric("earlier_step", "step of the checkpoint that later gradients and overlaps are compared with"),
    Metric(FLAGGED, "1 where a checkpoint may not be what its name says; detail gives the reason"),
    Metric("unmeasured", "1 where a site, or a whole model, could not be measured; detail gives the reason"),
    Metric(derived(AUDIT, "verdict"), "verdict of the audit, in detail"),
)
# fmt: on

METRICS = {
    metric.name: metric
    for metric in (
        *(
            Metric(one.key, one.label, "batches", one.unit, one.log, one.shown, one.in_lens, one.decided_by)
            for one in MEASURES
        ),
        *_OTHERS,
    )
}
# The same without variants, as the column `metric` has them.
_NAMES = {key.partition(":")[0] for key in METRICS}


def known(metric: str) -> bool:
    """Return whether a metric's name, or that of what it is derived from, is in the vocabulary."""
    prefix, _, name = metric.rpartition("/")
    if prefix in (AUDIT, ALARM):
        return True
    return prefix in ("", SD, SHAPE, SHAPE_MARGIN, SHAPE_BATCHES, ANALYTIC, NULL, P_VALUE_OF) and name in _NAMES


@dataclass(frozen=True)
class Style:
    """How a subspace is named and drawn.

    Attributes:
        label: The entry in a legend.
        colour: A colour of Okabe and Ito's palette, which colour-blind readers can tell apart, or a grey.
        dash: The line style, so that colour is not the only sign.
    """

    label: str
    colour: str
    dash: str


_SPARE = cycle(
    (("#009E73", "dash"), ("#CC79A7", "dot"), ("#56B4E9", "dashdot"), ("#009E73", "dot"), ("#CC79A7", "dash"))
)
_FIXED = {
    "pca": ("#0072B2", "dot"),
    "covariance": ("#E69F00", "dash"),
    # Greys that can be seen on white and on black.
    "random": ("#A3A3A3", "solid"),
    "normal": ("#6E6E6E", "solid"),
    "permuted": ("#6E6E6E", "dot"),
}
# Every subspace that gradients are compared with, the proxy aside.
VARIANTS = {
    name: Style(f"{name}: {label}", *(_FIXED.get(name) or next(_SPARE)))
    for name, label in {**CLOSED_FORM, **{name: proxy.label for name, proxy in PROXIES.items()}}.items()
}


def proxy_style(name: str) -> Style:
    """Return how the proxy is drawn, whichever it is."""
    label = PROXIES[name].label if name in PROXIES else name
    return Style(f"tangent proxy ({label})", "#D55E00", "solid")


# The orders of shares that are drawn.
SHARE_LABELS = {order: f"{what} share (order {order:g})" for order, what in ORDERS.items() if order < float("inf")}
