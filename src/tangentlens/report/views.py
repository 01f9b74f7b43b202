"""What people look at while runs grow: pages that are made once for each version, however many look."""

from __future__ import annotations

import math
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from tangentlens.errors import InputError
from tangentlens.report.page import Live, NothingMeasuredError, template
from tangentlens.runs.glance import Glance

WAITING = "nothing measured yet; waiting for the first measured step"
# A glance is good for this many seconds, and for this many times what it took.
_GLANCE, _GLANCES = 1.0, 10.0
# A page is made again after this many times what making it took: the machine is there for the training.
_REST = 4.0
# A page that could not be made is tried again after this many seconds, even if nothing changed.
_RETRY = 15.0
# One page is made at a time, in the whole process: who catches warnings catches those of all threads.
_MAKING = threading.Lock()


@dataclass(frozen=True)
class State:
    """What a viewer is told who asks whether there is anything new.

    Attributes:
        version: The version of the page that would be sent.
        seconds: How long ago that changed what the page shows; None if it is not known.
    """

    version: str
    seconds: float | None


@dataclass(frozen=True)
class _Made:
    """A page that was made.

    Attributes:
        text: The page.
        version: Its version.
        seen: The version of what it shows.
        rests_until: Until when it is not made again, whatever happens.
        good_until: Until when it is not made again if nothing changes.
    """

    text: str
    version: str
    seen: str
    rests_until: float
    good_until: float

    def needs_not_be_made_again(self, seen: Glance) -> bool:
        """Return whether the page is as good as another one, or it is too early for that."""
        now = time.monotonic()
        return now < self.rests_until or (self.seen == seen.version and now < self.good_until)


class View:
    """A page that follows what it shows.

    Args:
        title: The title of the page while there is nothing else to show.
        look: Returns what a glance at the runs tells.
        make: Returns the page.
        nonce: What scripts of the page carry.
        root: The address of the first page, from this one.
        is_one_of_many: Whether there is a list of runs to go back to.
    """

    def __init__(
        self,
        title: str,
        look: Callable[[], Glance],
        make: Callable[[Live], str],
        nonce: str,
        root: str,
        is_one_of_many: bool = False,
    ) -> None:
        self._title, self._look, self._make = title, Remembered(look), make
        self._about = (nonce, root, is_one_of_many)
        self._making = threading.Lock()
        self._made: _Made | None = None
        self._n_made = 0
        self._told = ""

    def state(self) -> State:
        """Return whether there is anything new; this waits for no page that is being made."""
        seen, made = self._look(), self._made
        is_good = made is not None and made.needs_not_be_made_again(seen)
        version = made.version if made is not None and is_good else self._next_version(seen)
        return State(version, None if seen.changed is None else max(0.0, time.time() - seen.changed))

    def page(self) -> str:
        """Return the page. Who asks for one that is being made waits for it."""
        with self._making:
            if self._made is None or not self._made.needs_not_be_made_again(self._look()):
                self._made = self._make_now()
                self._n_made += 1
            return self._made.text

    def _next_version(self, seen: Glance) -> str:
        # Numbered, so that viewers come for a page that could not be made and now can.
        return f"{seen.version}-{self._n_made}"

    def _make_now(self) -> _Made:
        start = time.monotonic()
        # Before the runs are read: what is written in between makes another version.
        seen = self._look.now()
        version = self._next_version(seen)
        text, failed = self._text(Live(version, *self._about))
        end = time.monotonic()
        return _Made(text, version, seen.version, end + _REST * (end - start), end + _RETRY if failed else math.inf)

    def _text(self, live: Live) -> tuple[str, bool]:
        """Return the page, or one that says why there is none; and whether it failed."""
        try:
            with _caught_warnings() as warned:
                return self._make(replace(live, warned=warned)), False
        except NothingMeasuredError:
            return _message_page(self._title, WAITING, "waiting", live), False
        except InputError as error:
            return _message_page(self._title, str(error), "failed", live), True
        # A server goes on, whatever there is in a run.
        except Exception as error:
            told = f"this page could not be made, which is a bug: {type(error).__name__}: {error}"
            if told != self._told:
                traceback.print_exc()
                self._told = told
            return _message_page(self._title, told, "failed", live), True


class Remembered:
    """A glance that is taken seldom, however many ask."""

    def __init__(self, look: Callable[[], Glance]) -> None:
        self._look, self._lock, self._until = look, threading.Lock(), 0.0
        self._seen: Glance | None = None

    def __call__(self) -> Glance:
        """Return the last glance, or a new one if that is old."""
        with self._lock:
            if self._seen is None or time.monotonic() >= self._until:
                return self._again()
            return self._seen

    def now(self) -> Glance:
        """Return a new glance."""
        with self._lock:
            return self._again()

    def _again(self) -> Glance:
        start = time.monotonic()
        try:
            self._seen = self._look()
        except (InputError, OSError) as error:
            # What cannot be reached may be reached again. The page says why.
            self._seen = Glance(f"unseen: {error}", None, None)
        end = time.monotonic()
        self._until = end + max(_GLANCE, _GLANCES * (end - start))
        return self._seen


def _message_page(title: str, message: str, kind: Literal["waiting", "failed"], live: Live) -> str:
    """Return a page that says why there is nothing else, and becomes the report when there is."""
    return template("message.html.jinja").render(title=title, message=message, kind=kind, live=live)


@contextmanager
def _caught_warnings() -> Iterator[Sequence[warnings.WarningMessage]]:
    with _MAKING, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        yield warned
