"""How a result is shown: in a notebook below the cell, elsewhere as a page in the browser."""

from __future__ import annotations

import importlib
import os
import sys
import webbrowser
from collections.abc import Iterable
from html import escape

from tangentlens.report.contents import Card, ModelCards, Sign
from tangentlens.runs.files import Place
from tangentlens.runs.remote import Remote

# The signs of the page, by shape as well as by word; the colours of a notebook are its own.
_SIGNS: dict[Sign, str] = {"more": "▲ more", "less": "▼ less", "equal": "≈ alike", "open": "○ open"}
_CARD = "border-left: .25em solid rgba(128,128,128,.5); padding: 0 1em 0 .6em; max-width: 16em"


def in_notebook() -> bool:
    """Return whether a notebook runs this code, and not a terminal, be it that of IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def display_html(text: str) -> None:
    """Show HTML below the cell of the notebook."""
    shown = importlib.import_module("IPython.display")
    shown.display(shown.HTML(text))


def open_page(path: Place) -> None:
    """Open a page in the browser, if there is one, and print where the page is."""
    if not isinstance(path, Remote) and _has_screen():
        webbrowser.open(path.absolute().as_uri())
    print(f"report: {path}")  # noqa: T201


def _has_screen() -> bool:
    """Return whether a browser can have a window; without one, Python would open a text browser in the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def cards_html(models: Iterable[ModelCards]) -> str:
    """Return the key figures of models as HTML without scripts, in the colours of the notebook."""
    return "".join(
        f"<h4>{escape(model.model)}</h4>"
        f'<div style="display: flex; flex-wrap: wrap; gap: .8em; color: currentColor">'
        f"{''.join(map(_card, model.cards))}</div>"
        for model in models
    )


def _card(card: Card) -> str:
    return (
        f'<div style="{_CARD}"><div>{escape(card.title)}</div>'
        f"<div><strong>{escape(card.value)}</strong> {escape(card.interval)}</div>"
        f"<div>{escape(_SIGNS[card.sign])}: {escape(card.verdict)}</div></div>"
    )
