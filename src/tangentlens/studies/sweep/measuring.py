"""What is measured of one checkpoint, and between it and an earlier one. All of it may be done on any machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.prediction import GRADIENTS_THEN
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.share import ORDERS
from tangentlens.capture.device import Devices
from tangentlens.capture.sites import Site, find_sites
from tangentlens.engine.side_by_side import side_by_side
from tangentlens.errors import InputError
from tangentlens.geometry.subspace import Subspace
from tangentlens.lens.measures import Fitting, measure_site
from tangentlens.lens.prediction import predict
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
from tangentlens.runs.vocabulary import HELD_OUT, LOSS, MEAN_SITE
from tangentlens.studies.subjects import Backward, Subject, model_subject, rows_of_sites
from tangentlens.studies.sweep.between import between, site_between
from tangentlens.studies.sweep.downloads import forget
from tangentlens.studies.sweep.kept_sites import KeptSite, keep_site, kept_site
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
        sites: The names of all sites of its series.
        group: Those of them that are to be measured here; others have been, or are elsewhere.
    """

    plan: SweepPlan
    model: str
    checkpoint: Checkpoint
    tokenizer: str
    out: Place
    remove: bool = False
    sites: tuple[str, ...] = ()
    group: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        """The name of its part of the records, and of its file of tensors."""
        return part_of(self.model, self.checkpoint)

    @property
    def where(self) -> str:
        """The sites of the group in words; empty if they are all sites, or none."""
        if not self.group or self.group == self.sites:
            return ""
        return " to ".join(dict.fromkeys((self.group[0], self.group[-1])))

    def at(self, site: str) -> str:
        """Return the name under which one of its sites is kept."""
        return f"{self.part} at {site}"

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
    """Measure a group of sites of one checkpoint; once all of its sites are measured, the checkpoint enters the run.

    Args:
        look: The checkpoint, and the group of its sites.
        earlier: The checkpoint before it, if that has been measured already.
    """
    run = open_run(look.out)
    if look.group:
        _measure_group(look, run, earlier)
    kept = [kept_site(run, look.at(site)) for site in look.sites]
    sites = [one for one in kept if one is not None]
    # A group looks for the others after its own sites are kept, so that the last one finds all. Two that end at once
    # may both do so, and write the same numbers; or one finds that the other has completed it.
    if len(sites) == len(look.sites):
        _complete(look, run, earlier, sites)


def measure_between(look: Look, earlier: Checkpoint) -> None:
    """Compare a checkpoint that has been measured with an earlier one, where that was not known yet at the time.

    Args:
        look: The checkpoint.
        earlier: The earlier one.
    """
    run, subject = open_run(look.out), look.subject()
    then, now = (_subspaces(run, part_of(look.model, one)) for one in (earlier, look.checkpoint))
    sites, fitting, about = find_sites(subject.model, look.sites), look.fitting(subject), look.about()
    compared = []
    for site, rows, _ in rows_of_sites(subject, "", sites, look.plan.seed):
        if site.name in now:
            before = then.get(site.name, {})
            prediction = predict(rows, _beside(rows, before), look.plan.rank, fitting)
            here = replace(about, site=site.name)
            compared.append(site_between(here, prediction, before, now[site.name], look.plan.proxy))
    run.write(look.after(earlier), between(about, earlier, compared))


def _measure_group(look: Look, run: Run, earlier: Checkpoint | None) -> None:
    """Measure the sites of a group, and keep each as it is measured."""
    subject = look.subject()
    _check_finite(subject.model)
    then = {} if earlier is None else _subspaces(run, part_of(look.model, earlier))
    sites, fitting = find_sites(subject.model, look.group), look.fitting(subject)

    def works() -> Iterator[list[Callable[[], None]]]:
        for site, rows, loss in rows_of_sites(subject, "", sites, look.plan.seed):
            facts = {}
            if site.name == look.sites[0]:
                facts = {**_facts(look, subject), "loss": loss, "loss_tokens": len(rows.tokens)}
            yield [partial(keep, site, rows, facts)]

    def keep(site: Site, rows: TokenRows, facts: dict[str, Any]) -> None:
        kept = _measured(look, subject, site, rows, then.get(site.name, {}), fitting)
        label = "" if earlier is None else earlier.label
        keep_site(run, look.at(site.name), replace(kept, earlier=label, facts=facts))

    for _ in side_by_side(works(), Devices.of(subject.model).measure):
        pass


def _measured(
    look: Look, subject: Subject, site: Site, rows: TokenRows, then: Mapping[str, Subspace], fitting: Fitting
) -> KeptSite:
    """Return what is measured at a site, and how it compares with the subspaces of the checkpoint before."""
    here = replace(look.about(), site=site.name)
    in_depth = replace(here, depth=site.depth)
    try:
        measured = measure_site(rows, None, fitting)
    except InputError as error:
        return KeptSite([in_depth.unmeasured(str(error))])
    kept = KeptSite(list(site_records(in_depth, measured, subject.token_name)), measured)
    name, _ = named_proxy(fitting.proxy)
    fitted = {one: measured.subspaces[one] for one in dict.fromkeys((name, "pca")) if one in measured.subspaces}
    if name not in fitted:
        return kept
    prediction = predict(rows, _beside(rows, then), fitted[name].rank, fitting)
    spaces = {**fitted, GRADIENTS_THEN: prediction.leading}
    # With the digits that are written, so that it does not matter when two checkpoints are compared.
    now = {name: Subspace(one.basis.float().cpu()) for name, one in spaces.items()}
    return replace(kept, subspaces=now, between=site_between(here, prediction, then, now, look.plan.proxy))


def _complete(look: Look, run: Run, earlier: Checkpoint | None, sites: Sequence[KeptSite]) -> None:
    """Write a checkpoint into the run, from what was kept of all of its sites."""
    about, facts = look.about(), sites[0].facts
    # Sites that a command which was interrupted compared with another checkpoint are compared later.
    if earlier is not None and all(site.earlier == earlier.label for site in sites):
        compared = [site.between for site in sites if site.between is not None]
        run.write(look.after(earlier), between(about, earlier, compared))
    loss = replace(about, quantity=LOSS, metric=LOSS, value=facts["loss"], detail=HELD_OUT, n=facts["loss_tokens"])
    records = [loss, *(record for site in sites for record in site.records)]
    measured = [site.measured for site in sites if site.measured is not None]
    if len(measured) == len(sites):
        records += mean_records(replace(about, site=MEAN_SITE), measured)
    bases = {
        f"{name}/{variant}": one.basis
        for name, site in zip(look.sites, sites, strict=True)
        for variant, one in site.subspaces.items()
    }
    run.save_tensors(look.part, bases, {"facts": json.dumps(facts)})
    # A checkpoint whose records are there is not measured again.
    run.write(look.part, records)
    for name in look.sites:
        run.remove_tensors(look.at(name))
    if look.remove:
        forget(look.checkpoint)


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


def _facts(look: Look, subject: Subject) -> dict[str, Any]:
    """Return what identifies a checkpoint, for the tests of a series as a whole."""
    return {
        **model_facts(subject),
        "label": look.checkpoint.label,
        "step": look.checkpoint.step,
        "weights_sha256": weight_hash(subject.model),
        "tokens_sha256": _tokens_hash(subject.batches),
        "sites": list(look.sites),
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
