"""The tangent test of a finished model: all residual sites, every control, by token frequency, beside its nulls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from tangentlens.alignment.active_concepts import usual_active_concepts
from tangentlens.alignment.concepts import SPARSITY, contexts
from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.share import ORDERS
from tangentlens.alignment.tangent_test import CONTROLS
from tangentlens.capture.device import Devices
from tangentlens.capture.sites import Site, find_sites
from tangentlens.engine.side_by_side import side_by_side
from tangentlens.errors import InputError, check_whole
from tangentlens.geometry.massive import THRESHOLD, check_threshold
from tangentlens.lens.concepts import Wording, concept_records
from tangentlens.lens.measures import Fitting, SiteMeasures, measure_site
from tangentlens.lens.records import mean_records, site_records
from tangentlens.lens.settings import check_rank
from tangentlens.models.device import AUTO
from tangentlens.models.loading import Loading
from tangentlens.proxies import DEFAULT, named_proxy
from tangentlens.proxies.principal import Principal
from tangentlens.runs.active_records import active_records
from tangentlens.runs.files import Place, as_place
from tangentlens.runs.progress import Progress, Watch, unwatched
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, is_run
from tangentlens.runs.vocabulary import ALL_ROWS, GRADIENT, LOSS, MEAN_SITE, NULLS, WITHOUT_MASSIVE, null_name
from tangentlens.studies.in_hand import NOTHING, InHand
from tangentlens.studies.job import Job
from tangentlens.studies.kept_measures import keep_measures, kept_measures
from tangentlens.studies.subjects import Subject, rows_of_sites
from tangentlens.studies.trained import begin, networks_of

NAME = "test"


@dataclass(frozen=True)
class TestPlan:
    """What to test, and how.

    Attributes:
        model: A run that holds its networks, or a model: A directory, a hub id or `id@revision`.
        text: A text file; the built-in text by default.
        sites: Where to look.
        rank: Rank of the proxy and of its controls.
        proxy: The name of the proxy.
        nulls: Whether to test the untrained network and shuffled labels too.
        tokens: How many tokens' gradients to look at.
        length: Tokens that the model sees at once.
        skip_first: How many positions at the beginning of each window to leave out.
        bos: Whether every window begins with the begin-of-sequence token, also if the tokenizer adds none.
        massive: How many times as long as the median row a row must be to count as massive.
        mask_rate: For a masked model, the share of tokens that it has to predict.
        fit_head: For a model without a head, the number of steps to train one; 0 refuses such a model.
        seed: Seed of everything that is drawn.
        device: Where to compute; `auto` is the accelerator of this machine, or the CPU without one.
        dtype: For a model, the format of its weights and gradients; `auto` is that of the checkpoint or, on the CPU,
            float32.
        tokenizer: For a model, a directory or hub id of its tokenizer; None for its own.
        trust_remote_code: Whether to run code that a model's repository contains.
    """

    __test__ = False  # pytest takes classes with such a name for tests

    model: str
    text: str | None = None
    sites: str | tuple[str, ...] = "resid"
    rank: int = 16
    proxy: str = DEFAULT
    nulls: bool = False
    tokens: int = 8192
    length: int = 128
    skip_first: int = 0
    bos: bool = False
    massive: float = THRESHOLD
    mask_rate: float = 0.15
    fit_head: int = 0
    seed: int = 0
    device: str = AUTO
    dtype: str = "float32"
    tokenizer: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        check_whole(1, rank=self.rank)
        check_whole(256, tokens=self.tokens)
        check_whole(2, length=self.length)
        check_whole(0, skip_first=self.skip_first, fit_head=self.fit_head, seed=self.seed)
        named_proxy(self.proxy)
        check_threshold(self.massive, "massive")
        Loading.of(self)


def run_test(
    plan: TestPlan, out: str | Place, watch: Watch = unwatched, in_hand: InHand = NOTHING, only: str | None = None
) -> Run:
    """Test the model, and its nulls if the plan has them, into the run directory `out`; continues if interrupted.

    Args:
        plan: The plan.
        out: The run directory.
        watch: Told the progress.
        in_hand: The model and the text, where they need not be loaded.
        only: The name of the one network of a run to look at; by default all are looked at.
    """
    run, subjects = begin(plan, plan.model, NAME, out, watch, in_hand, partial(find_sites, wanted=plan.sites), only)
    for subject, sites in subjects:
        for which in ("", *NULLS) if plan.nulls else ("",):
            name = null_name(subject.name, which)
            if not run.has(name):
                _test_sites(run, plan, subject, which, sites, watch)
                measured = [kept_measures(run, _part(name, site)) for site in sites]
                found = [one for one in measured if one is not None]
                about = replace(_about(plan, subject, name), site=MEAN_SITE)
                run.write(name, mean_records(about, found) if len(found) == len(sites) else ())
    return run


def _test_sites(run: Run, plan: TestPlan, subject: Subject, which: str, sites: Sequence[Site], watch: Watch) -> None:
    """Test the model, or one of its nulls, at the sites that are not in the run yet, and write each as it is tested."""
    name = null_name(subject.name, which)
    about = _about(plan, subject, name)
    fitting = Fitting(
        plan.proxy, plan.rank, FrequencyBins.of(subject.counts), plan.seed, CONTROLS, tuple(ORDERS), plan.massive
    )
    left = [site for site in sites if not run.has(_part(name, site))]
    watch(Progress(name, len(sites) - len(left), len(sites), f"gradients on {subject.facts['device']}"))

    def works() -> Iterator[list[Callable[[], Site]]]:
        for site, rows, loss in rows_of_sites(subject, which, left, plan.seed):
            check_rank(plan.rank, {site.name: rows.activations.shape[1]})
            first = [replace(about, quantity=LOSS, metric=LOSS, value=loss)] if site is sites[0] else []
            yield [partial(_test_site, run, about, subject, which, site, rows, fitting, first)]

    for (site,) in side_by_side(works(), Devices.of(subject.model).measure):
        watch(Progress(name, sites.index(site) + 1, len(sites), site.name))


def _test_site(
    run: Run,
    about: Record,
    subject: Subject,
    which: str,
    site: Site,
    rows: TokenRows,
    fitting: Fitting,
    first: list[Record],
) -> Site:
    """Test the model, or one of its nulls, at one site, and write it behind the records that come first."""
    here, part = replace(about, site=site.name, depth=site.depth), _part(null_name(subject.name, which), site)
    records, measured = _tested(here, rows, fitting, subject.token_name)
    if not which:
        around, wording = contexts(rows.tokens, rows.sequences), Wording(subject.text, subject.counts)
        records += concept_records(here, rows, around, None, fitting, wording)[0]
    if measured is not None:
        keep_measures(run, part, measured)
    run.write(part, first + records)
    return site


def _tested(
    about: Record, rows: TokenRows, fitting: Fitting, token_name: Callable[[int], str]
) -> tuple[list[Record], SiteMeasures | None]:
    """Return the records of a site, and what its mean with other sites needs; None if it could not be measured."""
    try:
        measured = measure_site(rows, None, fitting)
        records = list(site_records(about, measured, token_name))
    except InputError as error:
        measured, records = None, [about.unmeasured(str(error))]
    readings = {ALL_ROWS: rows, WITHOUT_MASSIVE: rows.without_massive(fitting.massive)}
    for kept, read in readings.items():
        if kept == ALL_ROWS or len(read.sequences) < len(rows.sequences):
            records += _active(replace(about, rows=kept), read, fitting.seed)
    return records, measured


def _about(plan: TestPlan, subject: Subject, name: str) -> Record:
    return Record(model=name, revision=subject.revision, step=subject.step, seed=plan.seed)


def _part(name: str, site: Site) -> str:
    return f"{name} at {site.name}"


def _active(about: Record, rows: TokenRows, seed: int) -> Iterator[Record]:
    """Yield the test of active concepts, with dense and with sparse codes."""

    @cache
    def halves() -> tuple[Principal, TokenRows]:
        fit, test = rows.halves()
        return Principal.of(fit.activations), test

    for kind, sparsity in (("", 0.0), ("sparse", SPARSITY)):
        try:
            result = usual_active_concepts(*halves(), sparsity, seed)
        except InputError as error:
            reason = f"active concepts: {error}"
            yield replace(about, quantity=GRADIENT, variant=kind or "concepts").unmeasured(reason)
        else:
            yield from active_records(about, result, kind)


def _folder(plan: TestPlan) -> Place:
    return (
        as_place(f"{plan.model.rstrip('/')}-{NAME}")
        if is_run(plan.model)
        else Path("runs") / f"{NAME}-{Path(plan.model).name or 'model'}"
    )


TEST = Job(
    NAME,
    TestPlan,
    run_test,
    _folder,
    apart=lambda plan: networks_of(plan.model),
    make_one=lambda plan, out, name: run_test(plan, out, only=name),
    smaller="tokens=2048, length=64, sites=resid:8 or dtype=bfloat16",
)
