"""How a training that continues from a checkpoint continues its run: the count of tokens, and steps it overtakes."""

from __future__ import annotations

import re
import warnings

import polars as pl

from tangentlens.lens.passes import Passes
from tangentlens.runs.run import Run

# From here to the line that opens the lens.
_TO_THE_LOOP = 3


def part_name(model: str, step: int) -> str:
    """Return the name of what a lens writes for a step."""
    return f"{model}-step-{step:08d}"


def resume(run: Run, passes: Passes, model: str, step: int) -> None:
    """Move steps that the training overtakes out of the run, and count tokens on from the run's records.

    Args:
        run: The run.
        passes: What counts the tokens; a count that it was given is not changed.
        model: The name of the model in the run.
        step: The step that the training continues with.
    """
    _abandon_later_steps(run, model, step)
    if passes.before is None:
        passes.before, unknown = tokens_before(run, model, step)
        if unknown:
            warnings.warn(
                f"the training continues at step {step}, but {unknown}; pass tokens_seen=, or what state_dict() "
                "returned to load_state_dict()",
                stacklevel=_TO_THE_LOOP,
            )


def tokens_before(run: Run, model: str, step: int) -> tuple[int, str]:
    """Return the number of tokens seen before a step, as the run has it, and what is not known of it, if anything."""
    records = run.records.filter(pl.col("model") == model, pl.col("step") < step)
    if records.is_empty():
        return 0, "the run has no step before it, so that tokens are counted from 0"
    last, tokens = records.sort("step").select("step", "tokens_seen").row(-1)
    gap = "" if last == step - 1 else f"tokens are counted on from step {last}, without those of the steps in between"
    return tokens, gap


def _abandon_later_steps(run: Run, model: str, step: int) -> None:
    name = re.compile(rf"{re.escape(model)}-step-(\d{{8,}})")
    measured = {int(match[1]): part for part in run.names if (match := name.fullmatch(part))}
    later = sorted(number for number in measured if number >= step)
    if later:
        folder = run.abandon([measured[number] for number in later])
        warnings.warn(
            f"the training of {model} continues at step {step}, but the run goes up to step {later[-1]} already; its "
            f"steps from {later[0]} on ({len(later)}) are in {folder} now",
            stacklevel=_TO_THE_LOOP + 1,
        )
