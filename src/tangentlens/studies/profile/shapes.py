"""The shape of a profile, as its records have it."""

from __future__ import annotations

import polars as pl

from tangentlens.runs.vocabulary import SHAPE_BATCHES, SHAPE_MARGIN, derived


def decided(rows: pl.DataFrame, metric: str, variant: str, kind: str) -> tuple[str, str, str]:
    """Return a profile's shape, the margin within which differences count as none, and how many batches would decide.

    An earlier version called flat what had no significant difference, and had no margin: that is undecided.
    """
    margins, needed = (
        rows.filter(metric=derived(prefix, metric), variant=variant)["value"].to_list()
        for prefix in (SHAPE_MARGIN, SHAPE_BATCHES)
    )
    if not margins:
        return "undecided" if kind == "flat" else kind, "a margin", "an earlier version tested no margin"
    more = f"about {needed[0]:.0f} batches of this spread would decide" if needed else "more batches would not decide"
    return kind, f"{margins[0]:.2g}", more
