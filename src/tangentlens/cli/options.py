"""Options that several commands have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tangentlens.engine import Here, Machines, Needs, OnRay
from tangentlens.engine.on_ray import LOCAL

Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
Sites = Annotated[str, typer.Option(help="Comma-separated sites: resid, resid:8 (eight, evenly spread), resid.3.")]
TextFile = Annotated[Path | None, typer.Option(help="A UTF-8 text file in place of the built-in text.")]
Length = Annotated[int, typer.Option(min=2, help="Tokens the model sees at once.")]
SkipFirst = Annotated[int, typer.Option(min=0, help="Leave out this many positions at the beginning of each window.")]
Bos = Annotated[
    bool,
    typer.Option("--bos", help="Begin every window with the begin-of-sequence token, also if the tokenizer adds none."),
]
Massive = Annotated[
    float,
    typer.Option(help="Rows more than this many times as long as the median row of their site are massive."),
]
Seed = Annotated[
    int,
    typer.Option(
        min=0, max=2**63 - 1, help="The same seed gives the same numbers on the same machine, with as many threads."
    ),
]
Device = Annotated[
    str, typer.Option(help="Where to compute, such as cpu or cuda:1; auto is the accelerator here, or the CPU.")
]
Dtype = Annotated[
    str,
    typer.Option(help="Of the weights: float32, bfloat16, float16; auto is the checkpoint's or, on the CPU, float32."),
]
DeviceMap = Annotated[
    str | None, typer.Option(help="auto spreads a model larger than the device over all devices, memory and disk.")
]
Tokenizer = Annotated[
    str | None, typer.Option(help="The directory or hub id of the tokenizer, if the model has none beside it.")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that a model's repository contains.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs, and nothing else.")]
Rank = Annotated[int, typer.Option(min=1, help="Rank of the proxy and its controls.")]
FitHead = Annotated[
    int, typer.Option(min=0, help="For a model without a language-model head: train one for this many steps.")
]
RAY = "--ray"
Ray = Annotated[
    str | None,
    typer.Option(
        RAY, metavar="[ADDRESS]", help="Run on a Ray cluster; without an address, one is started on this machine."
    ),
]
Cpus = Annotated[float, typer.Option(min=0.1, help="With --ray: cores for each model.")]
Gpus = Annotated[float, typer.Option(min=0, help="With --ray: GPUs for each model; a fraction shares one.")]
Memory = Annotated[float, typer.Option(min=0, help="With --ray: GiB of memory for each model.")]


def with_ray_address(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with an address after each `--ray` that has none.

    >>> with_ray_address(["sweep", "folder", "--ray", "--quiet"])
    ['sweep', 'folder', '--ray', 'local', '--quiet']
    """
    following = [*words[1:], "-"]
    bare = [word == RAY and after.startswith("-") for word, after in zip(words, following, strict=False)]
    return [said for word, alone in zip(words, bare, strict=True) for said in ([word, LOCAL] if alone else [word])]


def machines_of(
    ray: str | None, cpus: float, gpus: float, memory: float, keep_downloads: bool = True, site_groups: int = 1
) -> Machines:
    """Return where many tasks are done, as the options say it.

    Args:
        ray: The address of a Ray cluster; None for this process.
        cpus: Cores for each task.
        gpus: GPUs for each task.
        memory: GiB of memory for each task.
        keep_downloads: Whether a machine keeps what it downloads for a task.
        site_groups: Into how many tasks the sites of each checkpoint of a sweep are split.
    """
    needs = Needs(cpus, gpus, int(memory * 2**30))
    return Machines(Here() if ray is None else OnRay(ray), needs, keep_downloads, site_groups)
