"""What is measured of one checkpoint, and between it and an earlier one. All of it may be done on any machine."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.prediction import GRADIENTS_THEN
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.share import ORDERS
from tangentlens.capture.sites import Site, find_sites
from tangentlens.errors import InputError
from tangentlens.geometry.subspace import Subspace
from tangentlens.lens.measures import Fitting, SiteMeasures, measure_site
from tangentlens.lens.prediction import SitePrediction, mean_prediction_records, predict, prediction_records
from tangentlens.lens.records import mean_records, site_records
from tangentlens.lens.settings import check_rank
from tangentlens.models.small import weight_hash
from tangentlens.models.source import Source
from tangentlens.models.tokenizer import load_tokenizer
from tangentlens.proxies import named_proxy
from tangentlens.runs.files import Place
from tangentlens.runs.progress import unwatched
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, open_run
from tangentlens.runs.vocabulary import ACTIVATION, CHECKPOINT, HELD_OUT, LOSS, MEAN_SITE, PROXY
from tangentlens.studies.subjects import Backward, Subject, model_subject, rows_of_sites
from tangentlens.studies.sweep.downloads import forget
from tangentlens.studies.sweep.plan import SweepPlan
from tangentlens.studies.sweep.series import Checkpoint

# Characters on which two tokenizers are compared.
_COMPARED = 20_000


@dataclass(frozen=True)
class Look:
    """One checkpoint that is to be looked at, with all that a machine must know for it.

    Attributes:
        plan: The plan of the sweep.
        model: The name of its series.
        checkpoint: The checkpoint.
        tokenizer: Where the tokenizer of the series is.
        out: The run.
        remove: Whether to remove it from the hub's cache afterwards.
    """

    plan: SweepPlan
    model: str
    checkpoint: Checkpoint
    tokenizer: str
    out: Place
    remove: bool = False

    @property
    def part(self) -> str:
        """The name of its part of the records, and of its file of tensors."""
        return part_of(self.model, self.checkpoint)

    def after(self, earlier: Checkpoint) -> str:
        """Return the name of the part that compares it with an earlier checkpoint."""
        return f"{self.part} after {earlier.label}"

    def subject(self) -> Subject:
        """Load the checkpoint, and return it with the text that it sees."""
        how = Backward.of(self.plan)
        how = replace(how, nulls=False, loading=replace(how.loading, tokenizer=self.tokenizer))
        subject = model_subject(self.checkpoint.spec, how, unwatched)
        check_rank(self.plan.rank, {f"the stream of {self.model}": subject.width})
        return subject

    def about(self) -> Record:
        """Return what all records of the checkpoint have in common."""
        one = self.checkpoint
        return Record(
            model=self.model, revision=one.label, step=one.step, tokens_seen=one.tokens_seen, seed=self.plan.seed
        )

    def fitting(self, subject: Subject) -> Fitting:
        """Return how proxies are fitted and compared."""
        plan, bins = self.plan, FrequencyBins.of(subject.counts)
        orders = tuple(ORDERS)
        return Fitting(plan.proxy, plan.rank, bins, plan.seed, plan.controls, orders, plan.massive, plan.measures)


def part_of(model: str, checkpoint: Checkpoint) -> str:
    """Return the name of the part of a checkpoint."""
    return f"{model} {checkpoint.label}"


def measure_checkpoint(look: Look, earlier: Checkpoint | None) -> None:
    """Measure one checkpoint into the run and, if an earlier one has been measured, what happened in between.

    Args:
        look: The checkpoint.
        earlier: The one before it, if that has been measured already.
    """
    start = time.perf_counter()
    run, subject = open_run(look.out), look.subject()
    _check_finite(subject.model)
    about, then = look.about(), {} if earlier is None else _subspaces(run, part_of(look.model, earlier))
    sites = find_sites(subject.model, look.plan.sites)
    seen = _Seen([], {}, {})
    records = list(_records(look, subject, sites, then, seen))
    loss = next(record.value for record in records if record.metric == LOSS)
    facts = {**_facts(look, subject, sites), "loss": loss, "seconds": round(time.perf_counter() - start, 3)}
    if earlier is not None:
        run.write(look.after(earlier), between(about, earlier, seen.predictions, then, seen.subspaces, look.plan.proxy))
    tensors = {f"{site}/{name}": one.basis for site, of in seen.subspaces.items() for name, one in of.items()}
    run.save_tensors(look.part, tensors, {"facts": json.dumps(facts)})
    # A checkpoint whose records are there is not measured again.
    run.write(look.part, records)
    if look.remove:
        forget(look.checkpoint)


def measure_between(look: Look, earlier: Checkpoint) -> None:
    """Compare a checkpoint that has been measured with an earlier one, where that was not known yet at the time.

    Args:
        look: The checkpoint.
        earlier: The earlier one.
    """
    run, subject = open_run(look.out), look.subject()
    then, now = (_subspaces(run, part_of(look.model, one)) for one in (earlier, look.checkpoint))
    sites, fitting = find_sites(subject.model, look.plan.sites), look.fitting(subject)
    predictions = {
        site.name: predict(rows, _beside(rows, then.get(site.name, {})), look.plan.rank, fitting)
        for site, rows, _ in rows_of_sites(subject, "", sites, look.plan.seed)
        if site.name in now
    }
    run.write(look.after(earlier), between(look.about(), earlier, predictions, then, now, look.plan.proxy))


@dataclass(frozen=True)
class _Seen:
    """What is kept of the sites of a checkpoint.

    Attributes:
        measured: The measures of each site.
        predictions: What earlier subspaces take of its gradients, by site.
        subspaces: What a later checkpoint is compared with, by site.
    """

    measured: list[SiteMeasures]
    predictions: dict[str, SitePrediction]
    subspaces: dict[str, Mapping[str, Subspace]]


def _records(
    look: Look, subject: Subject, sites: Sequence[Site], then: Mapping[str, Mapping[str, Subspace]], seen: _Seen
) -> Iterator[Record]:
    """Yield the records of a checkpoint at all sites, and of their mean; put into `seen` what else is needed."""
    about, fitting = look.about(), look.fitting(subject)
    for number, (site, rows, loss) in enumerate(rows_of_sites(subject, "", sites, look.plan.seed)):
        if number == 0:
            yield replace(about, quantity=LOSS, metric=LOSS, value=loss, detail=HELD_OUT, n=len(rows.tokens))
        here = replace(about, site=site.name, depth=site.depth)
        try:
            measured = measure_site(rows, None, fitting)
        except InputError as error:
            yield here.unmeasured(str(error))
            continue
        seen.measured.append(measured)
        yield from site_records(here, measured, subject.token_name)
        _keep(site, rows, measured, then.get(site.name, {}), fitting, seen)
    if len(seen.measured) == len(sites):
        yield from mean_records(replace(about, site=MEAN_SITE), seen.measured)


def _keep(
    site: Site,
    rows: TokenRows,
    measured: SiteMeasures,
    then: Mapping[str, Subspace],
    fitting: Fitting,
    seen: _Seen,
) -> None:
    """Compare a site with the checkpoint before, and keep what the one after it will be compared with."""
    name, _ = named_proxy(fitting.proxy)
    fitted = {one: measured.subspaces[one] for one in dict.fromkeys((name, "pca")) if one in measured.subspaces}
    if name not in fitted:
        return
    prediction = predict(rows, _beside(rows, then), fitted[name].rank, fitting)
    seen.predictions[site.name] = prediction
    kept = {**fitted, GRADIENTS_THEN: prediction.leading}
    # With the digits that are written, so that it does not matter when two checkpoints are compared.
    seen.subspaces[site.name] = {name: Subspace(one.basis.float().cpu()) for name, one in kept.items()}


def between(
    about: Record,
    earlier: Checkpoint,
    predictions: Mapping[str, SitePrediction],
    then: Mapping[str, Mapping[str, Subspace]],
    now: Mapping[str, Mapping[str, Subspace]],
    proxy: str,
) -> Iterator[Record]:
    """Yield what happened between two checkpoints: later gradients in earlier subspaces, and how subspaces turned.

    Args:
        about: What the records of the later checkpoint have in common.
        earlier: The earlier checkpoint.
        predictions: What its subspaces take of the later gradients, by site.
        then: Its subspaces, by site and name.
        now: Those of the later checkpoint.
        proxy: The name of the proxy.
    """
    yield replace(about, quantity=CHECKPOINT, metric="earlier_step", value=float(earlier.step), detail=earlier.label)
    overlaps: dict[str, list[float]] = {}
    for site, prediction in predictions.items():
        here = replace(about, site=site)
        yield from prediction_records(here, prediction)
        for name in [one for one in then.get(site, {}) if one != GRADIENTS_THEN and one in now[site]]:
            value = then[site][name].overlap(now[site][name])
            overlaps.setdefault(name, []).append(value)
            yield _overlap(here, name, proxy, then[site][name].rank, value)
    about = replace(about, site=MEAN_SITE)
    yield from mean_prediction_records(about, list(predictions.values()))
    for name, values in overlaps.items():
        yield _overlap(about, name, proxy, None, sum(values) / len(values))


def _overlap(about: Record, name: str, proxy: str, rank: int | None, value: float) -> Record:
    detail = PROXY if name == proxy else ""
    return replace(about, quantity=ACTIVATION, metric="overlap", variant=name, rank=rank, value=value, detail=detail)


def _beside(rows: TokenRows, kept: Mapping[str, Subspace]) -> dict[str, Subspace]:
    """Return subspaces that were kept on the device of rows."""
    return {name: Subspace(one.basis.to(rows.gradients.device)) for name, one in kept.items()}


def _subspaces(run: Run, part: str) -> dict[str, dict[str, Subspace]]:
    """Return the subspaces that were kept of a checkpoint, by site and name."""
    kept = run.load_tensors(part)
    subspaces: dict[str, dict[str, Subspace]] = {}
    for key, basis in kept[0].items() if kept else ():
        site, name = key.rsplit("/", 1)
        subspaces.setdefault(site, {})[name] = Subspace(basis)
    return subspaces


def model_facts(subject: Subject) -> dict[str, Any]:
    """Return what all checkpoints of a model have in common."""
    parameters = sum(weight.numel() for weight in subject.model.parameters())
    return {**subject.facts, "kind": subject.kind, "width": subject.width, "parameters": parameters}


def _facts(look: Look, subject: Subject, sites: Sequence[Site]) -> dict[str, Any]:
    """Return what identifies a checkpoint, for the tests of a series as a whole."""
    return {
        **model_facts(subject),
        "label": look.checkpoint.label,
        "step": look.checkpoint.step,
        "weights_sha256": weight_hash(subject.model),
        "tokens_sha256": _tokens_hash(subject.batches),
        "sites": [site.name for site in sites],
        "tokenizer_differs": _tokenizer_differs(look),
    }


def _tokens_hash(batches: Sequence[Mapping[str, Tensor]]) -> str:
    """Return the hash of all tokens that a model sees and has to predict."""
    digest = hashlib.sha256()
    for batch in batches:
        for name in ("input_ids", "labels"):
            digest.update(batch[name].cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _tokenizer_differs(look: Look) -> bool:
    """Return whether a checkpoint has a tokenizer of its own that reads text differently from that of its series."""
    from tangentlens.corpora.text import builtin_text

    trust = look.plan.trust_remote_code
    try:
        own = load_tokenizer(Source.of(look.checkpoint.spec), trust)
    # Many checkpoints have none.
    except Exception:
        return False
    text = builtin_text()[:_COMPARED]
    both = (own, load_tokenizer(Source.of(look.tokenizer), trust))
    one, other = (tokenizer(text, verbose=False)["input_ids"] for tokenizer in both)
    return bool(one != other)


def _check_finite(model: nn.Module) -> None:
    """Raise if a weight is not a finite number."""
    wrong = [name for name, weight in model.named_parameters() if not bool(torch.isfinite(weight).all())]
    if wrong:
        raise InputError(
            f"all weights must be finite, but those of {len(wrong)} matrices are not, such as {wrong[0]}; the "
            "checkpoint is broken, or its training had diverged"
        )
