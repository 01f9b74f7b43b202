"""The runs that a server shows: found in folders, numbered in the order of their appearance, each with its page."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

from tangentlens.errors import InputError
from tangentlens.report.contents import Section
from tangentlens.report.page import Live, page_of, template
from tangentlens.report.views import View
from tangentlens.runs.files import Place, entries
from tangentlens.runs.glance import Glance, glance, glance_at_all
from tangentlens.runs.remote import Remote
from tangentlens.runs.run import Run, is_run, open_run

# How deep runs lie in a folder of runs: those of a study are in a folder of their own. Stores take long to list.
_DEPTH, _DEPTH_AT_URL = 2, 1


@dataclass(frozen=True)
class Row:
    """A run in the list of runs.

    Attributes:
        number: Its number, which is its address.
        label: Its name.
        models: The names of its models.
        made_by: The command that made it.
        last_step: The last step that was measured; a dash before the first.
        changed: When it last changed.
        message: Why it cannot be read; empty if it can.
    """

    number: int
    label: str
    models: str = ""
    made_by: str = ""
    last_step: str = "–"
    changed: str = ""
    message: str = ""


class Gallery:
    """All runs in some places, and their pages. A run that was found keeps its number, also when it is gone.

    Args:
        places: Runs, and folders of runs, in which more may appear.
        sections: What a report may say.
        nonce: What scripts of the pages carry.
    """

    def __init__(self, places: Sequence[Place], sections: Iterable[Section], nonce: str) -> None:
        for place in places:
            _check_there(place)
        self._places = [place.absolute() for place in places]
        self._sections, self._nonce = tuple(sections), nonce
        self._lock = threading.Lock()
        self._runs: dict[Place, str] = {}
        self._views: dict[int, View] = {}
        self._rows: dict[int, tuple[str, Row]] = {}
        self._find()
        self.is_one_run = len(self._places) == 1 and self._places[0] in self._runs
        self.list = View(self._title, self._look_at_list, self._list_page, nonce, "")
        self.comparison = View(self._title, self._look_at_all, self._page_of_all, nonce, "../", is_one_of_many=True)

    @property
    def _title(self) -> str:
        return ", ".join(_readable(place.name) for place in self._places)

    @property
    def runs(self) -> list[Place]:
        """Return the runs by their numbers."""
        with self._lock:
            return list(self._runs)

    def view(self, number: int) -> View | None:
        """Return the page of a run; None if there is no such number."""
        runs = self.runs
        if not 0 <= number < len(runs):
            return None
        with self._lock:
            if number not in self._views:
                self._views[number] = self._view_of(runs[number])
            return self._views[number]

    def _view_of(self, run: Place) -> View:
        def page(live: Live) -> str:
            return page_of([_opened(run)], self._sections, live=live).text

        title = _readable(run.name)
        return View(title, lambda: glance(run), page, self._nonce, "../../", is_one_of_many=not self.is_one_run)

    def _find(self) -> None:
        """Add runs that have appeared."""
        found = [(run, place) for place in self._places for run in _runs_under(place)]
        with self._lock:
            for run, place in found:
                self._runs.setdefault(run, _label(run, place))

    def _look_at_list(self) -> Glance:
        self._find()
        return self._look_at_all()

    def _look_at_all(self) -> Glance:
        return glance_at_all(glance(run) for run in self.runs)

    def _page_of_all(self, live: Live) -> str:
        self._find()
        runs = [_opened(run) for run in self.runs]
        return page_of(runs, self._sections, f"{len(runs)} runs in {self._title}", live).text

    def _list_page(self, live: Live) -> str:
        with self._lock:
            labels = list(self._runs.items())
        rows = [self._row(number, run, label) for number, (run, label) in enumerate(labels)]
        return template("picker.html.jinja").render(title=self._title, rows=rows, live=live)

    def _row(self, number: int, run: Place, label: str) -> Row:
        """Return the row of a run, which is read only if it has changed."""
        seen = glance(run)
        version, row = self._rows.get(number, ("", None))
        if row is None or version != seen.version:
            row = _row_of(number, run, label, seen)
            self._rows[number] = (seen.version, row)
        return row


def _check_there(place: Place) -> None:
    """Raise if there is nothing to wait in."""
    if isinstance(place, Path) and not place.is_dir():
        raise InputError(
            f"{place} must be a run, or a folder in which runs are or will be, but there is no such folder; "
            "start the training first, or create the folder"
        )


def _runs_under(place: Place, depth: int | None = None) -> Iterator[Place]:
    """Yield the run that a place is, or the runs in its folders; a folder that cannot be read has none."""
    if depth is None:
        depth = _DEPTH_AT_URL if isinstance(place, Remote) else _DEPTH
    try:
        found, inside = is_run(place), [entry for entry in entries(place) if not entry.name.startswith(".")]
    except OSError:
        return
    if found:
        yield place
    elif depth:
        for entry in inside:
            yield from _runs_under(entry, depth - 1)


def _opened(run: Place) -> Run:
    """Return a run; libraries that read it take no path that is not text."""
    if not str(run).isprintable():
        raise InputError(f"a run's folder must have a printable name, but {str(run)!r} is not printable; rename it")
    return open_run(run)


def _row_of(number: int, run: Place, label: str, seen: Glance) -> Row:
    when = "" if seen.changed is None else f"{datetime.fromtimestamp(seen.changed, UTC):%Y-%m-%d %H:%M:%S} UTC"
    try:
        opened = _opened(run)
        manifest = opened.manifest
        last = None if seen.newest is None else opened.records_of(unquote(seen.newest.stem))
    # One run that cannot be read hides none of the others.
    except Exception as error:
        return Row(number, label, changed=when, message=str(error))
    named = manifest.get("models") or ([] if last is None else last["model"].unique(maintain_order=True).to_list())
    step = "–" if last is None or last.is_empty() else str(last["step"].max())
    return Row(number, label, ", ".join(named), str(manifest["made_by"]), step, when)


def _label(run: Place, place: Place) -> str:
    """Return the name of a run: its own, or its path from the folder in which it was found."""
    if run == place or not (isinstance(run, Path) and isinstance(place, Path)):
        return _readable(run.name)
    return _readable(str(run.relative_to(place)))


def _readable(name: str) -> str:
    # A folder's name need not be text.
    return name.encode(errors="replace").decode()
