"""Does frequency bias hide curvature? On manifolds with a known answer, and in a model's own representations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor

from tangentlens.capture.forward import activations
from tangentlens.capture.sites import Site, find_sites
from tangentlens.corpora.counts import TokenCounts
from tangentlens.corpora.occurrences import draw_occurrences
from tangentlens.corpora.windows import Text, windows
from tangentlens.errors import InputError
from tangentlens.geometry import manifolds
from tangentlens.geometry.curvature.local_geometry import LocalGeometry, local_geometry
from tangentlens.geometry.curvature.second_form import n_monomials
from tangentlens.geometry.dimension.intrinsic import patch_dimension
from tangentlens.geometry.manifolds import Manifold
from tangentlens.lens.measures import estimate
from tangentlens.models.load import LoadedModel, load_model
from tangentlens.models.small import weight_hash
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, create_run
from tangentlens.statistics.interval import Interval

# From every type alike to types as they come in the corpus.
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Names in records: the visible curvature, its ratio to that of types which all count alike, and what follows theirs
# where the truth is known.
VISIBLE, RATIO, ANALYTIC = "visible_curvature", "visible_curvature_ratio", "_analytic"
# How the frequency of a type goes with its distance from the anchor; and draws in which the ratio fell with alpha.
CORRELATION, HELD = "frequency_distance_correlation", "visible_curvature_fell"
# What frequencies that are dealt out to types at random give, how likely they give as much, and how often they are.
DEALT, P_VALUE, _DEALT = "_dealt", "_p_value", 999
# Rows of a synthetic manifold, further draws of it, and rows of a patch in these.
_ROWS, _DRAWS, _DRAW_ROWS, _DRAW_PATCH = 6000, 20, 2000, 64
# Tokens in a forward pass, and distinct rows that each coefficient of a quadratic needs to have a choice of sizes.
_FORWARD, _ROWS_PER_MONOMIAL = 4096, 16

SYNTHETIC: dict[str, Callable[[int, int], Manifold]] = {
    "sphere": lambda n, seed: manifolds.sphere(n, 2, 20, noise=0.005, seed=seed),
    "torus": lambda n, seed: manifolds.torus(n, 2, 20, noise=0.005, seed=seed),
    "cylinder": lambda n, seed: manifolds.cylinder(n, 2, 20, noise=0.005, seed=seed),
    "swiss roll": lambda n, seed: manifolds.swiss_roll(n, 20, noise=0.02, seed=seed),
    "quadratic": lambda n, seed: manifolds.quadratic(n, 3, 20, noise=0.005, seed=seed, bend=0.5),
}


@dataclass(frozen=True)
class VisibilityPlan:
    """What to look at; without a model, the synthetic manifolds."""

    model: str | None = None
    text: str | None = None
    sites: tuple[str, ...] = ("resid",)
    types: int = 4096
    length: int = 128
    anchors: int = 128
    dimension: int | None = None
    seed: int = 0
    device: str = "cpu"
    trust_remote_code: bool = False


# Told what is looked at, and how many of how many are done.
VisibilityProgress = Callable[[str, int, int], None]


def run_visibility(plan: VisibilityPlan, out: str | Path, progress: VisibilityProgress) -> Run:
    """Measure visible curvature over the tempering exponent into the run directory `out`; goes on where it stopped."""
    if plan.model is None:
        known = {field.name: field.default for field in fields(plan) if field.name not in ("anchors", "seed")}
        unused = [name for name, default in known.items() if getattr(plan, name) != default]
        if unused:
            raise InputError(
                f"{', '.join(unused)} must come with a model, but there is none; name it, or leave that out"
            )
        run = create_run(out, {"command": "visibility", **asdict(plan)})
        for done, name in enumerate(SYNTHETIC):
            progress(name, done, len(SYNTHETIC))
            if not run.has(name):
                run.write(name, synthetic_records(name, plan.anchors, plan.seed))
        progress("manifolds", len(SYNTHETIC), len(SYNTHETIC))
        return run
    loaded = load_model(plan.model, plan.device, trust_remote_code=plan.trust_remote_code)
    return _of_model(plan, loaded, out, progress)


def synthetic_records(name: str, n_anchors: int, seed: int) -> Iterator[Record]:
    """Types fill a manifold evenly, and the j-th nearest to an anchor has the frequency 1/j."""
    made = SYNTHETIC[name](_ROWS, seed)
    found = local_geometry(made.rows, n_anchors, dimension=made.dimension, seed=seed)
    about = Record(model=name, quantity="activation", seed=seed, n=found.k, rank=found.dimension)
    yield estimate(about, "rms_curvature", found.rms_curvature)
    for alpha in ALPHAS:
        here = replace(about, variant=_name(alpha))
        weights = zipf_by_distance(found.k, alpha).expand(len(found.anchors), -1)
        yield estimate(here, VISIBLE, found.visible(weights))
        yield estimate(here, RATIO, found.visible_ratio(weights))
        yield replace(here, metric=VISIBLE + ANALYTIC, value=analytic(made, found, alpha))
        yield replace(here, metric=RATIO + ANALYTIC, value=analytic(made, found, alpha) / analytic(made, found, 0))
    fell = sum(_falls(SYNTHETIC[name](_DRAW_ROWS, seed + draw), seed) for draw in range(1, _DRAWS + 1))
    yield replace(about, metric=HELD, value=fell / _DRAWS, n=_DRAWS)


def zipf_by_distance(k: int, alpha: float) -> Float[Tensor, "k"]:
    """Weights p^alpha of types from near to far, with p falling as 1/rank."""
    return torch.arange(1, k + 1, dtype=torch.float64).pow(-alpha)


def analytic(made: Manifold, found: LocalGeometry, alpha: float) -> float:
    """The visible curvature of the true form, with types spread evenly over each patch.

    In a ball of dimension m and radius r the j-th of k nearest is at r ((j - 1/2) / k)^(1/m), in any direction.
    """
    weights = zipf_by_distance(found.k, alpha)
    place = (torch.arange(found.k, dtype=torch.float64) + 0.5) / found.k
    second, fourth = ((weights * place ** (power / found.dimension)).sum() for power in (2, 4))
    radius = found.coordinates[:, -1].double().norm(dim=1)
    bent = (made.curvature[found.anchors].square() * radius**4).sum() / 4
    return float(bent * fourth / (radius.square().sum() * second))


def _falls(made: Manifold, seed: int) -> bool:
    """Whether the visible curvature of one draw falls with alpha, all the way."""
    found = local_geometry(made.rows, 64, k=_DRAW_PATCH, dimension=made.dimension, seed=seed)
    seen = [found.visible(zipf_by_distance(found.k, alpha).expand(64, -1)).value for alpha in ALPHAS]
    return all(later < earlier for earlier, later in pairwise(seen))


def _of_model(plan: VisibilityPlan, loaded: LoadedModel, out: str | Path, progress: VisibilityProgress) -> Run:
    text = Text(None if plan.text is None else Path(plan.text))
    sites = find_sites(loaded.model, plan.sites)
    if plan.dimension is not None and plan.dimension >= loaded.width:
        raise InputError(f"dimension must be below the width {loaded.width} of {loaded.name}, but is {plan.dimension}")
    run = create_run(out, {"command": "visibility", **asdict(plan)})
    run.claim_model(loaded.name, {"weights_sha256": weight_hash(loaded.model, loaded.not_loaded)})
    run.claim_data(plan.text, {"fingerprint": text.fingerprint, "bytes": text.size})
    if all(run.has(_part(loaded, site)) for site in sites):
        return run
    progress(f"{loaded.name}: counting", 0, len(sites))
    counts = TokenCounts.of_text(text, loaded.encode, loaded.vocabulary)
    counts.save(run)
    progress(f"{loaded.name}: activations", 0, len(sites))
    types, rows = one_per_type(plan, loaded, sites, text, counts)
    frequency = counts.counts[types].double()
    about = Record(model=loaded.name, revision=loaded.revision, quantity="activation", seed=plan.seed)
    for done, site in enumerate(sites):
        progress(f"{loaded.name}: {site.name}", done, len(sites))
        if not run.has(_part(loaded, site)):
            here = replace(about, site=site.name, depth=site.depth)
            try:
                records = list(site_records(here, rows[site.name], frequency, plan))
            except InputError as error:
                records = [replace(here, metric="unmeasured", variant=str(error), value=1.0)]
            run.write(_part(loaded, site), records)
    progress(loaded.name, len(sites), len(sites))
    return run


def _part(loaded: LoadedModel, site: Site) -> str:
    return f"{loaded.name}-{site.name}"


def one_per_type(
    plan: VisibilityPlan, loaded: LoadedModel, sites: list[Site], text: Text, counts: TokenCounts
) -> tuple[Int[Tensor, "t"], dict[str, Float[Tensor, "t d"]]]:
    """Activations of one occurrence, drawn from the whole text, of each of the most frequent types; and which types.

    One and not the mean of all: the mean of few occurrences is noisier than that of many, and rare types would lie
    further out for that reason alone.
    """
    length = loaded.text_length(plan.length)
    types = counts.most_frequent(plan.types, without=loaded.special_ids)
    source = windows(text, loaded.encode, length, plan.seed)
    tokens, drawn = draw_occurrences(source, types, loaded.vocabulary, plan.seed)
    if not len(tokens):
        raise InputError(f"the text must hold at least one window of {length} tokens, but holds none; use a longer one")
    rows: dict[str, list[Tensor]] = {site.name: [] for site in sites}
    some = max(_FORWARD // length, 1)
    for batch, keep in zip(tokens.split(some), drawn.split(some), strict=True):
        keep = loaded.beside_specials(keep, at_specials=False).to(plan.device)
        framed = loaded.framed(batch).to(plan.device)
        activations(loaded.model, sites, framed, keep, lambda site, piece: rows[site.name].append(piece))
    return tokens[drawn], {name: torch.cat(pieces) for name, pieces in rows.items()}


def site_records(
    about: Record, rows: Float[Tensor, "t d"], frequency: Float[Tensor, "t"], plan: VisibilityPlan
) -> Iterator[Record]:
    """At one site: visible curvature over alpha, whether frequency falls with distance, and curvature fitted anew."""
    intrinsic = patch_dimension(rows)
    supported = max(m for m in range(1, 64) if m == 1 or _ROWS_PER_MONOMIAL * n_monomials(m) <= len(rows))
    m = plan.dimension or max(1, min(round(intrinsic), supported))
    make = torch.Generator().manual_seed(plan.seed)
    drawn = frequency.multinomial(min(plan.anchors, len(rows)), generator=make)
    found = local_geometry(rows, anchors=drawn, dimension=m)
    evenly = local_geometry(rows, plan.anchors, k=found.k, dimension=m, seed=plan.seed)
    about = replace(about, n=found.k, rank=m)
    yield replace(about, metric="intrinsic_dimension", variant="of patches", value=intrinsic)
    yield replace(about, metric="resolved", value=float(found.resolved))
    yield replace(about, metric="tangent_gap", value=next(scale.gap for scale in found.scales if scale.k == found.k))
    yield estimate(about, "normal_share", found.normal_share)
    frequency = frequency.to(rows.device)
    dealt = torch.stack([torch.randperm(len(frequency), generator=make) for _ in range(_DEALT)]).to(rows.device)
    for centres, there in (("corpus", found), ("types", evenly)):
        yield from _correlation_records(replace(about, variant=centres), there, frequency, dealt)
        for alpha in ALPHAS:
            here = replace(about, variant=f"{centres} {_name(alpha)}")
            yield estimate(here, VISIBLE, there.visible(frequency.pow(alpha)[there.neighbours]))
            yield from _ratio_records(here, there, frequency.pow(alpha), dealt)
    for name, weights in (("corpus", frequency), ("dealt", frequency[dealt[0]])):
        for alpha in ALPHAS:
            here = replace(about, variant=f"{name} {_name(alpha)}")
            try:
                yield estimate(here, "rms_curvature", found.refitted(weights.pow(alpha)[found.neighbours]))
            except InputError as error:
                # Weights as uneven as a corpus may leave too few types of a patch to fit anything.
                yield replace(here, metric="unmeasured", variant=f"{here.variant}: {error}", value=1.0)


def _ratio_records(
    about: Record, found: LocalGeometry, weights: Float[Tensor, "t"], dealt: Int[Tensor, "draws t"]
) -> Iterator[Record]:
    seen = found.visible_ratio(weights[found.neighbours])
    if math.isnan(seen.value):
        yield estimate(about, RATIO, seen)
        return
    # A type counts alike in all patches, so what it adds to each sum over them is one number times its weight.
    bent, spread = (
        torch.zeros_like(weights).index_add_(0, found.neighbours.flatten(), part.flatten())
        for part in (found.bends, found.coordinates.to(weights).square().sum(dim=2))
    )
    null = (weights[dealt] @ bent) / (weights[dealt] @ spread) * spread.sum() / bent.sum()
    yield from _beside_dealt(about, RATIO, seen, null.tolist())


def _correlation_records(
    about: Record, found: LocalGeometry, frequency: Float[Tensor, "t"], dealt: Int[Tensor, "draws t"]
) -> Iterator[Record]:
    ranks = torch.from_numpy(stats.rankdata(frequency.cpu().numpy())).to(frequency)
    null = [float(_correlations(found, ranks[one]).mean()) for one in dealt]
    yield from _beside_dealt(about, CORRELATION, found.mean(_correlations(found, ranks)), null)


def _beside_dealt(about: Record, metric: str, seen: Interval, null: Sequence[float]) -> Iterator[Record]:
    """An estimate over anchors and over which types have which frequency: patches share the few that are frequent.

    What frequencies that are dealt out at random give shows the latter, and how often it is as far out by chance.
    """
    low, high = np.quantile(null, [0.025, 0.975])
    beside = Interval(float(np.mean(null)), float(low), float(high), ci_over="deals")
    reach = math.hypot(seen.ci_high - seen.value, (beside.ci_high - beside.ci_low) / 2)
    yield estimate(about, metric, Interval(seen.value, seen.value - reach, seen.value + reach, "anchors and types"))
    if beside.ci_low < beside.ci_high:
        yield estimate(about, metric + DEALT, beside)
        beyond = min(sum(one <= seen.value for one in null), sum(one >= seen.value for one in null))
        yield replace(about, metric=metric + P_VALUE, value=min(2 * (1 + beyond) / (1 + len(null)), 1.0))


def _correlations(found: LocalGeometry, ranks: Float[Tensor, "t"]) -> Float[Tensor, "a"]:
    """The correlation between the rank of a type's frequency and that of its distance from the anchor, in each patch.

    The anchor itself is left out: it may have been drawn for its frequency.
    """
    # From near to far.
    near = ranks[found.neighbours[:, 1:]]
    near = near - near.mean(dim=1, keepdim=True)
    place = torch.arange(near.shape[1], dtype=near.dtype, device=near.device) - (near.shape[1] - 1) / 2
    return near @ place / (near.norm(dim=1) * place.norm()).clamp_min(1e-300)


def _name(alpha: float) -> str:
    return f"alpha={alpha:g}"
