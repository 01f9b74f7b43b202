"""Visible curvature in a model's own representations, compared with randomly permuted frequencies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.capture.forward import activations
from tangentlens.capture.sites import Site
from tangentlens.corpora.counts import TokenCounts
from tangentlens.corpora.occurrences import draw_occurrences
from tangentlens.corpora.windows import Text, windows
from tangentlens.errors import InputError
from tangentlens.geometry.curvature.local_geometry import LocalGeometry, local_geometry
from tangentlens.geometry.curvature.second_form import n_monomials
from tangentlens.geometry.dimension.intrinsic import patch_dimension
from tangentlens.models.loaded import LoadedModel
from tangentlens.runs.records import Record
from tangentlens.runs.vocabulary import NULL, P_VALUE_OF, derived
from tangentlens.statistics.interval import Interval
from tangentlens.studies.visibility.plan import (
    ALPHAS,
    CORPUS,
    CORRELATION,
    PERMUTED,
    RATIO,
    TYPES,
    VISIBLE,
    VisibilityPlan,
)

# How often frequencies are permuted among types.
_PERMUTATIONS = 999
# Tokens in a forward pass, and distinct rows that each coefficient of a quadratic needs to have a choice of sizes.
_FORWARD, _ROWS_PER_MONOMIAL = 4096, 16
# Fewer types are no patches.
_LEAST_TYPES = 64


def one_per_type(
    plan: VisibilityPlan, loaded: LoadedModel, sites: list[Site], text: Text, counts: TokenCounts
) -> tuple[Int[Tensor, "t"], dict[str, Float[Tensor, "t d"]]]:
    """Return which types were found, and the activations of one occurrence of each, drawn from the whole text.

    It is one occurrence and not the mean of all, because the mean of few occurrences is noisier than that of many, and
    rare types would lie further out for that reason alone.
    """
    length = loaded.text_length(plan.length)
    types = counts.most_frequent(plan.types, without=loaded.special_ids)
    source = windows(text, loaded.encode, length, plan.seed)
    tokens, drawn = draw_occurrences(source, types, loaded.vocabulary, plan.seed)
    if int(drawn.sum()) < _LEAST_TYPES:
        raise InputError(
            f"the text must hold at least {_LEAST_TYPES} token types in windows of {length} tokens, but holds "
            f"{int(drawn.sum())}; use a longer text or a smaller length"
        )
    rows: dict[str, list[Tensor]] = {site.name: [] for site in sites}
    some = max(_FORWARD // length, 1)
    for batch, keep in zip(tokens.split(some), drawn.split(some), strict=True):
        keep = loaded.beside_specials(keep, at_specials=False).to(loaded.device)
        framed = loaded.framed(batch).to(loaded.device)
        activations(loaded.model, sites, framed, keep, lambda site, piece: rows[site.name].append(piece))
    return tokens[drawn], {name: torch.cat(pieces) for name, pieces in rows.items()}


def visibility_records(
    about: Record, rows: Float[Tensor, "t d"], frequency: Float[Tensor, "t"], plan: VisibilityPlan
) -> Iterator[Record]:
    """Yield visible curvature over alpha, whether frequency falls with distance, and the curvature of weighted fits."""
    intrinsic = patch_dimension(rows)
    supported = max(m for m in range(1, 64) if m == 1 or _ROWS_PER_MONOMIAL * n_monomials(m) <= len(rows))
    m = plan.dimension or max(1, min(round(intrinsic), supported))
    make = torch.Generator().manual_seed(plan.seed)
    drawn = frequency.multinomial(min(plan.anchors, len(rows)), generator=make)
    around_corpus = local_geometry(rows, anchors=drawn, dimension=m)
    evenly = local_geometry(rows, plan.anchors, k=around_corpus.k, dimension=m, seed=plan.seed)
    about = replace(about, n=around_corpus.k, rank=m)
    yield replace(about, metric="intrinsic_dimension", variant="of patches", value=intrinsic)
    yield replace(about, metric="resolved", value=float(around_corpus.resolved))
    gap = next(scale.gap for scale in around_corpus.scales if scale.k == around_corpus.k)
    yield replace(about, metric="tangent_gap", value=gap)
    yield about.estimate("normal_share", around_corpus.normal_share)
    frequency = frequency.to(rows.device)
    permutations = torch.stack([torch.randperm(len(frequency), generator=make) for _ in range(_PERMUTATIONS)])
    permutations = permutations.to(rows.device)
    for centres, there in ((CORPUS, around_corpus), (TYPES, evenly)):
        yield from _correlation_records(replace(about, variant=centres), there, frequency, permutations)
        for alpha in ALPHAS:
            here = replace(about, variant=centres, alpha=alpha)
            yield here.estimate(VISIBLE, there.visible(frequency.pow(alpha)[there.neighbours]))
            yield from _ratio_records(here, there, frequency.pow(alpha), permutations)
    for name, weights in ((CORPUS, frequency), (PERMUTED, frequency[permutations[0]])):
        for alpha in ALPHAS:
            here = replace(about, variant=name, alpha=alpha)
            try:
                fit = around_corpus.refitted(weights.pow(alpha)[around_corpus.neighbours])
                yield here.estimate("rms_curvature", fit)
            except InputError as error:
                # Weights as uneven as a corpus may leave too few types of a patch to fit anything.
                yield here.unmeasured(f"{name}, alpha {alpha:g}: {error}")


def _ratio_records(
    about: Record, geometry: LocalGeometry, weights: Float[Tensor, "t"], permutations: Int[Tensor, "draws t"]
) -> Iterator[Record]:
    seen = geometry.visible_ratio(weights[geometry.neighbours])
    if math.isnan(seen.value):
        yield about.estimate(RATIO, seen)
        return
    # A type counts alike in all patches, so what it adds to each sum over them is one number times its weight.
    bent, spread = (
        torch.zeros_like(weights).index_add_(0, geometry.neighbours.flatten(), part.flatten())
        for part in (geometry.bends, geometry.coordinates.to(weights).square().sum(dim=2))
    )
    null = (weights[permutations] @ bent) / (weights[permutations] @ spread) * spread.sum() / bent.sum()
    yield from _beside_permuted(about, RATIO, seen, null.tolist())


def _correlation_records(
    about: Record, geometry: LocalGeometry, frequency: Float[Tensor, "t"], permutations: Int[Tensor, "draws t"]
) -> Iterator[Record]:
    ranks = torch.tensor(pl.Series(frequency.cpu().numpy()).rank("average").to_numpy()).to(frequency)
    null = [float(_correlations(geometry, ranks[one]).mean()) for one in permutations]
    yield from _beside_permuted(about, CORRELATION, geometry.mean(_correlations(geometry, ranks)), null)


def _beside_permuted(about: Record, metric: str, seen: Interval, null: Sequence[float]) -> Iterator[Record]:
    """Yield an estimate with an interval over anchors and over which types have which frequency.

    Patches share the few frequent types, so intervals over anchors alone would be too short. Randomly permuted
    frequencies show the rest of the variation, and how often an estimate is as far out by chance.
    """
    low, high = np.quantile(null, [0.025, 0.975])
    permuted = Interval(float(np.mean(null)), float(low), float(high), ci_over="permutations")
    reach = math.hypot(seen.ci_high - seen.value, (permuted.ci_high - permuted.ci_low) / 2)
    yield about.estimate(metric, Interval(seen.value, seen.value - reach, seen.value + reach, "anchors and types"))
    if permuted.ci_low < permuted.ci_high:
        yield about.estimate(derived(NULL, metric), permuted)
        beyond = min(sum(one <= seen.value for one in null), sum(one >= seen.value for one in null))
        yield replace(about, metric=derived(P_VALUE_OF, metric), value=min(2 * (1 + beyond) / (1 + len(null)), 1.0))


def _correlations(geometry: LocalGeometry, ranks: Float[Tensor, "t"]) -> Float[Tensor, "a"]:
    """Return the rank correlation between a type's frequency and its distance from the anchor, in each patch.

    The anchor itself is left out: it may have been drawn for its frequency.
    """
    # From near to far.
    near = ranks[geometry.neighbours[:, 1:]]
    near = near - near.mean(dim=1, keepdim=True)
    place = torch.arange(near.shape[1], dtype=near.dtype, device=near.device) - (near.shape[1] - 1) / 2
    return near @ place / (near.norm(dim=1) * place.norm()).clamp_min(1e-300)
