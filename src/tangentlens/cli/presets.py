"""What `tangentlens profile --preset list` prints: every preset with its models, their sizes and expected times."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import polars as pl
from rich.console import Console
from rich.markup import escape

from tangentlens.cli.console import print_table
from tangentlens.studies.profile.expected import expected_seconds, gpu_forward_seconds, memory_needed, time_text
from tangentlens.studies.profile.plan import Profile
from tangentlens.studies.profile.presets import PRESETS, Preset

# What takes the place of a preset's name to list them.
LIST = "list"
_ABOUT = (
    "Times are estimates by a rule from size, for 5 batches of 4,096 tokens at all residual sites, without downloads. "
    "Two cores: calibrated by measured times. GPU: the forward passes alone, at an assumed 10 TFLOP/s."
)


def list_presets(as_json: bool) -> None:
    """Print every preset, as tables or as one JSON object."""
    if as_json:
        told = [{"name": preset.name, "about": preset.about, "models": _rows(preset)} for preset in PRESETS.values()]
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return
    console = Console(highlight=False)
    for preset in PRESETS.values():
        console.print(f"\n[bold]{preset.name}[/bold]: {escape(preset.about)}")
        print_table(console, "", _table(preset))
    console.print(_ABOUT)


def _rows(preset: Preset) -> list[dict[str, object]]:
    """Return what is known and expected of each model, as numbers."""
    plan = Profile(preset=preset.name)
    return [
        {
            **asdict(model),
            "expected_seconds_two_cores": round(expected_seconds(model, plan), 1),
            "expected_seconds_gpu_forward_only": round(gpu_forward_seconds(model, plan), 1),
            "expected_bytes_of_memory": memory_needed(model, plan),
        }
        for model in preset.models
    ]


def _table(preset: Preset) -> pl.DataFrame:
    """Return the models of a preset as people read them."""
    plan = Profile(preset=preset.name)
    return pl.DataFrame(
        {
            "model": [f"{model.name}{' (gated)' if model.gated else ''}" for model in preset.models],
            "hub id": [model.hub_id for model in preset.models],
            "revision": [model.revision[:10] for model in preset.models],
            "parameters": [f"{model.parameters / 1e6:,.0f} M" for model in preset.models],
            "layers × width": [f"{model.layers} × {model.width}" for model in preset.models],
            "memory": [f"{memory_needed(model, plan) / 2**30:.1f} GiB" for model in preset.models],
            "two cores": [time_text(expected_seconds(model, plan)) for model in preset.models],
            "GPU, forward only": [time_text(gpu_forward_seconds(model, plan)) for model in preset.models],
        }
    )
