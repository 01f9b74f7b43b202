"""The process that `test_crash` kills: it writes parts and says so after each."""

import os
from collections.abc import Mapping
from multiprocessing.connection import Connection

from tangentlens.runs.records import Record
from tangentlens.runs.run import create_run

ROWS = 40
PARTS = 40
FACTS = 30


def write(path: str, acknowledge: Connection) -> None:
    run = create_run(path, {"rows": ROWS})
    acknowledge.send("ready")
    for step in range(PARTS):
        part = f"step-{step:04d}"
        if not run.has(part):
            run.write(
                part, [Record(model="m", metric="loss", step=step, seed=i, value=step + i / 100) for i in range(ROWS)]
            )
            acknowledge.send(step)


def write_with(environment: Mapping[str, str], path: str, acknowledge: Connection) -> None:
    """Write with these variables: the server that processes are forked from may be older than they are."""
    os.environ.update(environment)
    write(path, acknowledge)


def describe(path: str, name: str) -> None:
    """Create a run, or open the one that another process creates, and add facts to its manifest one by one."""
    run = create_run(path, {})
    for number in range(FACTS):
        run.describe("models", {f"{name}-{number}": {"known": True}})
