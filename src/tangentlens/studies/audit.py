"""The audit of a run or of a finished model: whose rows are checked, which nulls they are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl
from torch import nn

from tangentlens.alignment.audit import Audit, audit
from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.tangent_planes import VERDICTS
from tangentlens.capture.sites import Site, find_sites
from tangentlens.errors import InputError, check_whole
from tangentlens.geometry.massive import THRESHOLD, check_threshold
from tangentlens.lens.records import share_records
from tangentlens.lens.settings import check_rank
from tangentlens.models.device import AUTO
from tangentlens.models.loading import Loading
from tangentlens.report.contents import Section, Table
from tangentlens.report.reading import ESTIMATE, interval_text, relations, rows_text, text_of, without_massive
from tangentlens.runs.files import Place, as_place
from tangentlens.runs.progress import Progress, Watch, unwatched
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, is_run
from tangentlens.runs.vocabulary import ALL_ROWS, GRADIENT, LOSS, NULLS, WITHOUT_MASSIVE, derived
from tangentlens.runs.vocabulary import AUDIT as AUDITED
from tangentlens.statistics.words import tally
from tangentlens.studies.in_hand import NOTHING, InHand
from tangentlens.studies.job import Job
from tangentlens.studies.subjects import Subject, subject_rows
from tangentlens.studies.trained import begin, networks_of

NAME = "audit"
VERDICT = derived(AUDITED, "verdict")


@dataclass(frozen=True)
class AuditPlan:
    """What to audit, and how.

    Attributes:
        target: A run that holds its models, or a model: a directory, a hub id or `id@revision`.
        text: For a model, a text file; the built-in text by default.
        sites: Where to look; by default the residual stream half-way through.
        rank: Rank of the proxy and of its controls.
        tokens: How many tokens' gradients to look at.
        length: For a model, tokens that it sees at once.
        skip_first: How many positions at the beginning of each sequence to leave out.
        bos: For a model, whether every window begins with the begin-of-sequence token.
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

    target: str
    text: str | None = None
    sites: str | tuple[str, ...] = ()
    rank: int = 16
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
        check_whole(1, rank=self.rank, tokens=self.tokens)
        check_whole(2, length=self.length)
        check_whole(0, skip_first=self.skip_first, fit_head=self.fit_head, seed=self.seed)
        check_threshold(self.massive, "massive")
        Loading.of(self)


def run_audit(
    plan: AuditPlan, out: str | Place, watch: Watch = unwatched, in_hand: InHand = NOTHING, only: str | None = None
) -> Run:
    """Audit every model of the plan's target at every site into the run directory `out`; continues if interrupted.

    Args:
        plan: The plan.
        out: The run directory.
        watch: Told the progress.
        in_hand: The model and the text, where they need not be loaded.
        only: The name of the one network of a run to look at; by default all are looked at.
    """
    run, subjects = begin(plan, plan.target, NAME, out, watch, in_hand, partial(_sites, wanted=plan.sites), only)
    for subject, sites in subjects:
        watch(Progress(subject.name, 0, len(sites), f"gradients on {subject.facts['device']}"))
        if all(run.has(_part(subject, site)) for site in sites):
            continue
        captured = {name: subject_rows(subject, name, sites, plan.seed) for name in ("trained", *NULLS)}
        check_rank(plan.rank, {name: rows.activations.shape[1] for name, rows in captured["trained"][0].items()})
        about = replace(_about(plan, subject), quantity=LOSS, metric=LOSS)
        losses = [replace(about, variant=name, value=loss) for name, (_, loss) in captured.items()]
        if not run.has(subject.name):
            run.write(subject.name, losses)
        for done, site in enumerate(sites):
            watch(Progress(subject.name, done, len(sites), site.name))
            if not run.has(_part(subject, site)):
                _audit_site(plan, subject, site, {name: rows[site.name] for name, (rows, _) in captured.items()}, run)
        watch(Progress(subject.name, len(sites), len(sites)))
    return run


def _audit_site(plan: AuditPlan, subject: Subject, site: Site, rows: Mapping[str, TokenRows], run: Run) -> None:
    """Audit all rows of a site and, if some are massive, audit it again without these."""
    part, about = _part(subject, site), replace(_about(plan, subject), site=site.name, depth=site.depth)
    readings = {ALL_ROWS: rows}
    without = {name: of.without_massive(plan.massive) for name, of in rows.items()}
    if len(without["trained"].sequences) < len(rows["trained"].sequences):
        readings[WITHOUT_MASSIVE] = without
    records: list[Record] = []
    for which, read in readings.items():
        try:
            page = _page(plan, subject, site, read)
        except InputError as error:
            if which == ALL_ROWS:
                raise
            records.append(replace(about, rows=which).unmeasured(str(error)))
            continue
        checks = [{"name": check.name, "found": check.found, "means": check.means} for check in page.checks]
        run.describe("audits", {f"{part}{rows_text(which)}": {"says": page.says, "checks": checks}})
        records += _audit_records(replace(about, rows=which), page)
    run.write(part, records)


def _page(plan: AuditPlan, subject: Subject, site: Site, rows: Mapping[str, TokenRows]) -> Audit:
    here = rows["trained"]
    return audit(
        here.activations,
        here.gradients,
        here.sequences,
        tokens=here.tokens,
        targets=here.targets,
        bins=FrequencyBins.of(subject.counts),
        rank=plan.rank,
        others={name: (rows[name].activations, rows[name].gradients, rows[name].sequences) for name in NULLS},
        proxies=(subject.earlier or {}).get(site.name),
        seed=plan.seed,
    )


def _about(plan: AuditPlan, subject: Subject) -> Record:
    return Record(model=subject.name, revision=subject.revision, step=subject.step, seed=plan.seed)


def _audit_records(about: Record, page: Audit) -> Iterator[Record]:
    about = replace(about, quantity=GRADIENT, rank=page.rank, n=page.n_tokens)
    yield replace(about, metric=VERDICT, detail=page.says, value=1.0)
    for check in page.checks:
        for name, estimate in check.estimates.items():
            yield replace(about, variant=name).estimate(derived(AUDITED, check.name), estimate)
    if page.test is not None:
        yield from share_records(about, page.test)


def _part(subject: Subject, site: Site) -> str:
    return f"{subject.name} at {site.name}"


def _sites(model: nn.Module, wanted: str | Sequence[str]) -> list[Site]:
    """Return the sites asked for; by default the residual stream half-way through."""
    if wanted:
        return find_sites(model, wanted)
    stream = find_sites(model, "resid")
    return [stream[len(stream) // 2]]


def verdicts(rows: pl.DataFrame) -> Iterator[str]:
    """Say the verdict at each site, and at how many sites, and in how many charts, the own chart takes more."""
    audited = rows.filter(pl.col("metric").str.starts_with(f"{AUDITED}/")).sort("depth", maintain_order=True)
    for row in audited.filter(metric=VERDICT).iter_rows(named=True):
        yield f"Audit at {row['site']}{rows_text(row['rows'])}: the gradients are {VERDICTS[row['detail']]}."
    charts, other = without_massive(audited.filter(metric=derived(AUDITED, "charts"))), "that in other charts' planes"
    if charts.height:
        sites = charts.filter(variant="log_ratio")
        single = charts.filter(pl.col("variant").str.starts_with("log_ratio of chart "))
        in_charts = tally(relations(single), other, "charts", "in")
        yield (
            "On average over charts, the share of gradients in the plane of their own chart is "
            f"{tally(relations(sites), other)} (energy; 95% intervals over sequences)."
            + (f" Chart by chart, it is {in_charts}." if single.height else "")
        )


def audit_tables(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate every number of the audit, one table per model and site."""
    is_number = pl.col("metric").str.starts_with(f"{AUDITED}/") & (pl.col("metric") != VERDICT)
    rows = records.filter(is_number).sort("run", "model", "depth", maintain_order=True)
    for (model, site, which), here in rows.group_by(["model", "site", "rows"], maintain_order=True):
        frame = here.select(
            "run",
            pl.col("metric").str.strip_prefix(f"{AUDITED}/").alias("check"),
            pl.col("variant").alias("number"),
            text_of(ESTIMATE, interval_text).alias("estimate"),
            pl.col("ci_over").alias("interval over"),
        )
        yield Table(f"{model} at {site}{rows_text(str(which))}: every number of the audit", frame)


def _folder(plan: AuditPlan) -> Place:
    return (
        as_place(f"{plan.target.rstrip('/')}-audit")
        if is_run(plan.target)
        else Path("runs") / f"audit-{Path(plan.target).name}"
    )


AUDIT = Job(
    NAME,
    AuditPlan,
    run_audit,
    _folder,
    Section(
        question="Is the proxy really tangent?",
        command="tangentlens audit MODEL",
        tables=(audit_tables,),
        findings=(verdicts,),
        rows=None,
    ),
    apart=lambda plan: networks_of(plan.target),
    make_one=lambda plan, out, name: run_audit(plan, out, only=name),
    smaller="tokens=2048, length=64, fewer sites or dtype=bfloat16",
)
