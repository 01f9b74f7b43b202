"""What makes one run: a plan as data, a function that makes the run, and a section of the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tangentlens.corpora.counts import COUNTS
from tangentlens.errors import InputError
from tangentlens.models.memory import is_out_of_memory
from tangentlens.report.contents import Section
from tangentlens.runs.failed import leaving_no_empty_run
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
        section: What a report says about such runs, beyond what it says about any run.
        smaller: Options that need less memory, as the error says them if memory runs out.
    """

    name: str
    plan: type[Any]
    make: Callable[..., Run]
    folder: Callable[[Any], Path]
    section: Section = field(default_factory=Section)
    smaller: str = "a smaller plan"

    def run(self, plan: Any, out: Path | None = None, watch: Watch = unwatched, given: Any = None) -> Run:
        """Make the run of a plan in `out`, or in its default folder; a run that was interrupted is continued.

        If it fails before anything was measured, no new folder is left.

        Args:
            plan: The plan.
            out: The directory.
            watch: Told the progress.
            given: What else the job takes: for one on a model, what need not be loaded; for a sweep, its machines.
        """
        out = out or self.folder(plan)
        try:
            with leaving_no_empty_run(out, inputs=[COUNTS]):
                return self.make(plan, out, watch, *(() if given is None else (given,)))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise InputError(
                f"{self.name} must fit into memory, but memory ran out ({reason}); what was measured stays in {out}; "
                f"try {self.smaller}, with another --out"
            ) from error
