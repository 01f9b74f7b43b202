"""A due step, in the order in which data flows: gather the rows of all ranks, measure each site, make records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.alignment.rows import TokenRows
from tangentlens.capture.distributed import gathered, gathered_rows, is_first
from tangentlens.capture.sites import Site
from tangentlens.capture.step import Capture, no_gradient
from tangentlens.capture.stream import MomentStream
from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments
from tangentlens.lens.concepts import Earlier, Wording, concept_records
from tangentlens.lens.measures import Fitting, SiteMeasures, measure_site
from tangentlens.lens.memory import Memory
from tangentlens.lens.prediction import SitePrediction, mean_prediction_records, predict, prediction_records
from tangentlens.lens.records import mean_records, site_records, window_records
from tangentlens.proxies import named_proxy
from tangentlens.runs.records import Record
from tangentlens.runs.vocabulary import MEAN_SITE


@dataclass(frozen=True, eq=False)
class DueStep:
    """What a due step is measured from.

    Attributes:
        about: What all records of the step have in common.
        sites: The sites to measure.
        capture: The step's own activations and gradients.
        stream: The moments of all steps since the last due one.
        memory: What was kept of the steps before.
        fitting: The proxy and how it is compared.
        predict: Whether to test the subspaces of the due step before.
        nothing_yet: Whether nothing was measured before, so that a site without a gradient is a mistake in the settings
            and an error. Later it may have been frozen on purpose, which must not end a training.
        wording: What puts concepts into words, if that was asked for.
    """

    about: Record
    sites: Sequence[Site]
    capture: Capture
    stream: MomentStream
    memory: Memory
    fitting: Fitting
    predict: bool = False
    nothing_yet: bool = True
    wording: Wording | None = None


@dataclass(frozen=True, eq=False)
class SiteData:
    """What all ranks together have of a site.

    Attributes:
        rows: The step's rows; None if there are none.
        around: The tokens around each of them, if concepts are to be put into words.
        fit_on: Rows to fit on, if there are any.
        window: Moments since the last due step.
    """

    rows: TokenRows | None
    around: Int[Tensor, "n width"] | None
    fit_on: Float[Tensor, "m d"] | None
    window: Mapping[str, Mapping[str, Moments]]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of a due step: measures, predictions, concepts, records; for sites without measures, the reason."""

    measured: dict[str, SiteMeasures] = field(default_factory=dict)
    predictions: dict[str, SitePrediction] = field(default_factory=dict)
    concepts: dict[str, Earlier] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    troubles: dict[str, str] = field(default_factory=dict)


def measure_due_step(step: DueStep) -> Outcome:
    """Measure every site, one after the other. All ranks take part; the first one measures and gets the records."""
    outcome = Outcome()
    frozen = [name for name in step.capture.without_gradient() if name in {site.name for site in step.sites}]
    if step.capture.n_backward == 0 or (step.nothing_yet and frozen):
        raise no_gradient(frozen or [site.name for site in step.sites])
    for site in step.sites:
        data = gather(step, site, frozen)
        if is_first():
            try:
                measure(step, site, data, outcome)
            except InputError as error:
                # Such steps (not finite, no gradient, too few sequences) happen, and must not end a training.
                outcome.troubles[site.name] = str(error)
                outcome.records.append(_at(step, site).unmeasured(str(error)))
        step.capture.forget(site)
    if outcome.measured:
        sites = list(outcome.measured.values())
        outcome.records.extend(mean_records(replace(step.about, site=MEAN_SITE), sites))
    if outcome.predictions:
        predictions = list(outcome.predictions.values())
        outcome.records.extend(mean_prediction_records(replace(step.about, site=MEAN_SITE), predictions))
    return outcome


def gather(step: DueStep, site: Site, frozen: Sequence[str]) -> SiteData:
    """Return what all ranks have of a site. Each rank takes part in every exchange, whatever it lacks itself.

    Args:
        step: The due step.
        site: The site.
        frozen: Sites that no gradient came through.
    """
    # A site without a forward pass was dropped at random.
    lacks = site.name in frozen or not step.capture.ran(site)
    own = None if lacks else step.capture.rows(site)
    return SiteData(
        rows=gathered_rows(own, step.capture.devices),
        around=None if step.wording is None else _around(step, site, lacks),
        fit_on=step.memory.earlier(site, step.capture.devices),
        window=step.stream.total(site.name),
    )


def _around(step: DueStep, site: Site, lacks: bool) -> Int[Tensor, "n width"] | None:
    """Return the tokens around each row of a site, of all ranks, which exchange numbers of fp32: ids up to 2^24."""
    around = gathered(None if lacks else step.capture.contexts(site), step.capture.devices)
    return None if around is None else around.long()


def measure(step: DueStep, site: Site, data: SiteData, outcome: Outcome) -> None:
    """Measure one site and put measures and records into the outcome."""
    if data.rows is None:
        if step.capture.ran(site):
            raise InputError("no gradient came through it; is it frozen?")
        raise InputError("no forward pass came through it; are blocks dropped at random?")
    here = _at(step, site)
    subspaces, (name, _) = step.memory.subspaces.get(site.name, {}), named_proxy(step.fitting.proxy)
    for rows, moments in data.window.items():
        if len(moments) == 2:
            outcome.records.extend(window_records(replace(here, rows=rows), **moments, proxies=subspaces, proxy=name))
    outcome.measured[site.name] = measure_site(data.rows, data.fit_on, step.fitting)
    outcome.records.extend(site_records(here, outcome.measured[site.name]))
    if step.wording is not None and data.around is not None:
        earlier = step.memory.concepts.get(site.name)
        told = (data.rows, data.around, data.fit_on, step.fitting, step.wording, earlier)
        records, found = concept_records(here, *told)
        outcome.records.extend(records)
        if found is None:
            outcome.troubles[site.name] = records[0].detail
        else:
            outcome.concepts[site.name] = found
    test = outcome.measured[site.name].test
    if isinstance(test, InputError):
        outcome.troubles[site.name] = f"no shares: {test}"
    elif step.predict and test.rank is not None:
        outcome.predictions[site.name] = predict(data.rows, subspaces, test.rank, step.fitting)
        outcome.records.extend(prediction_records(here, outcome.predictions[site.name]))


def _at(step: DueStep, site: Site) -> Record:
    return replace(step.about, site=site.name, depth=site.depth)
