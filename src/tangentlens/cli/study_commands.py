"""The commands for experiments: run a study, judge claims."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from tangentlens.cli.commands import app, text_name
from tangentlens.cli.console import print_table, progress_bars
from tangentlens.cli.making import write
from tangentlens.cli.options import Cpus, Device, Gpus, Json, Memory, Quiet, Ray, TextFile, Tokenizer, machines_of
from tangentlens.corpora.download import download
from tangentlens.errors import check_name
from tangentlens.models.device import AUTO
from tangentlens.report.reading import read_runs
from tangentlens.runs.files import as_place
from tangentlens.runs.run import runs_in
from tangentlens.studies import SECTIONS, STUDIES
from tangentlens.studies.claims import CLAIMS
from tangentlens.studies.claims.ledger import Entry, ledger
from tangentlens.studies.claims.page import write_page
from tangentlens.studies.claims.section import tables
from tangentlens.studies.study import Inputs

# Said below the ledger of the smallest scale.
_SMOKE = "The scale smoke shows that everything works. It is too small for its verdicts to mean anything."


@app.command("study", epilog="Example: tangentlens study learning-dynamics --scale small --out runs/dynamics")
def run_study(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(STUDIES)}.")] = "",
    scale: Annotated[str, typer.Option(help="smoke, small or full; --list shows what each costs.")] = "small",
    out: Annotated[
        str | None, typer.Option(help="Folder or URL; runs/NAME-SCALE by default. An unfinished study is continued.")
    ] = None,
    text: TextFile = None,
    models: Annotated[str, typer.Option(help="For finished-models: comma-separated directories or hub ids.")] = "",
    device: Device = AUTO,
    tokenizer: Tokenizer = None,
    ray: Ray = None,
    cpus: Cpus = 1.0,
    gpus: Gpus = 0.0,
    memory: Memory = 0.0,
    listed: Annotated[bool, typer.Option("--list", help="Show all studies with their claims and costs.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Rerun an experiment, write a report, and judge its claims."""
    if listed or not name:
        _list_studies(as_json)
        return
    check_name("a study", name, STUDIES)
    study = STUDIES[name]
    check_name("a scale", scale, study.costs)
    chosen = tuple(model for model in models.split(",") if model)
    for option, given in {"--models": chosen, "--tokenizer": tokenizer}.items():
        if given and not study.takes_models:
            able = ", ".join(one.name for one in STUDIES.values() if one.takes_models)
            raise typer.BadParameter(f"{option} is for {able}, and {name} trains its own networks")
    place = Path("runs") / f"{study.name}-{scale}" if out is None else as_place(out)
    inputs = Inputs(place, text_name(text), chosen, device, tokenizer)
    with progress_bars(quiet or as_json) as watch:
        runs = study.run(scale, inputs, watch, None if ray is None else machines_of(ray, cpus, gpus, memory))
    page = write(*runs, out=inputs.out / "report.html", title=f"{name}, {scale}", sections=study.sections or SECTIONS)
    if as_json:
        claims([str(run.path) for run in runs], as_json=True)
    elif not quiet:
        console = Console(highlight=False)
        # What the study is not about would only be told to be missing.
        entries = [e for e in ledger(read_runs(runs)) if e.judgement is not None or e.claim.id in study.claims]
        _print_ledger(console, entries)
        if entries and scale == "smoke":
            console.print(f"\n{_SMOKE}")
        console.print(f"\nRuns:   {inputs.out}\nReport: {page.path}", soft_wrap=True)


@app.command(epilog="Example: tangentlens enwik8, then tangentlens study shape-of-learning --text data/enwik8.zip")
def enwik8(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("data/enwik8.zip"), quiet: Quiet = False
) -> None:
    """Download enwik8, 36 MB, from its public home, and verify its checksum."""
    with progress_bars(quiet) as watch:
        download(out, watch=watch)
    if not quiet:
        Console(highlight=False).print(f"enwik8: {out}", soft_wrap=True)


@app.command(epilog="Example: tangentlens claims runs/learning-dynamics-small runs/finished-models-small")
def claims(
    runs: Annotated[list[str], typer.Argument(help="Run directories or URLs, or folders of studies.")],
    page: Annotated[
        Path | None,
        typer.Option(help="A Markdown file to write the ledger into, between its two `ledger` marks if it has them."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Judge claims by the records of runs: effect over networks, interval, verdict, and what would decide."""
    found = [run for path in runs for run in runs_in(path)]
    records = read_runs(found)
    entries = ledger(records)
    if page is not None:
        write_page(page, entries, records)
    if as_json:
        told = {"runs": [str(run.path) for run in found], "claims": [entry.as_dict() for entry in entries]}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    elif not quiet:
        console = Console(highlight=False)
        _print_ledger(console, entries)
        if page is not None:
            console.print(f"\nPage: {page}", soft_wrap=True)


def _print_ledger(console: Console, entries: Sequence[Entry]) -> None:
    for table in tables(entries):
        print_table(console, table.title, table.frame)


def _list_studies(as_json: bool) -> None:
    """Print every study with what it does, the claims it judges and what each scale costs."""
    if as_json:
        told = [
            {"name": one.name, "about": one.about, "claims": one.claims, "costs": dict(one.costs)}
            for one in STUDIES.values()
        ]
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return
    console = Console(highlight=False)
    for one in STUDIES.values():
        console.print(f"\n[bold]{one.name}[/bold]: {escape(one.about)}")
        console.print(Padding(f"Claims: {', '.join(one.claims) or 'none'}", (0, 0, 0, 4)))
        for scale, cost in one.costs.items():
            console.print(Padding(f"{scale:<6} {escape(cost)}", (0, 0, 0, 4)))
    console.print("\n[bold]Claims[/bold]")
    for claim in CLAIMS:
        console.print(Padding(escape(f"{claim.id}. {claim.statement}"), (0, 0, 0, 4)))
