"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

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
