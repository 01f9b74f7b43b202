"""What a small result shows in a notebook: a headline, facts and a table, as HTML without scripts.

Every room may use it. What a whole run shows is made in `report/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

# Colours are those of the notebook, light or dark; a grey that is half transparent is seen on both.
_CELL = (
    "text-align: left; vertical-align: top; padding: .2em .9em .2em 0; border-bottom: 1px solid rgba(128,128,128,.4)"
)


def as_html(
    headline: str, facts: Iterable[str] = (), columns: Sequence[str] = (), rows: Iterable[Sequence[object]] = ()
) -> str:
    """Return a result as HTML. Everything is text: names from outside cannot become markup.

    Args:
        headline: The result in one sentence.
        facts: Further sentences.
        columns: The names of the columns of a table; none for no table.
        rows: Its rows.

    >>> as_html("1 < 2")
    '<div style="color: currentColor"><p><strong>1 &lt; 2</strong></p></div>'
    """
    told = "".join(f"<p>{escape(fact)}</p>" for fact in facts)
    table = _table(columns, rows) if columns else ""
    return f'<div style="color: currentColor"><p><strong>{escape(headline)}</strong></p>{told}{table}</div>'


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = _row("th", columns)
    body = "".join(_row("td", row) for row in rows)
    return f'<table style="border-collapse: collapse">{head}{body}</table>'


def _row(tag: str, cells: Sequence[object]) -> str:
    return "<tr>" + "".join(f'<{tag} style="{_CELL}">{escape(str(cell))}</{tag}>' for cell in cells) + "</tr>"
