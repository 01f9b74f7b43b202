"""The command that follows runs while they train, on a page in the browser."""

from __future__ import annotations

import json
import sys
import webbrowser
from typing import Annotated

import typer

from tangentlens.cli.commands import app
from tangentlens.cli.options import Json
from tangentlens.report.live import LiveServer
from tangentlens.runs.files import as_place
from tangentlens.studies import SECTIONS


@app.command(epilog="Example: tangentlens view runs/my-run")
def view(
    runs: Annotated[list[str], typer.Argument(help="Run directories or URLs, or folders of runs.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on this machine; 0 for any that is free.")] = 0,
    open_browser: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the page in the browser; by default on a terminal.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Follow runs while they train: the report in the browser, up to date. Ctrl-C ends it.

    Only this machine can reach the page, at an address with a secret token. Nothing is written.
    """
    server = LiveServer([as_place(run) for run in runs], SECTIONS, port)
    if as_json:
        told = {"address": server.address, "runs": [str(run) for run in server.gallery.runs]}
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        sys.stdout.write(f"Following {', '.join(runs)} at\n\n  {server.address}\n\nCtrl-C ends this.\n")
    sys.stdout.flush()
    if sys.stdout.isatty() if open_browser is None else open_browser:
        webbrowser.open(server.address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        if not as_json:
            sys.stdout.write("\nStopped. The runs are as they were.\n")
    finally:
        server.server_close()
