"""What is measured at a site at one step, and how it is told in records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.intervals import Interval, anisotropy_replicates, share_jackknife
from tangentlens.alignment.tangent_test import ORDERS, PROXY, TangentTest, average, tangent_test
from tangentlens.capture.hooks import Rows
from tangentlens.geometry.anisotropy import anisotropy
from tangentlens.geometry.dimension import IntrinsicDimension, intrinsic_dimension
from tangentlens.geometry.rows import as_rows
from tangentlens.runs.records import Record

# The site's name in records of the mean over all sites.
MEAN_SITE = "mean"


@dataclass(frozen=True, eq=False)
class SiteMeasures:
    """Everything that is measured on the rows of one site at one step."""

    n: int
    test: TangentTest
    anisotropy: Float[Tensor, "g_plus_1"]
    dimension: IntrinsicDimension
    gradient_anisotropy: float
    gradient_rms: float


def measure_site(rows: Rows, rank: int, bins: FrequencyBins | None, seed: int) -> SiteMeasures:
    """Measure; rows that do not allow it are an `InputError`."""
    activations, gradients = as_rows(rows.activations), as_rows(rows.gradients)
    test = tangent_test(
        activations,
        gradients,
        rows.sequences,
        tokens=None if bins is None else rows.tokens,
        targets=None if bins is None else rows.targets,
        rank=rank,
        bins=bins,
        seed=seed,
    )
    return SiteMeasures(
        n=len(activations),
        test=test,
        anisotropy=anisotropy_replicates(activations, rows.sequences),
        dimension=intrinsic_dimension(activations),
        gradient_anisotropy=anisotropy(gradients, center=False),
        gradient_rms=float(gradients.square().sum(dim=1).mean().sqrt()),
    )


def site_records(about: Record, found: SiteMeasures) -> Iterator[Record]:
    """The measures of a site as records like `about`."""
    dimension = found.dimension
    activation = replace(about, quantity="activation", n=found.n)
    yield _estimate(activation, "anisotropy", share_jackknife(found.anisotropy))
    yield _estimate(
        replace(activation, n=dimension.n_used),
        "intrinsic_dimension",
        Interval(dimension.value, dimension.ci_low, dimension.ci_high, over="tokens"),
    )
    yield replace(activation, metric="duplicates", value=float(dimension.n_duplicates))
    gradient = replace(about, quantity="gradient", n=found.n)
    yield replace(gradient, metric="anisotropy", variant="uncentred", value=found.gradient_anisotropy)
    yield replace(gradient, metric="rms_norm", value=found.gradient_rms)
    yield from _test_records(about, found.test)


def mean_records(about: Record, found: Sequence[SiteMeasures]) -> Iterator[Record]:
    """The mean over sites of what has a mean with an interval: anisotropy and shares."""
    spread = torch.stack([site.anisotropy for site in found]).mean(dim=0)
    yield _estimate(replace(about, quantity="activation", n=found[0].n), "anisotropy", share_jackknife(spread))
    yield from _test_records(about, average([site.test for site in found]))


def _test_records(about: Record, test: TangentTest) -> Iterator[Record]:
    about = replace(about, quantity="gradient", rank=test.rank)
    for cell in test.shares:
        here = replace(about, n=test.n_tokens[cell.freq_bin], **cell._asdict())
        yield _estimate(here, "share", test.share(*cell))
        if cell.variant != PROXY:
            yield _estimate(here, "log_ratio", test.log_ratio(*cell))
        if cell in test.p_values:
            yield replace(here, metric="p_value", value=test.p_values[cell])
    for kind, order in product(("input", "target"), ORDERS):
        ratio = test.frequency_log_ratio(kind, order)
        if ratio is not None:
            here = replace(about, variant=PROXY, order=order, freq_bin=kind)
            yield _estimate(here, "frequency_log_ratio", ratio)


def _estimate(about: Record, metric: str, interval: Interval) -> Record:
    return replace(
        about,
        metric=metric,
        value=interval.value,
        ci_low=interval.low,
        ci_high=interval.high,
        ci_over=interval.over,
    )
