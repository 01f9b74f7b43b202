"""The models of a preset, one after the other: what cannot be had is skipped by name, and tried again next time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from textwrap import shorten

from tangentlens.errors import InputError
from tangentlens.models.device import AUTO
from tangentlens.models.load import LoadError
from tangentlens.models.memory import free_memory, is_out_of_memory
from tangentlens.runs.progress import Progress, Watch
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run
from tangentlens.runs.vocabulary import ACTIVATION
from tangentlens.studies.profile.expected import expected_seconds, memory_needed, time_text
from tangentlens.studies.profile.plan import Profile
from tangentlens.studies.profile.presets import PresetModel
from tangentlens.studies.profile.results import is_finished

_GIB = 2**30


def measure_preset(profile: Profile, run: Run, watch: Watch, make: Callable[[PresetModel], None]) -> None:
    """Measure every model of the preset that can be had; say of the others why they cannot.

    Reasons stand in the manifest under `skipped`, and in the records as `unmeasured`.

    Args:
        profile: The plan, with a preset.
        run: The run.
        watch: Told the progress.
        make: Measures one model into the run.
    """
    models = profile.preset_models
    skipped: dict[str, str] = {}
    for number, model in enumerate(models):
        left = [one for one in models[number:] if not is_finished(run, one.name)]
        seconds = sum(expected_seconds(one, profile) for one in left)
        watch(Progress(str(profile.preset), number, len(models), f"on two cores {time_text(seconds)} (estimate)"))
        # What was measured need not be had again.
        reason = None if is_finished(run, model.name) else _tried(profile, model, make)
        if reason is not None:
            skipped[model.name] = reason
            # Whole reasons are in the findings.
            watch(Progress(model.name, 0, 1, shorten(f"skipped: {reason}", 100)))
        _write_skipped(profile, run, skipped)
    watch(Progress(str(profile.preset), len(models), len(models), f"{len(skipped)} skipped"))
    if len(skipped) == len(models) and not profile.models:
        first, reason = next(iter(skipped.items()))
        raise InputError(
            f"{profile.preset} must have a model that can be had here, but none of {len(models)} can; {first}: {reason}"
        )


def _tried(profile: Profile, model: PresetModel, make: Callable[[PresetModel], None]) -> str | None:
    """Measure a model, and return None; or return why it cannot be measured."""
    needed, free = memory_needed(model, profile), free_memory(profile.device)
    # In the checkpoint's own format it may need less, which is looked at before it is loaded.
    if profile.dtype != AUTO and free is not None and needed > free:
        return f"it needs about {needed / _GIB:.1f} GiB of memory, and {free / _GIB:.1f} GiB are free"
    try:
        make(model)
    except LoadError as error:
        gate = "it is gated, and access must be granted on the hub first; " if model.gated else ""
        return f"{gate}{model.hub_id} cannot be loaded: {error.reason.rstrip('.')}"
    except (InputError, MemoryError, RuntimeError) as error:
        if not isinstance(error, InputError) and not is_out_of_memory(error):
            raise
        return " ".join(str(error).split()) or type(error).__name__
    return None


def _write_skipped(profile: Profile, run: Run, skipped: Mapping[str, str]) -> None:
    """Write which models were skipped, in place of what was skipped at an earlier attempt."""
    run.redescribe("skipped", skipped)
    measured = [model for model in profile.preset_models if is_finished(run, model.name)]
    # As long as nothing is measured, the run may be overwritten by one with another configuration.
    if measured or profile.models:
        records = [
            Record(model=model.name, revision=model.revision, quantity=ACTIVATION, seed=profile.seed)
            for model in profile.preset_models
            if model.name in skipped
        ]
        run.write(f"skipped of {profile.preset}", [one.unmeasured(skipped[one.model]) for one in records])
