"""The command line: parse, call, print. An error is one line, and the exit code is then not 0."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from tangentlens.alignment.tangent_planes import VERDICTS
from tangentlens.errors import InputError
from tangentlens.report.page import Report, write_report
from tangentlens.runs.progress import Progress, Watch
from tangentlens.runs.run import Run, open_run
from tangentlens.studies import SECTIONS, STUDIES
from tangentlens.studies.audit import AuditPlan
from tangentlens.studies.demo import DemoPlan
from tangentlens.studies.profile import Profile
from tangentlens.studies.visibility.plan import VisibilityPlan

app = typer.Typer(
    epilog="Example: tangentlens demo, then open runs/demo/report.html",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# What the shell's convention, and so typer, makes of Ctrl-C.
INTERRUPTED = 130

Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
Sites = Annotated[str, typer.Option(help="Comma-separated sites: resid, resid.3, embed, final, module paths.")]
TextFile = Annotated[Path | None, typer.Option(help="A UTF-8 text file in place of the built-in text.")]
Length = Annotated[int, typer.Option(min=2, help="Tokens the model sees at once.")]
Seed = Annotated[
    int,
    typer.Option(
        min=0, max=2**63 - 1, help="The same seed gives the same numbers on the same machine, with as many threads."
    ),
]
Device = Annotated[str, typer.Option(help="Where to compute, such as cpu or cuda.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that a model's repository contains.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs, and nothing else.")]
Rank = Annotated[int, typer.Option(min=1, help="Rank of the proxy and its controls.")]
_DEMO = DemoPlan()


def main() -> None:
    """Run the command line."""
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:
            _fail("interrupted; what was measured is kept, and the same command continues from there", code)
    except typer.TyperException as error:
        message = error.format_message()
        code = _fail(f"{message.rstrip('.')}; --help shows what there is", error.exit_code) if message else 2
    except InputError as error:
        code = _fail(str(error), 1)
    sys.exit(code)


def _fail(message: str, code: int) -> int:
    Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {escape(message)}", highlight=False)
    return code


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"tangentlens {importlib.metadata.version('tangentlens')}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """See how a language model's representation space takes shape while it learns."""


@app.command(epilog="Example: tangentlens demo --out runs/demo --seed 1")
def demo(
    out: Annotated[Path | None, typer.Option(help="Run directory; an unfinished run is continued.")] = None,
    text: TextFile = None,
    sites: Sites = "resid",
    rank: Rank = _DEMO.rank,
    steps: Annotated[int, typer.Option(min=2, help="Training steps of each model.")] = _DEMO.steps,
    learning_rate: Annotated[float, typer.Option(min=0, help="Peak learning rate.")] = _DEMO.learning_rate,
    seed: Seed = _DEMO.seed,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a small decoder and a small encoder on built-in text with the lens on, and write a report.

    About two minutes on two cores. Ctrl-C leaves a readable run; the same command continues it.
    """
    plan = DemoPlan(
        text=_name(text),
        sites=tuple(sites.split(",")),
        rank=rank,
        steps=steps,
        learning_rate=learning_rate,
        seed=seed,
    )
    run = _run("demo", plan, out, hidden=quiet or as_json)
    report([run.path], quiet=quiet, as_json=as_json)


@app.command(epilog="Example: tangentlens profile EleutherAI/pythia-70m@step1000 google-bert/bert-base-uncased")
def profile(
    models: Annotated[list[str], typer.Argument(help="Directories, hub ids or id@revision; drawn together.")],
    text: TextFile = None,
    sites: Sites = "resid",
    out: Annotated[
        Path | None, typer.Option(help="Run directory; runs/profile-MODEL by default. An unfinished run is continued.")
    ] = None,
    batches: Annotated[
        int, typer.Option(min=2, help="Batches of token vectors; means and deviations are over them.")
    ] = 5,
    batch_tokens: Annotated[int, typer.Option(min=64, help="Shuffled token vectors in a batch.")] = 4096,
    length: Length = 128,
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: Annotated[str, typer.Option(help="Of the weights: float32, bfloat16, float16.")] = "float32",
    trust_remote_code: TrustRemoteCode = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure finished models layer by layer: anisotropy, mean cosine, dimension, entropy and more."""
    plan = Profile(
        models=tuple(models),
        text=_name(text),
        sites=tuple(sites.split(",")),
        batches=batches,
        batch_tokens=batch_tokens,
        length=length,
        seed=seed,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    run = _run("profile", plan, out, hidden=quiet or as_json)
    report([run.path], quiet=quiet, as_json=as_json)


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
        Path | None,
        typer.Option(help="Run directory; RUN-audit or runs/audit-MODEL by default. An unfinished run is continued."),
    ] = None,
    rank: Rank = 16,
    tokens: Annotated[int, typer.Option(min=256, help="Tokens whose gradients are looked at.")] = 8192,
    length: Annotated[int, typer.Option(min=2, help="For a model: tokens it sees at once.")] = 128,
    fit_head: Annotated[
        int, typer.Option(min=0, help="For a model without a language-model head: train one for so many steps.")
    ] = 0,
    seed: Seed = 0,
    device: Device = "cpu",
    trust_remote_code: TrustRemoteCode = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check whether the proxy is really tangent: falsifiable checks and a verdict for each site, and a report."""
    plan = AuditPlan(
        target=target,
        text=_name(text),
        sites=tuple(sites.split(",")) if sites else (),
        rank=rank,
        tokens=tokens,
        length=length,
        fit_head=fit_head,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    run = _run("audit", plan, out, hidden=quiet or as_json)
    page = _write(run)
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
        Path | None, typer.Option(help="Run directory; runs/visibility or runs/visibility-MODEL by default.")
    ] = None,
    types: Annotated[int, typer.Option(min=64, help="Token types to look at, at most.")] = 4096,
    length: Length = 128,
    anchors: Annotated[int, typer.Option(min=8, help="Patches to look at.")] = 128,
    dimension: Annotated[
        int | None,
        typer.Option(min=1, help="Dimension of the tangent planes; by default the intrinsic one, if types suffice."),
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    trust_remote_code: TrustRemoteCode = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure whether frequency bias hides curvature, on manifolds with a known answer or in a model's own space."""
    plan = VisibilityPlan(
        model=model,
        text=_name(text),
        sites=tuple(sites.split(",")),
        types=types,
        length=length,
        anchors=anchors,
        dimension=dimension,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    run = _run("visibility", plan, out, hidden=quiet or as_json)
    report([run.path], quiet=quiet, as_json=as_json)


@app.command(epilog="Example: tangentlens report runs/demo --out demo.html")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; several are drawn together.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file; report.html in the first run by default.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML file, and print the findings."""
    page = _write(*(open_run(path) for path in runs), out=out)
    if as_json:
        findings = [asdict(finding) for finding in page.findings]
        tables = [{"title": table.title, "rows": table.frame.to_dicts()} for table in page.tables]
        told = {"runs": [str(path) for path in runs], "report": str(page.path), "findings": findings, "tables": tables}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    elif not quiet:
        console = Console(highlight=False)
        for table in page.tables:
            _print_table(console, table.title, table.frame)
        for (run, model), sentences in groupby(page.findings, key=lambda finding: (finding.run, finding.model)):
            console.print(f"\n[bold]{escape(model)}[/bold] ({escape(run)})")
            bullets = Table.grid(padding=(0, 1))
            for finding in sentences:
                bullets.add_row(" •", escape(finding.text))
            console.print(bullets)
        console.print(f"\nRun:    {', '.join(str(path) for path in runs)}\nReport: {page.path}", soft_wrap=True)


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


def _name(text: Path | None) -> str | None:
    return None if text is None else str(text)


def _run(study: str, plan: object, out: Path | None, hidden: bool) -> Run:
    with _bars(hidden) as watch:
        return STUDIES[study].run(plan, out, watch)


def _write(*runs: Run, out: Path | None = None) -> Report:
    return write_report(runs, out or runs[0].path / "report.html", SECTIONS)


@contextmanager
def _bars(hidden: bool) -> Iterator[Watch]:
    """Yield what draws one bar per task."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), disable=hidden) as bars:
        tasks: dict[str, TaskID] = {}

        def watch(progress: Progress) -> None:
            if progress.task not in tasks:
                tasks[progress.task] = bars.add_task(escape(progress.task), total=progress.total, note="")
            bars.update(tasks[progress.task], completed=progress.done, total=progress.total, note=escape(progress.note))

        yield watch


def _print_table(console: Console, title: str, frame: pl.DataFrame) -> None:
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    shown = frame if frame["run"].n_unique() > 1 else frame.drop("run")
    for name in shown.columns:
        table.add_column(name)
    for row in shown.iter_rows():
        table.add_row(*(escape(str(cell)) for cell in row))
    console.print(table)
