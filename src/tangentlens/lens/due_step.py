"""A due step, in the order in which data flows: gather the rows of all ranks, measure each site, make records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.tangent_result import TangentTest
from tangentlens.capture.distributed import gathered, gathered_rows, is_first
from tangentlens.capture.sites import Site
from tangentlens.capture.step import Capture, no_gradient
from tangentlens.capture.stream import MomentStream
from tangentlens.engine.side_by_side import side_by_side
from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.subspace import Subspace
from tangentlens.lazy import cached_property
from tangentlens.lens.concepts import Earlier, Wording, concept_records
from tangentlens.lens.measures import (
    Fitting,
    Look,
    Reading,
    SiteMeasures,
    look_at_site,
    put_together,
    readings,
    test_site,
)
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

    def add(self, other: Outcome) -> None:
        """Add what came of another site."""
        self.measured.update(other.measured)
        self.predictions.update(other.predictions)
        self.concepts.update(other.concepts)
        self.records.extend(other.records)
        self.troubles.update(other.troubles)


def measure_due_step(step: DueStep) -> Outcome:
    """Measure every site. All ranks take part; the first one measures and gets the records."""
    outcome = Outcome()
    frozen = [name for name in step.capture.without_gradient() if name in {site.name for site in step.sites}]
    if step.capture.n_backward == 0 or (step.nothing_yet and frozen):
        raise no_gradient(frozen or [site.name for site in step.sites])
    begun: list[SiteWork] = []
    for found in side_by_side(_parts_of_sites(step, frozen, begun), step.capture.devices.measure):
        outcome.add(begun.pop(0).outcome(*found))
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


def _parts_of_sites(step: DueStep, frozen: Sequence[str], begun: list[SiteWork]) -> Iterator[list[Callable[[], Any]]]:
    """Yield what is to be done at each site, once all ranks have sent what they have of it; the first one does it."""
    for site in step.sites:
        data = gather(step, site, frozen)
        step.capture.forget(site)
        if is_first():
            begun.append(SiteWork(step, site, data))
            yield begun[-1].parts


@dataclass(frozen=True, eq=False)
class SiteWork:
    """What is to be done at one site, in parts that need nothing of each other.

    Attributes:
        step: The due step.
        site: The site.
        data: What all ranks together have of it.
    """

    step: DueStep
    site: Site
    data: SiteData

    @property
    def parts(self) -> list[Callable[[], Any]]:
        """Everything that is measured. What the rows do not allow is not raised, but returned."""
        # Before two parts ask for it at the same time, and each makes its own. If it cannot be made, both say so.
        _or_why_not(lambda: self.read)
        return [partial(_or_why_not, part) for part in (self.windows, self.test, self.look, self.words)]

    def windows(self) -> list[Record]:
        """Return the records of the moments since the last due step, if the site was seen on this one."""
        name, _ = named_proxy(self.step.fitting.proxy)
        if self.data.rows is None:
            return []
        return [
            record
            for rows, moments in self.data.window.items()
            if len(moments) == 2
            for record in window_records(replace(self.here, rows=rows), **moments, proxies=self.earlier, proxy=name)
        ]

    def test(self) -> tuple[list[TangentTest | InputError], SitePrediction | None]:
        """Return the tangent test of each reading, and that of the subspaces of the due step before."""
        tests = test_site(self.read, self.step.fitting)
        if not self.step.predict or isinstance(tests[0], InputError) or tests[0].rank is None:
            return tests, None
        return tests, predict(self.rows, self.earlier, tests[0].rank, self.step.fitting)

    def look(self) -> list[Look | InputError]:
        """Return what needs no proxy, of each reading."""
        return look_at_site(self.read, self.step.fitting)

    def words(self) -> tuple[list[Record], Earlier | None] | None:
        """Return the records of concepts and their directions, if concepts are to be put into words."""
        if self.step.wording is None or self.data.around is None:
            return None
        told = (self.rows, self.data.around, self.data.fit_on, self.step.fitting, self.step.wording)
        return concept_records(self.here, *told, self.step.memory.concepts.get(self.site.name))

    @cached_property
    def read(self) -> list[Reading]:
        """The rows of the site and, if some are massive, those that are not."""
        return readings(self.rows, self.data.fit_on, self.step.fitting.massive)

    @property
    def rows(self) -> TokenRows:
        """The rows of the site; if there are none, an error says why."""
        if self.data.rows is not None:
            return self.data.rows
        if self.step.capture.ran(self.site):
            raise InputError("no gradient came through it; is it frozen?")
        raise InputError("no forward pass came through it; are blocks dropped at random?")

    @property
    def here(self) -> Record:
        """What all records of the site have in common."""
        return replace(self.step.about, site=self.site.name, depth=self.site.depth)

    @property
    def earlier(self) -> Mapping[str, Subspace]:
        """The subspaces of the due step before."""
        return self.step.memory.subspaces.get(self.site.name, {})

    def outcome(self, windows: Any, test: Any, look: Any, words: Any) -> Outcome:
        """Return what came of the site, from the results of its parts."""
        outcome, name = Outcome(), self.site.name
        if not isinstance(windows, InputError):
            outcome.records.extend(windows)
        why_not = next((part for part in (windows, test, look, words) if isinstance(part, InputError)), None)
        if why_not is not None:
            # Such steps (not finite, no gradient, too few sequences) happen, and must not end a training.
            outcome.troubles[name] = str(why_not)
            outcome.records.append(self.here.unmeasured(str(why_not)))
            return outcome
        tests, prediction = test
        outcome.measured[name] = put_together(tests, look)
        outcome.records.extend(site_records(self.here, outcome.measured[name]))
        if words is not None:
            records, found = words
            outcome.records.extend(records)
            if found is None:
                outcome.troubles[name] = records[0].detail
            else:
                outcome.concepts[name] = found
        if isinstance(tests[0], InputError):
            outcome.troubles[name] = f"no shares: {tests[0]}"
        elif prediction is not None:
            outcome.predictions[name] = prediction
            outcome.records.extend(prediction_records(self.here, prediction))
        return outcome


def _or_why_not(part: Callable[[], Any]) -> Any:
    """Return what a part returns, or the error that says why the rows do not allow it."""
    try:
        return part()
    except InputError as error:
        return error
