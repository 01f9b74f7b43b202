"""How a sweep is made: what is missing is measured, here or on a cluster; what failed is named and tried again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from tangentlens.engine import Here, Machines, Task
from tangentlens.errors import InputError
from tangentlens.runs.files import Place, as_place
from tangentlens.runs.progress import Progress, Watch, unwatched
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, create_run, is_run, open_run
from tangentlens.runs.vocabulary import CHECKPOINT
from tangentlens.studies.in_hand import NOTHING
from tangentlens.studies.sweep.auditing import audit_checkpoint, is_audited
from tangentlens.studies.sweep.downloads import Ahead, is_here
from tangentlens.studies.sweep.integrity import KnownFacts, flag_records
from tangentlens.studies.sweep.kept_sites import is_kept
from tangentlens.studies.sweep.measuring import Look, measure_between, measure_checkpoint, part_of
from tangentlens.studies.sweep.plan import NAME, SweepPlan
from tangentlens.studies.sweep.queue import Queue, split
from tangentlens.studies.sweep.series import Checkpoint, Series
from tangentlens.studies.sweep.trial import tokenizer_of, try_out

# Parts of the records that are about a sweep as a whole.
_FAILED, _FLAGGED = "failed checkpoints", "flagged checkpoints"


def run_sweep(plan: SweepPlan, out: str | Place, watch: Watch = unwatched, machines: Machines | None = None) -> Run:
    """Measure every checkpoint into the run directory `out`; an interrupted sweep is continued.

    Args:
        plan: The plan.
        out: The run directory, or a URL such as `s3://bucket/run`.
        watch: Told the progress.
        machines: Where to do it; by default in this process.
    """
    all_series, out = plan.series(), as_place(out)
    begun = open_run(out) if is_run(out) else None
    # What cannot be measured is told before there is a folder.
    facts = {one.name: (begun and _known_model(begun, one)) or try_out(plan, one) for one in all_series}
    run = create_run(out, asdict(plan), NAME)
    run.claim_data(plan.text, NOTHING.text_of(plan.text).identity)
    run.describe("models", facts)
    _Sweep(plan, run, all_series, watch, machines or Machines()).make()
    return run


def _known_model(run: Run, series: Series) -> Mapping[str, Any] | None:
    """Return what a run that was begun knows of a model; None if nothing, or not its sites."""
    known = run.manifest.get("models", {}).get(series.name)
    if known is None or "sites" in known:
        return known
    # Earlier versions told the sites with each checkpoint alone.
    return next(({**known, "sites": one["sites"]} for one in KnownFacts(run).of(series)), None)


class _Sweep:
    """A sweep that is being made."""

    def __init__(self, plan: SweepPlan, run: Run, series: Sequence[Series], watch: Watch, machines: Machines) -> None:
        self.plan, self.run, self.watch, self.machines = plan, run, watch, machines
        self.series = {one.name: one for one in series}
        self.tokenizers = {one.name: tokenizer_of(plan, one) for one in series}
        models = run.manifest["models"]
        self.sites = {one.name: tuple(models[one.name]["sites"]) for one in series}
        self.looks: dict[str, Look] = {}
        self.open_groups: Counter[str] = Counter()
        self.queues = {name: Queue(one.checkpoints, done=self._done(one)) for name, one in self.series.items()}
        # By model and checkpoint: each reason, with what it kept from being measured.
        self.failures: dict[tuple[str, str], dict[str, list[str]]] = {}
        self.facts = KnownFacts(run)
        self.ahead = Ahead()
        removable = [one for of in series for one in of.checkpoints] if not machines.keep_downloads else []
        self.removed = {one.spec for one in removable if not is_here(one)}
        self.started, self.measured = time.monotonic(), 0

    def _done(self, series: Series) -> set[str]:
        written = self.run.parts
        return {one.label for one in series.checkpoints if part_of(series.name, one) in written}

    def _look(self, model: str, checkpoint: Checkpoint) -> Look:
        remove = checkpoint.spec in self.removed
        return Look(self.plan, model, checkpoint, self.tokenizers[model], self.run.path, remove, self.sites[model])

    def make(self) -> None:
        """Measure what is missing, then compare what could not be compared at the time."""
        self._tell("")
        try:
            self.machines.engine.run(self._checkpoints(), self._ended)
            self.machines.engine.run(self._comparisons(), self._compared)
            if self.plan.audit:
                self.machines.engine.run(self._audits(), self._compared)
        finally:
            self.ahead.close()
        self._drop_outdated()
        self._note_troubles()
        self._note_weights()
        if not any(queue.done for queue in self.queues.values()):
            model, label = next(iter(self.failures))
            raise InputError(
                f"a sweep must have a checkpoint that can be measured, but none of {self.total} can; {model} {label}: "
                f"{self._why(model, label)}"
            )

    @property
    def total(self) -> int:
        """The number of all checkpoints."""
        return sum(len(series.checkpoints) for series in self.series.values())

    def _checkpoints(self) -> Iterator[Task]:
        """Yield the tasks of each checkpoint that is missing; each is chosen when there is room for it."""
        for model, queue in self.queues.items():
            while (checkpoint := queue.begin()) is not None:
                look, earlier = self._look(model, checkpoint), queue.before(checkpoint)
                self.ahead.wait()
                following = queue.following(checkpoint)
                # On a cluster, whoever measures a checkpoint downloads it.
                if following is not None and isinstance(self.machines.engine, Here):
                    self.ahead.begin(following)
                yield from self._groups(look, earlier)

    def _groups(self, look: Look, earlier: Checkpoint | None) -> Iterator[Task]:
        """Yield a task for each group of the sites of a checkpoint that are missing."""
        missing = [site for site in look.sites if not is_kept(self.run, look.at(site))]
        groups = split(missing, self.machines.site_groups)
        self.open_groups[look.part] = len(groups)
        for group in groups:
            one = replace(look, group=group)
            key = f"{look.part} at {one.where}" if one.where else look.part
            yield self._task(key, one, partial(measure_checkpoint, one, earlier))

    def _task(self, key: str, look: Look, work: Callable[[], None]) -> Task:
        self.looks[key] = look
        return Task(key, work, self.machines.needs)

    def _ended(self, task: Task, failure: str) -> None:
        look = self.looks[task.key]
        self.open_groups[look.part] -= 1
        if failure:
            self._note_failure(look, look.where, failure)
        if not self.open_groups[look.part]:
            self.queues[look.model].end(look.checkpoint, self._why(look.model, look.checkpoint.label))
            self.measured += 1
            self._note_troubles()
        where = f" {look.where}" if look.where else ""
        self._tell(f"{look.checkpoint.label}{where} {'failed' if failure else 'done'}")

    def _note_failure(self, look: Look, what: str, reason: str) -> None:
        """Note why a checkpoint, or what of it, could not be measured."""
        self.failures.setdefault((look.model, look.checkpoint.label), {}).setdefault(reason, []).append(what)

    def _why(self, model: str, label: str) -> str:
        """Return why a checkpoint failed, or what of it; empty if nothing did."""
        reasons = self.failures.get((model, label), {})
        return "; ".join(f"{' and '.join(what)}: {why}" if any(what) else why for why, what in reasons.items())

    def _comparisons(self) -> Iterator[Task]:
        """Yield a task for each checkpoint that has not been compared with the one before it that was measured."""
        written = self.run.parts
        for model, queue in self.queues.items():
            for checkpoint in queue.checkpoints:
                look, earlier = self._look(model, checkpoint), queue.before(checkpoint)
                if checkpoint.label in queue.done and earlier is not None and look.after(earlier) not in written:
                    yield self._task(look.after(earlier), look, partial(measure_between, look, earlier))

    def _drop_outdated(self) -> None:
        """Move comparisons out of the run between which a checkpoint lies that could be measured only now."""
        written = self.run.parts
        for model, queue in self.queues.items():
            for checkpoint in queue.checkpoints:
                look, right = self._look(model, checkpoint), queue.before(checkpoint)
                others = [look.after(one) for one in queue.checkpoints if one != right]
                outdated = [part for part in others if part in written]
                if right is not None and outdated and look.after(right) in written:
                    self.run.abandon(outdated)

    def _audits(self) -> Iterator[Task]:
        """Yield a task for each checkpoint that has not been audited."""
        for model, queue in self.queues.items():
            for checkpoint in (one for one in queue.checkpoints if one.label in queue.done):
                look = self._look(model, checkpoint)
                if not is_audited(look):
                    yield self._task(f"audit of {look.part}", look, partial(audit_checkpoint, look))

    def _compared(self, task: Task, failure: str) -> None:
        if failure:
            self._note_failure(self.looks[task.key], task.key, failure)
        self._tell(task.key)

    def _tell(self, note: str) -> None:
        done = sum(len(queue.done | queue.failed) for queue in self.queues.values())
        said = [note] if note else []
        if self.failures:
            said.append(f"{len(self.failures)} failed")
        if self.measured:
            left = (time.monotonic() - self.started) / self.measured * (self.total - done)
            said.append(f"about {left / 60:.0f} min left" if left > 90 else f"about {left:.0f} s left")
        readable = self.run.path if self.measured else None
        self.watch(Progress(NAME, done, self.total, "; ".join(said), readable=readable))

    def _note_weights(self) -> None:
        """Write which weights each model ends with: by these a ledger of claims knows it in other runs."""
        for series in self.series.values():
            facts = self.facts.of(series)
            if facts:
                known = self.run.manifest["models"][series.name]
                self.run.describe("models", {series.name: known | {"weights_sha256": facts[-1]["weights_sha256"]}})

    def _note_troubles(self) -> None:
        """Write which checkpoints failed, and which are suspicious, in place of what was known before."""
        failed: list[Record] = []
        flagged: list[Record] = []
        for series in self.series.values():
            about = Record(model=series.name, quantity=CHECKPOINT, seed=self.plan.seed)
            steps = {one.label: one.step for one in series.checkpoints}
            for model, label in self.failures:
                if model == series.name:
                    failed.append(replace(about, revision=label, step=steps[label]).unmeasured(self._why(model, label)))
            flagged += flag_records(about, self.facts.of(series))
        # As long as nothing is measured, the run may be overwritten by one with another configuration.
        if any(queue.done for queue in self.queues.values()):
            self.run.write(_FAILED, failed)
            self.run.write(_FLAGGED, flagged)
