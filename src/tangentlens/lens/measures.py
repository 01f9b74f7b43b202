"""What is measured at a site at one step, and how it is told in records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.share import moment_shares
from tangentlens.alignment.tangent_result import PROXY, Cell, TangentTest, average
from tangentlens.alignment.tangent_test import BINNED_ORDERS, tangent_test
from tangentlens.capture.step import Rows
from tangentlens.errors import InputError
from tangentlens.geometry.dimension.entropy import manifold_entropy
from tangentlens.geometry.dimension.intrinsic import IntrinsicDimension, intrinsic_dimension
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.neighbours import distinct_rows
from tangentlens.geometry.rows import as_rows
from tangentlens.geometry.spectrum.alpha_req import alpha_req
from tangentlens.geometry.spectrum.anisotropy import anisotropy, anisotropy_replicates
from tangentlens.geometry.spectrum.cosine import rogue_dimensions
from tangentlens.geometry.spectrum.direction_counts import (
    effective_rank,
    entropy_rank,
    isoscore,
    participation_ratio,
    rankme,
    stable_rank,
)
from tangentlens.geometry.spectrum.local_anisotropy import local_anisotropy
from tangentlens.geometry.spectrum.partition import partition_isotropy
from tangentlens.geometry.subspace import Subspace
from tangentlens.runs.records import Record
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import share_jackknife

# The site's name in records of the mean over all sites.
MEAN_SITE = "mean"

# What a training is watched against: the controls that cost next to nothing.
WATCHED = ("normal", "random", "pca", "covariance")

# What is told live, to a tracker.
SCALARS = ("tangent_share", "tangent_share_over_chance", "anisotropy", "intrinsic_dimension", "gradient_norm")

# The variant of measures that take the first occurrence of each token type only.
ONE_PER_TYPE = "one_per_type"


def profile_measures(rows: Float[Tensor, "n d"], tokens: Int[Tensor, "n"]) -> dict[str, float]:
    """Every measure of activations by its name in records, `metric` or `metric:variant`; NaN where there is none.

    A new measure is a line here.
    """
    rows = as_rows(rows)
    moments = Moments.of(rows)
    types = rows[distinct_rows(tokens[:, None].double())]
    dimension = cache(lambda: intrinsic_dimension(rows))
    local = cache(lambda: local_anisotropy(rows))
    rogue = cache(lambda: rogue_dimensions(rows))
    measures: dict[str, Callable[[], float]] = {
        "anisotropy": lambda: anisotropy(moments),
        "mean_cosine": lambda: float(rogue().sum()),
        "intrinsic_dimension": lambda: dimension().value,
        f"intrinsic_dimension:{ONE_PER_TYPE}": lambda: intrinsic_dimension(types).value,
        "manifold_entropy": lambda: manifold_entropy(rows, dimension().value).value,
        "local_anisotropy": lambda: local().value,
        "local_anisotropy:matched": lambda: local().matched,
        "isoscore": lambda: isoscore(moments),
        "partition_isotropy": lambda: partition_isotropy(rows),
        "participation_ratio": lambda: participation_ratio(moments),
        "effective_rank": lambda: effective_rank(moments),
        "entropy_rank": lambda: entropy_rank(moments),
        "rankme": lambda: rankme(moments),
        "stable_rank": lambda: stable_rank(moments),
        "alpha_req": lambda: alpha_req(moments),
        "rogue_dimensions": lambda: float(rogue().amax() / rogue().sum()),
        "duplicates": lambda: float(dimension().n_duplicates),
    }
    return {name: _or_nan(measure) for name, measure in measures.items()}


def _or_nan(measure: Callable[[], float]) -> float:
    try:
        return measure()
    except InputError:
        return math.nan


@dataclass(frozen=True, eq=False)
class SiteMeasures:
    """Everything that is measured on the rows of one site at one step."""

    n: int
    test: TangentTest
    anisotropy: Float[Tensor, "g_plus_1"]
    dimension: IntrinsicDimension
    dimension_of_types: IntrinsicDimension | None
    gradient_anisotropy: float
    gradient_rms: float


def measure_site(
    rows: Rows, fit_on: Float[Tensor, "m d"] | None, rank: int, bins: FrequencyBins | None, seed: int
) -> SiteMeasures:
    """Measure, with the proxy fitted on `fit_on` or on half of the sequences; bad rows are an `InputError`."""
    activations, gradients = as_rows(rows.activations), as_rows(rows.gradients)
    test = tangent_test(
        activations,
        gradients,
        rows.sequences,
        tokens=None if bins is None else rows.tokens,
        targets=None if bins is None else rows.targets,
        rank=rank,
        controls=WATCHED,
        orders=BINNED_ORDERS,
        bins=bins,
        fit_on=fit_on,
        seed=seed,
    )
    # Occurrences of one token stay close together, so their neighbours are mostly each other.
    types = distinct_rows(rows.tokens[:, None].double())
    return SiteMeasures(
        n=len(activations),
        test=test,
        anisotropy=anisotropy_replicates(activations, rows.sequences),
        dimension=intrinsic_dimension(activations),
        dimension_of_types=intrinsic_dimension(activations[types]) if len(types) >= 3 else None,
        gradient_anisotropy=anisotropy(gradients, center=False),
        gradient_rms=float(gradients.square().sum(dim=1).mean().sqrt()),
    )


def bases(measured: Mapping[str, SiteMeasures]) -> dict[str, Tensor]:
    """The fitted subspaces of all sites, by `site/name`."""
    return {
        f"{site}/{name}": subspace.basis.float().cpu()
        for site, found in measured.items()
        for name, subspace in found.test.subspaces.items()
    }


def site_records(about: Record, found: SiteMeasures) -> Iterator[Record]:
    """The measures of a site as records like `about`."""
    activation = replace(about, quantity="activation", n=found.n)
    yield estimate(activation, "anisotropy", share_jackknife(found.anisotropy))
    yield _dimension_record(activation, found.dimension, over="tokens")
    yield replace(activation, metric="duplicates", value=float(found.dimension.n_duplicates))
    if found.dimension_of_types is not None:
        yield _dimension_record(replace(activation, variant=ONE_PER_TYPE), found.dimension_of_types, over="types")
    gradient = replace(about, quantity="gradient", n=found.n)
    yield replace(gradient, metric="anisotropy", variant="uncentred", value=found.gradient_anisotropy)
    yield replace(gradient, metric="rms_norm", value=found.gradient_rms)
    yield from share_records(about, found.test)


def scalars(found: Mapping[str, SiteMeasures]) -> dict[str, float]:
    """A handful of numbers to watch live: means over the sites that were measured."""
    sites = [_site_scalars(site) for site in found.values()]
    return {name: sum(site[name] for site in sites) / len(sites) for name in sites[0]} if sites else {}


def scalars_by_site(found: Mapping[str, SiteMeasures]) -> dict[str, float]:
    """The same of every site, by `scalar/site`."""
    return {f"{name}/{site}": value for site, one in found.items() for name, value in _site_scalars(one).items()}


def _site_scalars(found: SiteMeasures) -> dict[str, float]:
    share = float(found.test.shares[Cell(PROXY, 1.0, "all")][0])
    over_chance = share * found.test.dim / found.test.subspaces[PROXY].rank
    values = (share, over_chance, float(found.anisotropy[0]), found.dimension.value, found.gradient_rms)
    return dict(zip(SCALARS, values, strict=True))


def window_records(
    about: Record, activations: Moments, gradients: Moments, proxies: Mapping[str, Subspace]
) -> Iterator[Record]:
    """What the moments of many steps say, and what of their gradients lies in `proxies` that were fitted before."""
    activation = replace(about, quantity="activation", n=activations.count)
    yield replace(activation, metric="window_anisotropy", value=anisotropy(activations))
    gradient = replace(about, quantity="gradient", n=gradients.count)
    moment = gradients.second_moment()
    energy = float(moment.trace())
    yield replace(gradient, metric="window_rms_norm", value=math.sqrt(energy))
    if energy > 0:
        yield replace(gradient, metric="window_anisotropy", variant="uncentred", value=anisotropy(gradients, False))
        shares = moment_shares(moment, proxies, BINNED_ORDERS) if proxies else ()
        for (name, q), of_proxy in zip(proxies.items(), shares, strict=True):
            for order, share in zip(BINNED_ORDERS, of_proxy, strict=True):
                here = replace(gradient, variant=name, order=order, rank=q.rank)
                yield replace(here, metric="window_share", value=float(share))


def _dimension_record(about: Record, found: IntrinsicDimension, over: str) -> Record:
    interval = Interval(found.value, found.ci_low, found.ci_high, over)
    return estimate(replace(about, n=found.n_used), "intrinsic_dimension", interval)


def mean_records(about: Record, found: Sequence[SiteMeasures]) -> Iterator[Record]:
    """Anisotropy and shares on average over sites; sites of different widths or tokens have no such mean."""
    if len({(site.test.dim, site.n, len(site.anisotropy)) for site in found}) > 1:
        return
    spread = torch.stack([site.anisotropy for site in found]).mean(dim=0)
    yield estimate(replace(about, quantity="activation", n=found[0].n), "anisotropy", share_jackknife(spread))
    yield from share_records(about, average([site.test for site in found]))


def share_records(about: Record, test: TangentTest) -> Iterator[Record]:
    """What a tangent test found as records like `about`."""
    about = replace(about, quantity="gradient", rank=test.rank)
    for cell in test.shares:
        here = replace(about, n=test.n_tokens[cell.freq_bin], **cell._asdict())
        yield estimate(here, "share", test.share(*cell))
        if cell.variant != PROXY:
            yield estimate(here, "log_ratio", test.log_ratio(*cell))
        if cell in test.p_values:
            yield replace(here, metric="p_value", value=test.p_values[cell])
    for token_cell in test.token_shares:
        here = replace(about, n=test.n_tokens[token_cell.freq_bin], order=1.0, **token_cell._asdict())
        yield estimate(here, "token_share", test.token_share(*token_cell))
        if token_cell.variant != PROXY:
            yield estimate(here, "token_log_ratio", test.token_log_ratio(*token_cell))
    for variant, kind, order in product((PROXY, "pca"), ("input", "target"), BINNED_ORDERS):
        ratio = test.frequency_log_ratio(kind, order, variant)
        if ratio is not None:
            here = replace(about, variant=variant, order=order, freq_bin=kind)
            yield estimate(here, "frequency_log_ratio", ratio)


def estimate(about: Record, metric: str, interval: Interval) -> Record:
    """An estimate with its interval as a record like `about`."""
    return replace(about, metric=metric, **interval.columns())
