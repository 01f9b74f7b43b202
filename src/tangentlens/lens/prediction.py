"""Prediction in a training: the gradients of a due step in subspaces of the due step before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tangentlens.alignment.prediction import GRADIENTS_THEN, leading_gradients, prediction_test
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.tangent_result import TangentTest, average
from tangentlens.geometry.subspace import Subspace
from tangentlens.lens.measures import Fitting
from tangentlens.lens.records import share_records
from tangentlens.proxies import named_proxy
from tangentlens.runs.records import Record
from tangentlens.runs.vocabulary import ALL_ROWS, LATER_GRADIENT, WITHOUT_MASSIVE


@dataclass(frozen=True, eq=False)
class SitePrediction:
    """What subspaces of the due step before take of the gradients of a site.

    Attributes:
        tests: The test of all rows and, if some are massive, without these, by which rows they are.
        leading: The leading directions of the gradients of this step, for the next one.
    """

    tests: Mapping[str, TangentTest]
    leading: Subspace


def predict(rows: TokenRows, then: Mapping[str, Subspace], rank: int, fitting: Fitting) -> SitePrediction:
    """Test the subspaces of the due step before on the gradients of this one.

    Args:
        rows: The activations and gradients of this step.
        then: The proxy, `pca` and leading gradients of the due step before; empty at the first one.
        rank: The rank of this step's proxy.
        fitting: The proxy and how it is compared.
    """
    leading = leading_gradients(rows.gradients, rank)
    name, _ = named_proxy(fitting.proxy)
    chosen = {one: then[one] for one in dict.fromkeys((name, "pca", GRADIENTS_THEN)) if one in then}
    if name not in chosen or len({q.rank for q in chosen.values()}) > 1:
        return SitePrediction({}, leading)
    kept = rows.without_massive(fitting.massive)
    readings = {ALL_ROWS: rows} | ({WITHOUT_MASSIVE: kept} if len(kept.sequences) < len(rows.sequences) else {})
    return SitePrediction({which: prediction_test(chosen, one) for which, one in readings.items()}, leading)


def prediction_records(about: Record, site: SitePrediction) -> Iterator[Record]:
    """Yield the tests of a site as records like `about`."""
    for which, test in site.tests.items():
        yield from share_records(replace(about, rows=which), test, LATER_GRADIENT)


def mean_prediction_records(about: Record, sites: Sequence[SitePrediction]) -> Iterator[Record]:
    """Yield means over sites: of all rows and, if some are massive at a site, without these."""
    if not all(site.tests for site in sites):
        return
    readings = [ALL_ROWS, *([WITHOUT_MASSIVE] if any(WITHOUT_MASSIVE in site.tests for site in sites) else [])]
    for which in readings:
        tests = [site.tests.get(which, site.tests[ALL_ROWS]) for site in sites]
        if len({(test.dim, len(shares)) for test in tests for shares in test.shares.values()}) == 1:
            yield from share_records(replace(about, rows=which), average(tests), LATER_GRADIENT)
