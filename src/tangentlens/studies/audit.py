"""The audit of a run or of a finished model: whose rows are checked, which nulls they are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path

import polars as pl
import torch
from jaxtyping import Int
from torch import Tensor, nn

from tangentlens.alignment.audit import Audit, audit
from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.tangent_planes import VERDICTS
from tangentlens.capture.backward import gradients
from tangentlens.capture.batch import Objective
from tangentlens.capture.sites import Site, find_sites
from tangentlens.corpora.tokens import MASK
from tangentlens.corpora.windows import Text, windows
from tangentlens.errors import InputError
from tangentlens.geometry.subspace import Subspace
from tangentlens.lens.records import share_records
from tangentlens.models.load import LoadedModel, load_language_model
from tangentlens.models.small import Kind, weight_hash
from tangentlens.proxies import DEFAULT
from tangentlens.report.contents import Section, Table
from tangentlens.report.reading import interval_text, text_of
from tangentlens.runs.progress import Progress, Watch, unwatched
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, create_run, is_run, open_run
from tangentlens.runs.vocabulary import AUDIT as AUDITED
from tangentlens.runs.vocabulary import GRADIENT, LOSS, derived
from tangentlens.studies.demo import DEMO, DemoPlan
from tangentlens.studies.study import Study
from tangentlens.training.loop import Checkpoint, Recipe
from tangentlens.training.objectives import IGNORED, batch_for, draw

NAME = "audit"
VERDICT = derived(AUDITED, "verdict")
# Sequences in a forward pass.
_BATCH = 16


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
        mask_rate: For a masked model, the share of tokens that it has to predict.
        fit_head: For a model without a head, the number of steps to train one; 0 refuses such a model.
        seed: Seed of everything that is drawn.
        device: Where to compute.
        trust_remote_code: Whether to run code that a model's repository contains.
    """

    target: str
    text: str | None = None
    sites: tuple[str, ...] = ()
    rank: int = 16
    tokens: int = 8192
    length: int = 128
    mask_rate: float = 0.15
    fit_head: int = 0
    seed: int = 0
    device: str = "cpu"
    trust_remote_code: bool = False


@dataclass(frozen=True, eq=False)
class Subject:
    """A model to audit.

    Attributes:
        name: Its name in the records.
        kind: Decoder or encoder, which decides its loss.
        model: The model.
        untrained: A model of the same architecture with fresh weights.
        batches: The batches that give both their gradients.
        exclude: Token ids to leave out.
        counts: Token counts, for frequency bins.
        step: The training step, if it is known.
        earlier: Proxies of earlier steps, by site and step.
    """

    name: str
    kind: Kind
    model: nn.Module
    untrained: nn.Module
    batches: Sequence[Mapping[str, Tensor]]
    exclude: Sequence[int]
    counts: Int[Tensor, "vocabulary"]
    step: int = 0
    earlier: Mapping[str, Mapping[str, Subspace]] | None = None


def run_audit(plan: AuditPlan, out: str | Path, watch: Watch = unwatched) -> Run:
    """Audit every model of the plan's target at every site into the run directory `out`; continues if interrupted."""
    subjects = _of_run(plan) if is_run(plan.target) else _of_model(plan, watch)
    # What cannot be audited leaves no folder behind.
    first = next(subjects)
    run = create_run(out, asdict(plan), NAME)
    for subject in chain([first], subjects):
        run.claim_model(subject.name, {"weights_sha256": weight_hash(subject.model)})
        sites = _sites(subject.model, plan.sites)
        watch(Progress(subject.name, 0, len(sites), "gradients"))
        if all(run.has(_part(subject, site)) for site in sites):
            continue
        captured = {name: _rows(subject, name, sites, plan.seed) for name in ("trained", *NULLS)}
        about = Record(model=subject.name, step=subject.step, seed=plan.seed, quantity=LOSS, metric=LOSS)
        losses = [replace(about, variant=name, value=loss) for name, (_, loss) in captured.items()]
        if not run.has(subject.name):
            run.write(subject.name, losses)
        for done, site in enumerate(sites):
            watch(Progress(subject.name, done, len(sites), site.name))
            if not run.has(_part(subject, site)):
                _audit_site(plan, subject, site, {name: rows[site.name] for name, (rows, _) in captured.items()}, run)
        watch(Progress(subject.name, len(sites), len(sites)))
    return run


NULLS = ("untrained", "shuffled labels")


def _rows(subject: Subject, which: str, sites: Sequence[Site], seed: int) -> tuple[dict[str, TokenRows], float]:
    """Return the rows of every site, and the mean loss, of the model or of one of its nulls."""
    model = subject.untrained if which == "untrained" else subject.model
    batches = subject.batches
    if which == "shuffled labels":
        make = torch.Generator().manual_seed(seed)
        batches = [_with_shuffled_labels(batch, make) for batch in batches]
    # Sites are modules of one model, and the twin has its own under the same names.
    own = find_sites(model, [site.name for site in sites])
    objective: Objective = "causal" if subject.kind == "decoder" else "masked"
    return gradients(model, batches, own, objective, subject.exclude)


def _with_shuffled_labels(batch: Mapping[str, Tensor], make: torch.Generator) -> dict[str, Tensor]:
    labels = batch["labels"].clone()
    given = labels != IGNORED
    mixed = torch.randperm(int(given.sum()), generator=make).to(labels.device)
    labels[given] = labels[given][mixed]
    return {**batch, "labels": labels}


def _audit_site(plan: AuditPlan, subject: Subject, site: Site, rows: Mapping[str, TokenRows], run: Run) -> None:
    here = rows["trained"]
    page = audit(
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
    about = Record(model=subject.name, step=subject.step, site=site.name, depth=site.depth, seed=plan.seed)
    checks = [{"name": check.name, "found": check.found, "means": check.means} for check in page.checks]
    run.describe("audits", {_part(subject, site): {"says": page.says, "checks": checks}})
    tested = [] if page.test is None else share_records(about, page.test)
    run.write(_part(subject, site), [*_audit_records(about, page), *tested])


def _audit_records(about: Record, page: Audit) -> Iterator[Record]:
    about = replace(about, quantity=GRADIENT, rank=page.rank, n=page.n_tokens)
    yield replace(about, metric=VERDICT, detail=page.says, value=1.0)
    for check in page.checks:
        for name, estimate in check.estimates.items():
            yield replace(about, variant=name).estimate(derived(AUDITED, check.name), estimate)


def _part(subject: Subject, site: Site) -> str:
    return f"{subject.name} at {site.name}"


def _sites(model: nn.Module, wanted: Sequence[str]) -> list[Site]:
    """Return the sites asked for; by default the residual stream half-way through."""
    if wanted:
        return find_sites(model, wanted)
    stream = find_sites(model, "resid")
    return [stream[len(stream) // 2]]


def _of_run(plan: AuditPlan) -> Iterator[Subject]:
    """Yield the models of a finished demo, as its last checkpoints hold them."""
    run = open_run(plan.target)
    if run.manifest["made_by"] != DEMO.name:
        raise InputError(
            f"{run.path} must be a run that holds its model, as those of `tangentlens demo` do, but does not; name the "
            "model instead, or call tangentlens.audit on rows you captured"
        )
    study = DemoPlan.of(run.manifest["config"])
    tokens = study.tokens()
    if tokens.sha256 != run.manifest["data"]["sha256"]:
        raise InputError(f"{run.path} was made from another text than {study.text} now holds; restore that text")
    n = min(max(plan.tokens // study.length, 4), len(tokens.sequences))
    for kind in study.models:
        model, twin = (study.model(kind, tokens.vocabulary) for _ in range(2))
        checkpoint = Checkpoint(run, f"{kind}-checkpoint")
        step, _ = checkpoint.position()
        if not step:
            raise InputError(f"{run.path} must hold a trained {kind}, but it has not been trained yet; finish the run")
        checkpoint.restore(model, Recipe(study.steps, study.learning_rate))
        sequences, make = draw(tokens.sequences, n, plan.seed, study.steps)
        batches = [batch_for(kind, some, MASK, study.mask_rate, make) for some in sequences.split(_BATCH)]
        earlier = _saved_proxies(run, kind, study.schedule())
        yield Subject(kind, kind, model.eval(), twin.eval(), batches, (), tokens.counts, step, earlier)


def _saved_proxies(run: Run, kind: str, steps: Sequence[int]) -> dict[str, dict[str, Subspace]]:
    """Return the proxies that the lens fitted at each step, by site."""
    proxies: dict[str, dict[str, Subspace]] = {}
    for step in steps:
        kept = run.load_tensors(f"{kind}-step-{step:08d}")
        for name, basis in kept[0].items() if kept else ():
            site, variant = name.rsplit("/", 1)
            if variant == DEFAULT:
                proxies.setdefault(site, {})[f"step {step}"] = Subspace(basis)
    return proxies


def _of_model(plan: AuditPlan, watch: Watch) -> Iterator[Subject]:
    with torch.random.fork_rng():
        # A head that is missing begins at random.
        torch.manual_seed(plan.seed)
        loaded = load_language_model(plan.target, plan.device, plan.trust_remote_code)
        untrained = type(loaded.model)(loaded.config).to(plan.device).eval()
    if loaded.not_loaded and not plan.fit_head:
        raise InputError(
            f"{plan.target} must hold its head for a language-model loss, but {len(loaded.not_loaded)} weights are "
            f"missing, such as {next(iter(loaded.not_loaded))}; --fit-head 200 trains these alone before it is audited"
        )
    batches = _text_batches(plan, loaded, first=0, n_tokens=plan.tokens)
    if loaded.not_loaded:
        _fit_head(plan, loaded, watch)
    # The loss of a masked model is where its masks are.
    exclude = sorted(loaded.special_ids - ({loaded.mask_id} if loaded.kind == "encoder" else set()))
    yield Subject(loaded.name, loaded.kind, loaded.model, untrained, batches, exclude, _counts(batches))


def _counts(batches: Sequence[Mapping[str, Tensor]]) -> Int[Tensor, "vocabulary"]:
    """Return how often each token occurs in the text, masked or not."""
    text = [batch["input_ids"].where(batch["labels"] == IGNORED, batch["labels"]) for batch in batches]
    return torch.cat([tokens.flatten().cpu() for tokens in text]).bincount()


def _text_batches(plan: AuditPlan, loaded: LoadedModel, first: int, n_tokens: int) -> list[dict[str, Tensor]]:
    """Return batches of windows of the text from window `first` on, each between the tokenizer's special tokens."""
    length = loaded.text_length(plan.length)
    wanted = max(n_tokens // length, 4)
    source = windows(Text(Path(plan.text) if plan.text else None), loaded.encode, length, plan.seed)
    chosen = list(islice(source, first, first + wanted))
    if len(chosen) < 4:
        raise InputError(
            f"the text must give at least 4 windows of {length} tokens, but gives {len(chosen)}; use a longer text"
        )
    make = torch.Generator().manual_seed(plan.seed + first)
    batches = []
    for some in torch.stack(chosen).split(_BATCH):
        batch = batch_for(loaded.kind, some, loaded.mask_id, plan.mask_rate, make)
        tokens, labels = loaded.framed(batch["input_ids"]), loaded.beside_specials(batch["labels"], IGNORED)
        batches.append({"input_ids": tokens.to(plan.device), "labels": labels.to(plan.device)})
    return batches


def _fit_head(plan: AuditPlan, loaded: LoadedModel, watch: Watch) -> None:
    """Train only the weights that were missing, on windows of the text that the audit does not use."""
    missing = [weight for name, weight in loaded.model.named_parameters() if name in loaded.not_loaded]
    for weight in loaded.model.parameters():
        weight.requires_grad_(False)
    for weight in missing:
        weight.requires_grad_(True)
    used = max(plan.tokens // plan.length, 4)
    batches = _text_batches(plan, loaded, first=used, n_tokens=plan.fit_head * _BATCH * plan.length)
    optimizer = torch.optim.AdamW(missing, lr=1e-3)
    for number in range(plan.fit_head):
        loss = loaded.model(**batches[number % len(batches)]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        watch(Progress(loaded.name, number + 1, plan.fit_head, f"head, loss {loss.item():.2f}"))
    for weight in loaded.model.parameters():
        weight.requires_grad_(True)


def verdicts(rows: pl.DataFrame) -> Iterator[str]:
    """Say the verdict at each site, and at how many sites gradients prefer their own chart."""
    audited = rows.sort("depth", maintain_order=True)
    for row in audited.filter(metric=VERDICT).iter_rows(named=True):
        yield f"Audit at {row['site']}: the gradients are {VERDICTS[row['detail']]}."
    charts = audited.filter(metric=derived(AUDITED, "charts"), variant="log_ratio")
    if charts.height:
        own, other = (charts.filter(expr).height for expr in (pl.col("ci_low") > 0, pl.col("ci_high") < 0))
        yield (
            f"Gradients prefer the plane of their own chart to those of others at {own} of {charts.height} sites, "
            f"and the others' at {other} (energy; 95% intervals over sequences)."
        )


def audit_tables(records: pl.DataFrame) -> Iterator[Table]:
    """Tabulate every number of the audit, one table per model and site."""
    is_number = pl.col("metric").str.starts_with(f"{AUDITED}/") & (pl.col("metric") != VERDICT)
    rows = records.filter(is_number).sort("run", "model", "depth", maintain_order=True)
    for (model, site), here in rows.group_by(["model", "site"], maintain_order=True):
        frame = here.select(
            "run",
            pl.col("metric").str.strip_prefix(f"{AUDITED}/").alias("check"),
            pl.col("variant").alias("number"),
            text_of(pl.struct("value", "ci_low", "ci_high"), interval_text).alias("estimate"),
            pl.col("ci_over").alias("interval over"),
        )
        yield Table(f"{model} at {site}: every number of the audit", frame)


def _folder(plan: AuditPlan) -> Path:
    return (
        Path(f"{plan.target.rstrip('/')}-audit")
        if is_run(plan.target)
        else Path("runs") / f"audit-{Path(plan.target).name}"
    )


AUDIT = Study(NAME, AuditPlan, run_audit, _folder, Section(tables=(audit_tables,), findings=(verdicts,)))
