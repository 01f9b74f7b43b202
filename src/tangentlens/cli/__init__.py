"""The command line: parse, call, print. An error is one line, and the exit code is then not 0."""

import re
import sys

import typer
from rich.console import Console
from rich.markup import escape

from tangentlens.cli import report_command, study_commands, sweep_command, view_command
from tangentlens.cli.commands import app
from tangentlens.cli.options import with_ray_address
from tangentlens.errors import InputError

__all__ = ["app", "main", "report_command", "study_commands", "sweep_command", "view_command"]

# What the shell's convention, and so typer, makes of Ctrl-C.
INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    try:
        code = app(with_ray_address(sys.argv[1:]), standalone_mode=False)
        if code == INTERRUPTED:
            _fail("interrupted; what was measured is kept, and the same command continues from there", code)
    except typer.TyperException as error:
        message = error.format_message()
        code = _fail(f"{message.rstrip('.')}; --help shows what there is", error.exit_code) if message else 2
    except InputError as error:
        code = _fail(_with_options(str(error)), 1)
    sys.exit(code)


def _fail(message: str, code: int) -> int:
    Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {escape(message)}", highlight=False)
    return code


def _with_options(message: str) -> str:
    """Spell settings as options: the library's `fit_head=200` is `--fit-head 200` here."""
    commands = typer.main.get_group(app).commands.values()
    names = {option.name for command in commands for option in command.params}
    return re.sub(
        r"\b(\w+)=(?=\w)", lambda found: f"--{found[1].replace('_', '-')} " if found[1] in names else found[0], message
    )
