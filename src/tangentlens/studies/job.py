"""What makes one run: a plan as data, a function that makes the run, and a section of the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tangentlens.corpora.counts import COUNTS
from tangentlens.engine import Needs, Task
from tangentlens.errors import InputError
from tangentlens.models.memory import is_out_of_memory
from tangentlens.report.contents import Section
from tangentlens.runs.failed import leaving_no_empty_run
from tangentlens.runs.files import Place, as_place, check_reachable
from tangentlens.runs.progress import Watch, unwatched
from tangentlens.runs.run import Run


@dataclass(frozen=True)
class Job:
    """What a command does, and what studies are made of.

    Attributes:
        name: Its name, that of its command, and `made_by` in the manifest of its runs.
        plan: A frozen dataclass that holds everything which decides the numbers.
        make: Takes a plan, a directory, somebody to tell the progress to and, if it takes any, what else is given. It
            makes the run, or continues it.
        folder: The default directory for a plan.
        section: What a report says about such runs, beyond what it says about any run, if anything.
        smaller: Options that need less memory, as the error says them if memory runs out.
        apart: Returns the names of models that can be made apart from each other, by processes of their own.
        make_one: Takes a plan, a directory and one of these names. It makes that part of the run, or continues it.
    """

    name: str
    plan: type[Any]
    make: Callable[..., Run]
    folder: Callable[[Any], Place]
    section: Section | None = None
    smaller: str = "a smaller plan"
    apart: Callable[[Any], Sequence[str]] = lambda plan: ()
    make_one: Callable[[Any, Place, str], Run] | None = None

    def run(self, plan: Any, out: str | Place | None = None, watch: Watch = unwatched, given: Any = None) -> Run:
        """Make the run of a plan in `out`, or in its default folder; a run that was interrupted is continued.

        If it fails before anything was measured, no new folder is left.

        Args:
            plan: The plan.
            out: The directory, or a URL such as `s3://bucket/run`.
            watch: Told the progress.
            given: What else the job takes: for one on a model, what need not be loaded; for a sweep, its machines.
        """
        out = self.folder(plan) if out is None else as_place(out)
        # Before a model is loaded: the results of hours must have somewhere to go.
        check_reachable(out)
        try:
            start = time.perf_counter()
            with leaving_no_empty_run(out, inputs=[COUNTS]):
                run = self.make(plan, out, watch, *(() if given is None else (given,)))
            known = run.manifest.get("cost", {}).get(self.name, {}).get("seconds", 0)
            run.describe("cost", {self.name: {"seconds": round(known + time.perf_counter() - start, 3)}})
            return run
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise InputError(
                f"{self.name} must fit into memory, but memory ran out ({reason}); what was measured stays in {out}; "
                f"try {self.smaller}, with another out"
            ) from error

    def tasks(self, plan: Any, out: Place, needs: Needs) -> list[Task]:
        """Return the tasks that make the run of a plan: one for each model that can be made apart, or a single one.

        Args:
            plan: The plan.
            out: The directory.
            needs: What each of them needs.
        """
        out = out.absolute()
        if self.make_one is None or not self.apart(plan):
            return [Task(out.name, partial(_made, self, plan, out), needs)]
        return [Task(f"{out.name}: {name}", partial(_made, self, plan, out, name), needs) for name in self.apart(plan)]


def _made(job: Job, plan: Any, out: Place, name: str | None = None) -> None:
    """Make a run, or the part of it that is about one model."""
    if name is None or job.make_one is None:
        job.run(plan, out)
    else:
        job.make_one(plan, out, name)
