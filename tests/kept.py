"""Numbers that must not change unnoticed: tables that were kept in tests/kept, compared with those of today.

They do not say that a number is right; tests against closed forms and second implementations do. They say that it is
the number of yesterday. If a change is meant, `KEEP=1 pytest tests/that_file.py` keeps the new numbers, and the
changelog says 'Changes numbers'.
"""

import math
import os
import re
from io import StringIO
from pathlib import Path

import polars as pl
import polars.selectors as cs

KEPT = Path(__file__).parent / "kept"
# Iterations on another processor may end elsewhere, in the last digits of fp32.
RELATIVE, ABSOLUTE = 2e-3, 1e-5
NUMBER = re.compile(r"-?\d[\d,.]*(e[+-]?\d+)?")


def check_numbers(name, table):
    """The numbers of a table are those that were kept; everything else in it is the same."""
    path = KEPT / f"{name}.csv"
    told = StringIO(table.write_csv(float_precision=8))
    if os.environ.get("KEEP"):
        path.write_text(told.getvalue())
    kept, now = (pl.read_csv(source, infer_schema_length=None) for source in (path, told))
    assert kept.columns == now.columns
    assert kept.height == now.height
    numbers = cs.expand_selector(kept, cs.float() | cs.integer())
    others = [column for column in kept.columns if column not in numbers]
    assert kept.select(others).equals(now.select(others))
    apart = [
        f"{column} was {before} and is {after} in {dict(zip(others, kept.select(others).row(row), strict=True))}"
        for column in numbers
        for row, (before, after) in enumerate(zip(kept[column], now[column], strict=True))
        if not same(before, after)
    ]
    assert not apart, "\n".join([f"{len(apart)} numbers changed; if they should, see tests/kept.py", *apart[:20]])


def same(before, after):
    """Two numbers are the same but for rounding, or both missing."""
    if before is None or after is None:
        return before is after
    if math.isnan(before) or math.isnan(after):
        return math.isnan(before) and math.isnan(after)
    return math.isclose(before, after, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def check_words(name, text):
    """A text is the one that was kept but for the digits of its numbers."""
    path = KEPT / f"{name}.txt"
    if os.environ.get("KEEP"):
        path.write_text(text + "\n")
    assert NUMBER.sub("#", text + "\n") == NUMBER.sub("#", path.read_text())
