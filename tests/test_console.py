"""Tables in a narrow terminal."""

import io

import polars as pl
from rich.console import Console

from tangentlens.cli.console import print_table


def printed(frame, width=80):
    out = io.StringIO()
    print_table(Console(file=out, width=width), "Title", frame)
    return out.getvalue()


def test_long_texts_beside_many_columns_are_paragraphs_in_a_narrow_terminal():
    numbers = {f"number {i}": ["0.0387 [0.0371, 0.0403]"] for i in range(3)}
    frame = pl.DataFrame({"claim": ["A long statement about what networks do when they learn."], **numbers})
    assert "\n    number 0 0.0387 [0.0371, 0.0403]; number 1 " in printed(frame)
    assert "─" in printed(frame, 160)


def test_numbers_with_intervals_stay_a_table():
    frame = pl.DataFrame({"model": ["decoder"], **{f"number {i}": ["0.0387 [0.0371, 0.0403]"] for i in range(4)}})
    assert "─" in printed(frame)
