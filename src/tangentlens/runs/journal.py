"""The journal of a run: the names of the parts that were written, so that one that is gone is noticed.

A line is added after a part is on disk. If a process is killed in between, the part is there without a line, which does
no harm: parts that are there are read in any case. A line that was cut off is not JSON and is ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from tangentlens.errors import StorageError

JOURNAL = "parts.jsonl"


def note(run: Path, event: Literal["written", "abandoned"], parts: Iterable[str]) -> None:
    """Add lines to the journal of a run directory.

    Args:
        run: The directory.
        event: What happened to the parts.
        parts: Their names.
    """
    # Each line begins with the line break, so that it is whole even after one that was cut off.
    lines = "".join(f"\n{json.dumps({event: part})}" for part in parts)
    try:
        # One call appends it all, so that lines of several processes do not mix.
        descriptor = os.open(run / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, lines.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(
            f"could not write {run / JOURNAL}: {error.strerror}; make room or choose another folder and run again"
        ) from error


def parts_written(run: Path) -> list[str]:
    """Return the names of all parts that should be in a run directory; empty if it has no journal."""
    try:
        lines = (run / JOURNAL).read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return []
    listed: dict[str, None] = {}
    for line in lines:
        event, part = _read(line)
        if event == "written":
            listed[part] = None
        elif event == "abandoned":
            listed.pop(part, None)
    return list(listed)


def _read(line: str) -> tuple[str, str]:
    """Return the event of a line and the part; empty if the line was cut off."""
    try:
        ((event, part),) = json.loads(line).items()
    except (ValueError, AttributeError):
        return "", ""
    return event, str(part)
