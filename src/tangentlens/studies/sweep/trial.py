"""A first look at a series, before anything is measured: whether it can be measured at all, and what that will cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tangentlens.capture.sites import find_sites
from tangentlens.errors import InputError
from tangentlens.lens.measures import measure_site
from tangentlens.models.source import Source
from tangentlens.models.tokenizer import has_tokenizer
from tangentlens.studies.subjects import Subject, held_bytes, rows_of_sites
from tangentlens.studies.sweep.measuring import Look, model_facts
from tangentlens.studies.sweep.plan import SweepPlan
from tangentlens.studies.sweep.queue import split
from tangentlens.studies.sweep.series import Series

# Of a series, so many checkpoints may fail to load before all are taken to.
_TRIED = 3


@dataclass(frozen=True)
class Cost:
    """What one checkpoint takes.

    Attributes:
        seconds: The time, without downloads, on this machine, one task after the other.
        memory: Bytes of memory for each task: weights, rows that are held, and logits.
        disk: Bytes of results.
    """

    seconds: float
    memory: int
    disk: int


def tokenizer_of(plan: SweepPlan, series: Series) -> str:
    """Return where the tokenizer of a series is: the one that is named, or that of the first checkpoint which has one.

    Many checkpoints of trainings have none, and then it may be beside them.
    """
    if plan.tokenizer is not None:
        return plan.tokenizer
    first = series.checkpoints[0].spec
    if not Path(first).is_dir():
        return first
    places = [checkpoint.spec for checkpoint in series.checkpoints]
    beside = str(Path(first).absolute().parent)
    return next((place for place in [*places, beside] if has_tokenizer(Source(place))), first)


def check_alike(series: Series) -> None:
    """Raise if checkpoints of one series that are on this machine differ in their width or depth."""
    from transformers import AutoConfig

    shapes: dict[tuple[int, int], str] = {}
    for checkpoint in series.checkpoints:
        if Path(checkpoint.spec).is_dir():
            try:
                config = AutoConfig.from_pretrained(checkpoint.spec).get_text_config()
            # What cannot be read is told when its turn comes, and does not keep others from being measured.
            except Exception:
                continue
            shapes.setdefault((config.hidden_size, config.num_hidden_layers), checkpoint.label)
    if len(shapes) > 1:
        (one, first), (other, second) = list(shapes.items())[:2]
        raise InputError(
            f"checkpoints of {series.name} must be of one model, but {first} has {one[1]} blocks of width {one[0]} and "
            f"{second} {other[1]} of width {other[0]}; sweep them one by one"
        )


def try_out(plan: SweepPlan, series: Series) -> Mapping[str, Any]:
    """Load one checkpoint of a series, and return what is known of its model; raise if none can be measured.

    Args:
        plan: The plan.
        series: The series.
    """
    check_alike(series)
    subject = _first_that_loads(plan, series)[1]
    sites = [site.name for site in find_sites(subject.model, plan.sites)]
    return {**model_facts(subject), "checkpoints": len(series.checkpoints), "sites": sites}


def expected_cost(plan: SweepPlan, series: Series, site_groups: int) -> Cost:
    """Return what a checkpoint will take, from all gradients of one and the measures of one site.

    Args:
        plan: The plan.
        series: The series.
        site_groups: Into how many tasks the sites of a checkpoint are split.
    """
    check_alike(series)
    start = time.perf_counter()
    look, subject = _first_that_loads(plan, series)
    sites = find_sites(subject.model, plan.sites)
    _, rows, _ = next(rows_of_sites(subject, "", sites[len(sites) // 2 :][:1], plan.seed))
    shared = time.perf_counter() - start
    # The first time takes longer, because libraries begin to work.
    one_site = min(_seconds(lambda: measure_site(rows, None, look.fitting(subject))) for _ in range(2))
    weights = sum(weight.nbytes for weight in subject.model.parameters())
    logits = 3 * 4 * subject.batches[0]["input_ids"].numel() * len(subject.counts)
    # A basis of three subspaces, and some thousand records, for each site.
    disk = len(sites) * (3 * 4 * plan.rank * subject.width + 2**17)
    groups = split([site.name for site in sites], site_groups)
    # Each group loads the model and runs it.
    seconds = len(groups) * shared + len(sites) * one_site
    return Cost(seconds, weights + held_bytes(subject, len(groups[-1])) + logits, disk)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _first_that_loads(plan: SweepPlan, series: Series) -> tuple[Look, Subject]:
    """Return the first checkpoint that can be loaded and has the sites."""
    tokenizer = tokenizer_of(plan, series)
    errors: list[InputError] = []
    for checkpoint in series.checkpoints[:_TRIED]:
        look = Look(plan, series.name, checkpoint, tokenizer, Path())
        try:
            subject = look.subject()
            find_sites(subject.model, plan.sites)
        except InputError as error:
            errors.append(error)
        else:
            return look, subject
    raise errors[0]
