"""The command for many checkpoints: plan it, run it here or on a Ray cluster, and print the report."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import polars as pl
import typer
from rich.console import Console

from tangentlens.alignment.tangent_test import CONTROLS
from tangentlens.cli.commands import app, text_name
from tangentlens.cli.console import print_table
from tangentlens.cli.making import run_and_report
from tangentlens.cli.options import (
    Bos,
    Cpus,
    Device,
    Dtype,
    FitHead,
    Gpus,
    Json,
    Length,
    Massive,
    Memory,
    Quiet,
    Rank,
    Ray,
    Seed,
    Sites,
    SkipFirst,
    TextFile,
    Tokenizer,
    TrustRemoteCode,
    machines_of,
)
from tangentlens.geometry.massive import THRESHOLD
from tangentlens.geometry.measures import NAMES, USUAL
from tangentlens.models.device import AUTO
from tangentlens.proxies import DEFAULT, PROXIES
from tangentlens.studies import JOBS
from tangentlens.studies.sweep import SweepPlan
from tangentlens.studies.sweep.estimate import Estimate, estimate_sweep
from tangentlens.studies.sweep.presets import FAMILIES

_GIB = 2**30


@app.command(epilog="Example: tangentlens sweep EleutherAI/pythia-70m --revisions step0,step1000..step143000:1000")
def sweep(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Hub ids, folders of checkpoints (checkpoint-100, ...), or directories of checkpoints."),
    ] = None,
    revisions: Annotated[
        str | None,
        typer.Option(help="Of hub ids: step0,step1000..step9000:1000, a pattern such as 'step*', or all."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help=f"A family whose checkpoints are public: {', '.join(FAMILIES)}.")
    ] = None,
    up_to: Annotated[
        float | None, typer.Option(min=0, help="Of the preset, only models of up to this many billion parameters.")
    ] = None,
    text: TextFile = None,
    sites: Sites = "resid",
    measures: Annotated[
        str | None, typer.Option(help=f"Comma-separated measures of activations: {', '.join(NAMES)}.")
    ] = None,
    controls: Annotated[
        str, typer.Option(help="Comma-separated controls of the tangent test; by default all.")
    ] = ",".join(CONTROLS),
    out: Annotated[
        str | None,
        typer.Option(help="Run directory, or a URL; runs/sweep-MODEL by default. An unfinished run is continued."),
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Also audit every checkpoint half-way through its depth, into DIR/audits.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done: checkpoints, downloads, memory, time.")
    ] = False,
    ray: Ray = None,
    cpus: Cpus = 1.0,
    gpus: Gpus = 0.0,
    memory: Memory = 0.0,
    site_groups: Annotated[
        int, typer.Option(min=1, help="With --ray: how many tasks the sites of each checkpoint are split into.")
    ] = 1,
    remove_downloads: Annotated[
        bool, typer.Option("--remove-downloads", help="Remove each checkpoint that was downloaded, once measured.")
    ] = False,
    rank: Rank = 16,
    proxy: Annotated[str, typer.Option(help=f"The proxy: {', '.join(PROXIES)}.")] = DEFAULT,
    tokens: Annotated[int, typer.Option(min=256, help="Tokens whose gradients are looked at.")] = 8192,
    length: Length = 128,
    skip_first: SkipFirst = 0,
    bos: Bos = False,
    massive: Massive = THRESHOLD,
    fit_head: FitHead = 0,
    seed: Seed = 0,
    device: Device = AUTO,
    dtype: Dtype = "float32",
    tokenizer: Tokenizer = None,
    trust_remote_code: TrustRemoteCode = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure many checkpoints of models on the same text: geometry, tangent test, and what happens in between."""
    if not models and preset is None:
        raise typer.BadParameter("name a model, a folder of checkpoints or a --preset")
    plan = SweepPlan(
        models=tuple(models or ()),
        revisions=revisions,
        preset=preset,
        up_to=up_to,
        text=text_name(text),
        sites=tuple(sites.split(",")),
        measures=USUAL if measures is None else tuple(measures.split(",")),
        controls=tuple(controls.split(",")),
        rank=rank,
        proxy=proxy,
        audit=audit,
        tokens=tokens,
        length=length,
        skip_first=skip_first,
        bos=bos,
        massive=massive,
        fit_head=fit_head,
        seed=seed,
        device=device,
        dtype=dtype,
        tokenizer=tokenizer,
        trust_remote_code=trust_remote_code,
    )
    if dry_run:
        _tell(estimate_sweep(plan, out if out is not None else JOBS["sweep"].folder(plan), site_groups), as_json)
        return
    machines = machines_of(ray, cpus, gpus, memory, keep_downloads=not remove_downloads, site_groups=site_groups)
    run_and_report("sweep", plan, out, quiet, as_json, machines)


def _tell(estimates: Sequence[Estimate], as_json: bool) -> None:
    """Print what a sweep would take."""
    if as_json:
        sys.stdout.write(json.dumps([asdict(one) for one in estimates], indent=2) + "\n")
        return
    console = Console(highlight=False)
    print_table(
        console,
        "What would be done; times are those of this machine, one checkpoint after the other, without downloads",
        pl.DataFrame(
            {
                "model": [one.model for one in estimates],
                "checkpoints": [f"{len(one.checkpoints)}" for one in estimates],
                "done": [f"{one.done}" for one in estimates],
                "to download": [_download(one) for one in estimates],
                "time": [_time(one.seconds) for one in estimates],
                "results": [f"{one.disk_bytes / 2**20:.0f} MiB" for one in estimates],
                "memory": [f"{one.memory_bytes / _GIB:.1f} GiB" for one in estimates],
            }
        ),
    )
    for one in estimates:
        shown = ", ".join(one.checkpoints[:4]) + (f" ... {one.checkpoints[-1]}" if len(one.checkpoints) > 4 else "")
        console.print(f"{one.model}: {shown}", soft_wrap=True)
        if one.free_bytes is not None and one.memory_bytes > one.free_bytes:
            console.print(f"  It needs more memory than is free here, {one.free_bytes / _GIB:.1f} GiB.")


def _download(one: Estimate) -> str:
    if not one.to_download:
        return "none"
    size = "size unknown" if one.download_bytes is None else f"{one.download_bytes / _GIB:.1f} GiB"
    return f"{one.to_download}, {size}"


def _time(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )
