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


def as_kept(file, told):
    """The text that was kept in a file, or what is told now, which `KEEP=1` keeps."""
    path = KEPT / file
    if os.environ.get("KEEP"):
        path.write_text(told)
    return path.read_text()


def check_numbers(name, table):
    """The numbers of a table are those that were kept; everything else in it is the same."""
    told = table.write_csv(float_precision=8)
    texts = (as_kept(f"{name}.csv", told), told)
    kept, now = (pl.read_csv(StringIO(text), infer_schema_length=None) for text in texts)
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
    told = text + "\n"
    assert NUMBER.sub("#", told) == NUMBER.sub("#", as_kept(f"{name}.txt", told))
