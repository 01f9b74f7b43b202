"""What is measured at a site on a due step: its geometry, its gradients, and the tangent test."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.share import BINNED_ORDERS
from tangentlens.alignment.tangent_result import Cell, TangentTest
from tangentlens.alignment.tangent_test import tangent_test
from tangentlens.errors import InputError
from tangentlens.geometry.massive import THRESHOLD, Places, massive_rows
from tangentlens.geometry.measures import MEASURES, Cloud, Estimate
from tangentlens.geometry.rows import as_rows
from tangentlens.geometry.spectrum.anisotropy import anisotropy
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies import Fit

# The controls that cost next to nothing, which a training is compared with.
WATCHED = ("normal", "random", "permuted", "pca", "covariance")
# The numbers that are reported live, to a tracker.
SCALARS = (
    "tangent_share",
    "tangent_share_over_chance",
    "anisotropy",
    "intrinsic_dimension",
    "gradient_norm",
    "massive_rows",
)


@dataclass(frozen=True)
class Fitting:
    """How proxies are fitted and compared.

    Attributes:
        proxy: The name of a proxy, or a function `(rows, rank, seed) -> Subspace`.
        rank: The rank of the proxy and of its controls.
        bins: Frequency bins, if shares are to be binned by token frequency.
        seed: The seed of everything that is drawn.
        controls: What the proxy is compared with.
        orders: The orders of the shares.
        massive: How many times as long as the median row a row must be to count as massive.
        measures: Names of further measures of activations.
    """

    proxy: str | Fit
    rank: int
    bins: FrequencyBins | None
    seed: int
    controls: Sequence[str] = WATCHED
    orders: Sequence[float] = BINNED_ORDERS
    massive: float = THRESHOLD
    measures: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Look:
    """What was measured at one site on one step, but for the tangent test.

    Attributes:
        n: The number of rows.
        dim: Their width.
        estimates: The measures of the activations, by key; those that the rows do not allow are missing.
        gradient_anisotropy: The anisotropy of the gradients, uncentred; None if all are 0.
        gradient_rms: The root mean square length of a gradient.
        massive: Where the massive rows are.
    """

    n: int
    dim: int
    estimates: Mapping[str, Estimate | float]
    gradient_anisotropy: float | None
    gradient_rms: float
    massive: Places


@dataclass(frozen=True, eq=False, kw_only=True)
class SiteMeasures(Look):
    """What was measured at one site on one step.

    Attributes:
        test: The tangent test of the step's gradients, or why there is none: all else needs no proxy.
        without_massive: The same without massive rows, if there are any; or why that could not be measured.
    """

    test: TangentTest | InputError
    without_massive: SiteMeasures | InputError | None = None

    @property
    def subspaces(self) -> Mapping[str, Subspace]:
        """The proxy and the fitted controls by name; empty if there was no test."""
        return self.test.subspaces if isinstance(self.test, TangentTest) else {}

    def value(self, key: str) -> float:
        """Return the value of a measure of the activations."""
        estimate = self.estimates[key]
        return estimate if isinstance(estimate, float) else estimate.interval.value


@dataclass(frozen=True, eq=False)
class Reading:
    """Rows of a site: all of them, or those that are not massive.

    Attributes:
        cloud: The activations.
        rows: The activations and gradients.
        fit_on: Activations of other sequences, to fit the proxy on; without them half of the sequences fit it.
    """

    cloud: Cloud
    rows: TokenRows
    fit_on: Float[Tensor, "m d"] | None


def readings(rows: TokenRows, fit_on: Float[Tensor, "m d"] | None, massive: float) -> list[Reading]:
    """Return all rows of a site and, if some of them are massive, the others.

    Args:
        rows: The activations and gradients of the step.
        fit_on: Activations of other sequences, to fit the proxy on.
        massive: How many times as long as the median row a row must be to count as massive.
    """
    rows = replace(rows, activations=as_rows(rows.activations), gradients=as_rows(rows.gradients))
    cloud = Cloud(rows.activations, rows.tokens, rows.sequences, massive)
    every = Reading(cloud, rows, fit_on)
    to_drop = None if fit_on is None else massive_rows(fit_on, massive)
    if not cloud.massive.count and not (to_drop and to_drop.count):
        return [every]
    fit_on_kept = fit_on if fit_on is None or to_drop is None else fit_on[~to_drop.mask]
    return [every, Reading(cloud.without_massive(), rows[~cloud.massive.mask], fit_on_kept)]


def measure_site(rows: TokenRows, fit_on: Float[Tensor, "m d"] | None, fitting: Fitting) -> SiteMeasures:
    """Measure the rows of a site and, if some of them are massive, measure it again without these.

    Args:
        rows: The activations and gradients of the step.
        fit_on: Activations of other sequences, to fit the proxy on; without them half of the sequences fit it.
        fitting: The proxy and how it is compared.
    """
    read = readings(rows, fit_on, fitting.massive)
    return put_together(test_site(read, fitting), look_at_site(read, fitting))


def test_site(read: Sequence[Reading], fitting: Fitting) -> list[TangentTest | InputError]:
    """Return the tangent test of each reading, or why it does not allow one, such as too few sequences."""
    return [_tested(one.rows, one.fit_on, fitting) for one in read]


def look_at_site(read: Sequence[Reading], fitting: Fitting) -> list[Look | InputError]:
    """Return what needs no proxy of each reading; of the one without massive rows, it may be why that is not there."""
    looks: list[Look | InputError] = [_look(read[0], fitting)]
    for one in read[1:]:
        try:
            looks.append(_look(one, fitting))
        except InputError as error:
            looks.append(error)
    return looks


def put_together(tests: Sequence[TangentTest | InputError], looks: Sequence[Look | InputError]) -> SiteMeasures:
    """Return the measures of a site from the two parts of each of its readings."""
    found = [
        look if isinstance(look, InputError) else SiteMeasures(test=test, **vars(look))
        for test, look in zip(tests, looks, strict=True)
    ]
    every, without = found[0], found[1] if len(found) > 1 else None
    assert isinstance(every, SiteMeasures), "only the reading without massive rows may fail"
    return replace(every, without_massive=without)


def _look(read: Reading, fitting: Fitting) -> Look:
    gradients = read.rows.gradients
    rms = float(gradients.square().sum(dim=1).mean().sqrt())
    return Look(
        n=len(gradients),
        dim=gradients.shape[1],
        estimates=_estimates(read.cloud, fitting.measures),
        gradient_anisotropy=anisotropy(gradients, center=False) if rms > 0 else None,
        gradient_rms=rms,
        massive=Places.of(read.cloud.massive, read.rows.positions, read.rows.tokens),
    )


def _tested(rows: TokenRows, fit_on: Float[Tensor, "m d"] | None, fitting: Fitting) -> TangentTest | InputError:
    """Return the tangent test of rows, or why they do not allow one, such as too few sequences."""
    binned = fitting.bins is not None
    try:
        return tangent_test(
            rows.activations,
            rows.gradients,
            rows.sequences,
            tokens=rows.tokens if binned else None,
            targets=rows.targets if binned else None,
            rank=fitting.rank,
            controls=fitting.controls,
            orders=fitting.orders,
            bins=fitting.bins,
            fit_on=fit_on,
            seed=fitting.seed,
            proxy=fitting.proxy,
        )
    except InputError as error:
        return error


def _estimates(cloud: Cloud, further: Sequence[str]) -> dict[str, Estimate | float]:
    """Return every measure that a lens takes, with an interval where one batch gives one.

    Args:
        cloud: The rows.
        further: Names of measures that a lens takes if asked; what the rows do not allow is left out.
    """
    estimates: dict[str, Estimate | float | None] = {}
    for measure in MEASURES:
        if measure.in_lens:
            estimates[measure.key] = measure.of(cloud) if measure.estimate is None else measure.estimate(cloud)
        elif measure.name in further:
            with contextlib.suppress(InputError):
                estimates[measure.key] = measure.of(cloud)
    return {key: estimate for key, estimate in estimates.items() if estimate is not None}


def scalars(measured: Mapping[str, SiteMeasures]) -> dict[str, float]:
    """Return the live numbers: means over the sites that have them."""
    sites = [_site_scalars(site) for site in measured.values()]
    values = {name: [site[name] for site in sites if name in site] for name in SCALARS}
    return {name: sum(of_sites) / len(of_sites) for name, of_sites in values.items() if of_sites}


def scalars_by_site(measured: Mapping[str, SiteMeasures]) -> dict[str, float]:
    """Return the live numbers of every site, by `site/scalar`.

    In this order no name is the beginning of another one, which some trackers would take for a folder.
    """
    return {f"{site}/{name}": value for site, one in measured.items() for name, value in _site_scalars(one).items()}


def _site_scalars(site: SiteMeasures) -> dict[str, float]:
    values = {name: site.value(name) for name in ("anisotropy", "intrinsic_dimension", "massive_rows")}
    values["gradient_norm"] = site.gradient_rms
    test = site.test
    if isinstance(test, TangentTest):
        values["tangent_share"] = share = float(test.shares[Cell(test.proxy, 1.0, "all")][0])
        values["tangent_share_over_chance"] = share * test.dim / test.subspaces[test.proxy].rank
    return {name: values[name] for name in SCALARS if name in values}
