"""A study as data: which jobs to do, at which scale, and which claims their records judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from tangentlens.engine import Machines, Task
from tangentlens.errors import InputError, check_name
from tangentlens.models.device import AUTO
from tangentlens.report.contents import Section
from tangentlens.runs.files import Place
from tangentlens.runs.progress import Progress, Watch, unwatched
from tangentlens.runs.remote import Remote
from tangentlens.runs.run import Run, open_run
from tangentlens.studies.job import Job


@dataclass(frozen=True)
class Part:
    """One job of a study.

    Attributes:
        folder: The folder of its run inside that of the study; empty for the study's own.
        job: The job.
        plan: Its plan.
    """

    folder: str
    job: Job
    plan: Any


@dataclass(frozen=True)
class Inputs:
    """What a study is given.

    Attributes:
        out: The folder of the study; `as_place` makes one of a URL.
        text: A text file; None for what the study uses by itself.
        models: Models to look at, for studies of finished models.
        device: Where to compute; `auto` is the accelerator of this machine, or the CPU without one.
        tokenizer: A directory or hub id of the tokenizer of these models; None for their own.
    """

    out: Place
    text: str | None = None
    models: tuple[str, ...] = ()
    device: str = AUTO
    tokenizer: str | None = None


@dataclass(frozen=True)
class Study:
    """A study.

    Attributes:
        name: Its name.
        about: What it does, in a sentence.
        claims: The claims it judges, by their numbers in the ledger.
        costs: What each scale costs, by the name of the scale.
        parts: Returns the jobs of a scale.
        takes_models: Whether it looks at models that it is given; others train their own.
        sections: What its report says; empty for all that a report can say. A study of very many networks says what
            they have in common.
    """

    name: str
    about: str
    claims: tuple[str, ...]
    costs: Mapping[str, str]
    parts: Callable[[str, Inputs], Sequence[Part]]
    takes_models: bool = False
    sections: tuple[Section, ...] = ()

    def run(self, scale: str, inputs: Inputs, watch: Watch = unwatched, machines: Machines | None = None) -> list[Run]:
        """Do every job of a scale, one part after the other; what was done before is not done again.

        Args:
            scale: The scale.
            inputs: What the study is given.
            watch: Told the progress.
            machines: Where to do it; by default in this process. On several machines, all models of successive parts
                with the same job are made side by side: a part may need what a part before it with another job made.
        """
        check_name("a scale", scale, self.costs)
        if inputs.models and not self.takes_models:
            raise InputError(
                f"{self.name} must be given no models, because it trains its own, but got {inputs.models[0]}"
            )
        parts = self.parts(scale, inputs)
        if machines is not None and isinstance(inputs.out, Remote):
            raise InputError(
                "a study on several machines must be written to a folder that all of them see, because each adds to "
                f"one manifest under its lock, but {inputs.out} is a URL, which has no locks; name a folder, or use "
                "one machine"
            )
        if machines is not None:
            alike = [list(group) for _, group in groupby(parts, key=lambda part: part.job.name)]
            return [run for group in alike for run in _made_apart(group, inputs.out, watch, machines)]
        return [part.job.run(part.plan, inputs.out / part.folder, partial(_told, watch, part.folder)) for part in parts]


def _made_apart(parts: Sequence[Part], out: Place, watch: Watch, machines: Machines) -> list[Run]:
    """Make the runs of parts, all of their models side by side; raise if some fail, after all others were made."""
    tasks = [task for part in parts for task in part.job.tasks(part.plan, out / part.folder, machines.needs)]
    name = parts[0].job.name if len(parts) > 1 else parts[0].folder or out.name
    failures: dict[str, str] = {}
    done = 0

    def ended(task: Task, failure: str) -> None:
        nonlocal done
        done += 1
        if failure:
            failures[task.key] = failure
        watch(Progress(name, done, len(tasks), f"{task.key} {'failed' if failure else 'done'}"))

    watch(Progress(name, 0, len(tasks)))
    machines.engine.run(tasks, ended)
    if failures:
        told = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        raise InputError(f"every model of a study must be made, but {len(failures)} of {len(tasks)} failed: {told}")
    return [open_run(out / part.folder) for part in parts]


def _told(watch: Watch, folder: str, progress: Progress) -> None:
    """Tell the progress of a part under its name; a model that the folder is named after is told once."""
    job, _, model = folder.partition("-")
    name = job if model and progress.task.startswith(model) else folder
    watch(progress._replace(task=f"{name}: {progress.task}") if name else progress)
