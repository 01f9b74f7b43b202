"""A glance at a run: whether it has changed, by the names, sizes and times of its files. None of them is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tangentlens.errors import StorageError
from tangentlens.runs.files import Place, files_in
from tangentlens.runs.remote import Remote

# What stores call the time of an object.
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")
# What else tells two objects of the same name apart.
_MARKS = ("size", "ETag", "etag", "md5Hash")


@dataclass(frozen=True)
class Glance:
    """What a glance at one or several runs tells.

    Attributes:
        version: A text that changes with the manifest and with every part of the records.
        changed: When that was last, in seconds since 1970; None if nothing is there or its store does not say.
        newest: The part of the records that was written last; None if there is none.
    """

    version: str
    changed: float | None
    newest: Place | None


@dataclass(frozen=True)
class _Seen:
    """A file, what tells it from an earlier one of its name, and its time."""

    place: Place
    mark: str
    time: float | None


def glance(run: Place) -> Glance:
    """Return what a glance at the files of a run tells, in a folder or at a URL. There need not be any.

    What cannot be reached has a version, too: it may be reached again.
    """
    try:
        return _glance(run)
    except (StorageError, OSError) as error:
        return Glance(f"unseen: {error}", None, None)


def _glance(run: Place) -> Glance:
    parts = _seen_at(run / "records") if isinstance(run, Remote) else _seen(files_in(run / "records", ".parquet"))
    manifest = _seen_at(run, "manifest.json") if isinstance(run, Remote) else _seen([run / "manifest.json"])
    newest = max(parts, key=lambda part: (part.time or 0, part.place.name), default=None)
    return _summary([*manifest, *parts], None if newest is None else newest.place)


def glance_at_all(glances: Iterable[Glance]) -> Glance:
    """Return what glances at several runs tell together."""
    glances = list(glances)
    times = [one.changed for one in glances if one.changed is not None]
    return Glance(_digest(one.version for one in glances), max(times, default=None), None)


def _summary(files: Iterable[_Seen], newest: Place | None) -> Glance:
    files = list(files)
    times = [file.time for file in files if file.time is not None]
    return Glance(_digest(f"{file.place} {file.mark}" for file in files), max(times, default=None), newest)


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode(errors="surrogateescape")).hexdigest()[:24]


def _seen(files: Iterable[Place]) -> list[_Seen]:
    """Return what the file system says about files; one that is gone in the meantime is left out."""
    found = []
    for file in files:
        assert isinstance(file, Path)
        try:
            about = file.stat()
        except OSError:
            continue
        found.append(_Seen(file, f"{about.st_size} {about.st_mtime_ns} {about.st_ino}", about.st_mtime))
    return found


def _seen_at(folder: Remote, name: str = "") -> list[_Seen]:
    """Return what a store says about the parts in a folder, or about one object of it."""
    described = folder.described().items()
    chosen = [(place, about) for place, about in described if place.name == name or (not name and _is_part(place))]
    return [_Seen(place, _marks(about), _time(about)) for place, about in chosen]


def _is_part(place: Remote) -> bool:
    return place.name.endswith(".parquet") and not place.name.startswith(".")


def _marks(about: dict[str, Any]) -> str:
    return " ".join(str(about[key]) for key in (*_MARKS, *_TIMES) if about.get(key) is not None)


def _time(about: dict[str, Any]) -> float | None:
    """Return the time of an object in seconds since 1970, from the words of its store."""
    told = next((about[key] for key in _TIMES if about.get(key) is not None), None)
    if isinstance(told, str):
        try:
            told = datetime.fromisoformat(told)
        except ValueError:
            return None
    if isinstance(told, datetime):
        return told.timestamp()
    return float(told) if isinstance(told, int | float) else None
