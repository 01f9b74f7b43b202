"""The journal of a run: the names of the parts that were written, so that one that is gone is noticed.

A line is added after a part is on disk. If a process is killed in between, the part is there without a line, which does
no harm: parts that are there are read in any case. A line that was cut off is not JSON and is ignored.

At a URL, where nothing can be appended to, each part has a mark instead: an object of its name in the folder `parts`.
Both are read wherever a run is, so that what a copy of it has lost is noticed too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from tangentlens.errors import StorageError
from tangentlens.runs.files import Place, file_name, files_in, remove, write_whole
from tangentlens.runs.remote import Remote

JOURNAL = "parts.jsonl"
# The folder of marks.
MARKS = "parts"


def note_written(run: Place, part: str) -> None:
    """Note in the journal of a run that a part was written."""
    if isinstance(run, Remote):
        write_whole(_mark(run, part), json.dumps({"written": part}).encode())
    else:
        _append(run / JOURNAL, _lines("written", [part]))


def note_abandoned(run: Place, parts: Sequence[str]) -> None:
    """Note in the journal of a run that parts are no longer missed."""
    journal = run / JOURNAL
    if isinstance(journal, Path):
        _append(journal, _lines("abandoned", parts))
    elif journal.exists():
        # The run was begun in a folder, and copied.
        journal.put(journal.read_bytes() + _lines("abandoned", parts))
    for part in parts:
        remove(_mark(run, part))


def forget_parts(run: Place) -> None:
    """Empty the journal of a run."""
    remove(run / JOURNAL)
    for mark in files_in(run / MARKS):
        remove(mark)


def parts_written(run: Place) -> list[str]:
    """Return the names of all parts that should be in a run directory; empty if it has no journal."""
    listed: dict[str, None] = {}
    for line in _text(run / JOURNAL).split("\n"):
        event, part = _read(line)
        if event == "written":
            listed[part] = None
        elif event == "abandoned":
            listed.pop(part, None)
    marked = {unquote(mark.name): None for mark in files_in(run / MARKS)}
    return list(listed | marked)


def _mark(run: Place, part: str) -> Place:
    return run / MARKS / file_name(part)


def _lines(event: Literal["written", "abandoned"], parts: Iterable[str]) -> bytes:
    # Each line begins with the line break, so that it is whole even after one that was cut off.
    return "".join(f"\n{json.dumps({event: part})}" for part in parts).encode()


def _append(journal: Path, lines: bytes) -> None:
    try:
        # One call appends it all, so that lines of several processes do not mix.
        descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, lines)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(
            f"could not write {journal}: {error.strerror}; make room or choose another folder and run again"
        ) from error


def _text(journal: Place) -> str:
    try:
        return journal.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _read(line: str) -> tuple[str, str]:
    """Return the event of a line and the part; empty if the line was cut off."""
    try:
        ((event, part),) = json.loads(line).items()
    except (ValueError, AttributeError):
        return "", ""
    return event, str(part)
