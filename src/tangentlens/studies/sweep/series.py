"""What a sweep looks at: series of checkpoints, each of one model in the order of its training."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tangentlens.errors import InputError
from tangentlens.models.source import Source
from tangentlens.studies.sweep.presets import SweepModel
from tangentlens.studies.sweep.revisions import hub_revisions, step_of, tokens_of, wanted_revisions


@dataclass(frozen=True)
class Checkpoint:
    """A model at one step of its training.

    Attributes:
        spec: Where it is: a directory or `id@revision`.
        label: What it is called in its series: the revision, or the name of the directory.
        step: The training step.
        tokens_seen: The number of tokens that the model had been trained on; 0 if that is not known.
    """

    spec: str
    label: str
    step: int
    tokens_seen: int = 0


@dataclass(frozen=True)
class Series:
    """The checkpoints of one model.

    Attributes:
        name: The model's name in the records.
        checkpoints: Its checkpoints, by step.
    """

    name: str
    checkpoints: tuple[Checkpoint, ...]


def find_series(models: Sequence[str], revisions: str | None, preset: Iterable[SweepModel] = ()) -> list[Series]:
    """Return the series that are asked for.

    Args:
        models: Hub ids, whose `revisions` are a series each; folders of checkpoints, a series each; or directories with
            a checkpoint each, which together are one series.
        revisions: The revisions of models on the hub, as `wanted_revisions` takes them.
        preset: Further models on the hub, with revisions of their own.
    """
    folders = [model for model in models if Path(model).is_dir()]
    single = [folder for folder in folders if not _inside(folder) and (Path(folder) / "config.json").is_file()]
    series = [_of_folder(folder) for folder in folders if folder not in single]
    if single:
        parent = Path(os.path.commonpath([Path(folder).absolute().parent for folder in single]))
        series.append(_made(parent.name or "model", [(folder, Path(folder).absolute().name) for folder in single]))
    if folders and revisions is not None and len(folders) == len(models):
        raise InputError(f"revisions must be of a model on the hub, but {folders[0]} is a folder; leave them out")
    series += [_on_hub(model, revisions) for model in models if model not in folders]
    series += [_on_hub(model.hub_id, revisions or model.revisions, model.tokens_per_step) for model in preset]
    if not series:
        raise InputError("a sweep must have a model to look at, but none was named; name one, or a preset")
    twice = [name for name, times in Counter(one.name for one in series).items() if times > 1]
    if twice:
        raise InputError(f"models of a sweep must have names of their own, but {twice[0]!r} is that of several")
    return series


def _on_hub(model: str, revisions: str | None, tokens_per_step: int = 0) -> Series:
    source = Source.of(model)
    asked = source.revision or revisions
    if asked is None:
        raise InputError(
            f"a model on the hub must come with the revisions to look at, but {model!r} has none; add revisions=all, "
            "or for example revisions=step1000..step9000:1000"
        )
    names = wanted_revisions(asked, lambda: hub_revisions(source.place))
    return _made(source.place, [(f"{source.place}@{name}", name) for name in names], tokens_per_step)


def _inside(folder: str) -> list[Path]:
    """Return the directories inside a folder that hold a model."""
    return [path.parent for path in sorted(Path(folder).glob("*/config.json"))]


def _of_folder(folder: str) -> Series:
    inside = _inside(folder)
    if not inside:
        raise InputError(
            f"{folder} must hold checkpoints, as checkpoint-100 and checkpoint-200 with a config.json each, but holds "
            "none; name a folder of a Trainer, or the directories of the checkpoints themselves"
        )
    return _made(Path(folder).absolute().name, [(str(path), path.name) for path in inside])


def _made(name: str, places: Sequence[tuple[str, str]], tokens_per_step: int = 0) -> Series:
    """Return a series of checkpoints, given where they are and what they are called, in the order of their steps."""
    steps = _steps(places)
    made = [
        Checkpoint(spec, label, step, tokens_of(label) or step * tokens_per_step)
        for (spec, label), step in zip(places, steps, strict=True)
    ]
    made.sort(key=lambda checkpoint: checkpoint.step)
    for one, other in pairwise(made):
        if one.step == other.step:
            raise InputError(
                f"checkpoints of one model must be of different steps, but {one.label} and {other.label} are both of "
                f"step {one.step}; leave one out, or choose by a pattern"
            )
    return Series(name, tuple(made))


def _steps(places: Sequence[tuple[str, str]]) -> list[int]:
    """Return the step of each checkpoint: from its name, from the Trainer's state, or, if none has any, its place."""
    known = [_saved_step(spec) if step_of(label) is None else step_of(label) for spec, label in places]
    steps = [step for step in known if step is not None]
    if not steps:
        return list(range(len(places)))
    if len(steps) < len(places):
        without = places[known.index(None)][1]
        raise InputError(
            f"every checkpoint must have its step in its name, as step1000 or checkpoint-1000 have, but {without!r} "
            "has none while others have; leave it out"
        )
    return steps


def _saved_step(spec: str) -> int | None:
    """Return the step that a Trainer has saved with a checkpoint."""
    try:
        state = json.loads((Path(spec) / "trainer_state.json").read_text(encoding="utf-8"))
        return int(state["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
