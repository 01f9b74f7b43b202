"""The commands, one function each: they make a plan, run it, and print the report."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from tangentlens.alignment.tangent_planes import VERDICTS
from tangentlens.cli.making import make_run, run_and_report, write
from tangentlens.cli.options import (
    Bos,
    Device,
    DeviceMap,
    Dtype,
    FitHead,
    Json,
    Length,
    Massive,
    Quiet,
    Rank,
    Seed,
    Sites,
    SkipFirst,
    TextFile,
    Tokenizer,
    TrustRemoteCode,
)
from tangentlens.cli.presets import LIST, list_presets
from tangentlens.geometry.massive import THRESHOLD
from tangentlens.geometry.measures import NAMES, USUAL
from tangentlens.models.device import AUTO
from tangentlens.proxies import DEFAULT, PROXIES
from tangentlens.studies.audit import AuditPlan
from tangentlens.studies.profile import Profile
from tangentlens.studies.profile.presets import PRESETS
from tangentlens.studies.tangent import TestPlan
from tangentlens.studies.train_plan import TrainPlan
from tangentlens.studies.visibility.plan import VisibilityPlan

app = typer.Typer(
    epilog="Example: tangentlens demo, then open runs/demo/report.html",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_DEMO = TrainPlan(concepts=True)


def _print_version(wanted: bool) -> bool:
    if wanted:
        sys.stdout.write(f"tangentlens {importlib.metadata.version('tangentlens')}\n")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """See how a language model's representation space takes shape while it learns."""


@app.command(epilog="Example: tangentlens demo --out runs/demo --seed 1")
def demo(
    out: Annotated[str | None, typer.Option(help="Run directory or URL; an unfinished run is continued.")] = None,
    text: TextFile = None,
    sites: Sites = "resid",
    rank: Rank = _DEMO.rank,
    steps: Annotated[int, typer.Option(min=2, help="Training steps of each model.")] = _DEMO.steps,
    learning_rate: Annotated[float, typer.Option(min=0, help="Peak learning rate.")] = _DEMO.learning_rate,
    seed: Seed = _DEMO.seed,
    device: Device = AUTO,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the weights of every measured step in DIR/checkpoints, for a sweep.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a small decoder and a small encoder on built-in text with the lens on, and write a report.

    Two to four minutes on two cores. Ctrl-C leaves a readable run; the same command continues it.
    """
    plan = TrainPlan(
        text=text_name(text),
        sites=tuple(sites.split(",")),
        rank=rank,
        steps=steps,
        learning_rate=learning_rate,
        concepts=_DEMO.concepts,
        seed=seed,
        device=device,
        keep=keep,
    )
    run_and_report("train", plan, "runs/demo" if out is None else out, quiet, as_json)


@app.command(epilog="Example: tangentlens profile EleutherAI/pythia-70m@step1000 google-bert/bert-base-uncased")
def profile(
    models: Annotated[
        list[str] | None, typer.Argument(help="Directories, hub ids or id@revision; drawn together.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help=f"Also a set of known models: {', '.join(PRESETS)}. {LIST} shows them all.")
    ] = None,
    up_to: Annotated[
        float | None, typer.Option(min=0, help="Of the preset, only models of up to this many billion parameters.")
    ] = None,
    text: TextFile = None,
    sites: Sites = "resid",
    measures: Annotated[
        str | None,
        typer.Option(help=f"Comma-separated measures: {', '.join(NAMES)}. By default those that take little."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All measures, also those that take long.")] = False,
    out: Annotated[
        str | None,
        typer.Option(help="Run directory or URL; runs/profile-MODEL by default. An unfinished one is continued."),
    ] = None,
    batches: Annotated[
        int, typer.Option(min=2, help="Batches of token vectors; means and deviations are over them.")
    ] = 5,
    batch_tokens: Annotated[int, typer.Option(min=64, help="Shuffled token vectors in a batch.")] = 4096,
    length: Length = 128,
    skip_first: SkipFirst = 0,
    bos: Bos = False,
    massive: Massive = THRESHOLD,
    seed: Seed = 0,
    device: Device = AUTO,
    dtype: Dtype = AUTO,
    device_map: DeviceMap = None,
    tokenizer: Tokenizer = None,
    trust_remote_code: TrustRemoteCode = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure finished models layer by layer: anisotropy, mean cosine, dimension, entropy and more."""
    if preset == LIST:
        list_presets(as_json)
        return
    if not models and preset is None:
        raise typer.BadParameter(f"name a model or a preset; --preset {LIST} shows the presets")
    if everything and measures is not None:
        raise typer.BadParameter("--all and --measures must not come together; --all means every measure")
    plan = Profile(
        models=tuple(models or ()),
        text=text_name(text),
        sites=tuple(sites.split(",")),
        measures=NAMES if everything else USUAL if measures is None else tuple(measures.split(",")),
        batches=batches,
        batch_tokens=batch_tokens,
        length=length,
        skip_first=skip_first,
        bos=bos,
        massive=massive,
        seed=seed,
        device=device,
        dtype=dtype,
        device_map=device_map,
        tokenizer=tokenizer,
        trust_remote_code=trust_remote_code,
        preset=preset,
        up_to=up_to,
    )
    run_and_report("profile", plan, out, quiet, as_json)


@app.command("test", epilog="Example: tangentlens test path/to/model --text my.txt --nulls")
def tangent(
    model: Annotated[str, typer.Argument(help="A directory, a hub id or id@revision.")],
    text: TextFile = None,
    sites: Sites = "resid",
    out: Annotated[
        str | None,
        typer.Option(help="Run directory or URL; runs/test-MODEL by default. An unfinished run is continued."),
    ] = None,
    rank: Rank = 16,
    proxy: Annotated[str, typer.Option(help=f"The proxy: {', '.join(PROXIES)}.")] = DEFAULT,
    nulls: Annotated[
        bool, typer.Option("--nulls", help="Also test the untrained network, and the model with shuffled labels.")
    ] = False,
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
    """Test a finished model: how much of its gradients lies in the proxy, at every site, against every control."""
    plan = TestPlan(
        model=model,
        text=text_name(text),
        sites=tuple(sites.split(",")),
        rank=rank,
        proxy=proxy,
        nulls=nulls,
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
    run_and_report("test", plan, out, quiet, as_json)


@app.command(epilog="Example: tangentlens audit runs/demo")
def audit(
    target: Annotated[str, typer.Argument(help="A run of `demo`, or a model: a directory, a hub id or id@revision.")],
    sites: Annotated[
        str, typer.Option(help="Comma-separated sites, or resid for all; by default the residual stream half-way.")
    ] = "",
    text: Annotated[
        Path | None, typer.Option(help="For a model: a UTF-8 text file in place of the built-in text.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Run directory or URL; RUN-audit or runs/audit-MODEL by default. An unfinished one continues."
        ),
    ] = None,
    rank: Rank = 16,
    tokens: Annotated[int, typer.Option(min=256, help="Tokens whose gradients are looked at.")] = 8192,
    length: Annotated[int, typer.Option(min=2, help="For a model: tokens it sees at once.")] = 128,
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
    """Check whether the proxy is really tangent: falsifiable checks and a verdict for each site, and a report."""
    plan = AuditPlan(
        target=target,
        text=text_name(text),
        sites=tuple(sites.split(",")) if sites else (),
        rank=rank,
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
    run = make_run("audit", plan, out, hidden=quiet or as_json)
    page = write(run)
    audits = run.manifest["audits"]
    if as_json:
        told = {"run": str(run.path), "report": str(page.path), "audits": audits}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    elif not quiet:
        console = Console(highlight=False)
        for place, of_site in audits.items():
            console.print(f"\n[bold]{escape(place)}: the gradients are {escape(VERDICTS[of_site['says']])}[/bold]")
            for check in of_site["checks"]:
                console.print(f"\n[bold]{escape(check['name'])}[/bold]: {escape(check['means'])}")
                console.print(Padding(escape(check["found"]), (0, 0, 0, 4)), style="dim")
        console.print(f"\nRun:    {run.path}\nReport: {page.path}", soft_wrap=True)


@app.command(epilog="Example: tangentlens visibility path/to/model --text my.txt")
def visibility(
    model: Annotated[
        str | None, typer.Argument(help="A directory, a hub id or id@revision; without one, synthetic manifolds.")
    ] = None,
    text: TextFile = None,
    sites: Sites = "resid",
    out: Annotated[
        str | None, typer.Option(help="Run directory or URL; runs/visibility or runs/visibility-MODEL by default.")
    ] = None,
    types: Annotated[int, typer.Option(min=64, help="Token types to look at, at most.")] = 4096,
    length: Length = 128,
    anchors: Annotated[int, typer.Option(min=8, help="Patches to look at.")] = 128,
    dimension: Annotated[
        int | None,
        typer.Option(min=1, help="Dimension of the tangent planes; by default the intrinsic one, if types suffice."),
    ] = None,
    seed: Seed = 0,
    device: Device = AUTO,
    dtype: Dtype = AUTO,
    device_map: DeviceMap = None,
    tokenizer: Tokenizer = None,
    trust_remote_code: TrustRemoteCode = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure whether frequency bias hides curvature, on manifolds with a known answer or in a model's own space."""
    plan = VisibilityPlan(
        model=model,
        text=text_name(text),
        sites=tuple(sites.split(",")),
        types=types,
        length=length,
        anchors=anchors,
        dimension=dimension,
        seed=seed,
        device=device,
        dtype=dtype,
        device_map=device_map,
        tokenizer=tokenizer,
        trust_remote_code=trust_remote_code,
    )
    run_and_report("visibility", plan, out, quiet, as_json)


@app.command(epilog="Example: tangentlens doctor --json")
def doctor(as_json: Json = False) -> None:
    """Check versions, threads, device and disk; say what would not work here, and why.

    The exit code is 1 if something would not work.
    """
    from tangentlens.doctor import examine

    checks = examine()
    if as_json:
        sys.stdout.write(json.dumps([asdict(check) for check in checks], indent=2) + "\n")
    else:
        console = Console(highlight=False)
        for check in checks:
            mark = "[green]ok [/green]" if check.ok else "[red]BAD[/red]"
            console.print(f"{mark} {check.name:<14} {escape(check.found)}", soft_wrap=True)
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


def text_name(text: Path | None) -> str | None:
    """Return the text file as plans have it."""
    return None if text is None else str(text)
