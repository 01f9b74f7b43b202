"""The key figures of a profile: where a measure is highest, its shape over depth, and what massive rows decide."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tangentlens.report.contents import SIGNS, Card, Sign
from tangentlens.report.reading import IN_BATCHES, Row, as_interval, mark, range_text, rows_text, without_massive
from tangentlens.runs.vocabulary import ACTIVATION, ALL_ROWS, SHAPE, WITHOUT_MASSIVE, derived
from tangentlens.statistics.words import WORDS, relation
from tangentlens.studies.profile.shapes import decided


def profile_cards(records: pl.DataFrame) -> Iterator[Card]:
    """Show anisotropy, of all rows and without massive ones, massive rows, dimension and mean cosine."""
    rows = records.filter(IN_BATCHES, pl.col("quantity") == ACTIVATION)
    yield from _measure(rows, "anisotropy", "Anisotropy")
    if _count(rows).height:
        yield from _measure(rows, "anisotropy", "Anisotropy", WITHOUT_MASSIVE)
    yield from _massive(rows)
    yield from _measure(rows, "intrinsic_dimension", "Intrinsic dimension")
    yield from _measure(rows, "mean_cosine", "Mean cosine")


def _over_depth(rows: pl.DataFrame, metric: str, which: str) -> pl.DataFrame:
    """Return a measure from the first site to the last."""
    of_rows = rows.filter(pl.col("rows") == ALL_ROWS) if which == ALL_ROWS else without_massive(rows)
    known = (pl.col("metric") == metric) & (pl.col("variant") == "") & pl.col("depth").is_not_null()
    return of_rows.filter(known, pl.col("value").is_finite()).sort("depth", maintain_order=True)


def _measure(rows: pl.DataFrame, metric: str, name: str, which: str = ALL_ROWS) -> Iterator[Card]:
    """Yield where a measure is highest, with its interval over batches, and its shape over depth."""
    line = _over_depth(rows, metric, which)
    if line.height < 2:
        return
    peak = line.sort("value").row(-1, named=True)
    sign, verdict = _shape(rows.filter(pl.col("rows") == which), metric)
    doubted = _doubted(rows) if metric == "intrinsic_dimension" else 0
    if doubted:
        sign, verdict = "open", f"not to be trusted at {doubted} of {line.height} sites"
    title = f"{name}{rows_text(which)}: highest at {peak['site']}"
    # A line is as high as its box, however little it rises.
    course = () if sign == "equal" else tuple(enumerate(line["value"].to_list()))
    yield Card(title, f"{peak['value']:.3g}{mark(peak)}", range_text(peak), verdict, sign, course)


def _shape(rows: pl.DataFrame, metric: str) -> tuple[Sign, str]:
    """Return the shape of a profile over depth, by the test over batches, as a sign and in words."""
    shapes = rows.filter(pl.col("metric") == derived(SHAPE, metric), pl.col("variant") == "")
    if shapes.is_empty():
        return "open", "no shape over depth was tested"
    row = shapes.row(0, named=True)
    kind, margin, _ = decided(rows, metric, "", row["detail"])
    up: Sign = "more" if row["value"] > 0 else "less"
    by = as_interval(row).times(1 if up == "more" else -1)
    told: dict[str, tuple[Sign, str]] = {
        "bell": (up, f"a bell over depth: {row['site']} is {by} above the higher end"),
        "valley": (up, f"a valley over depth: {row['site']} is {by} below the lower end"),
        "irregular": (up, f"irregular over depth: {row['site']} stands out by {by}"),
        "monotone": (up, f"{'rises' if up == 'more' else 'falls'} over depth, by {by}"),
        "flat": ("equal", f"flat: sites differ by less than {margin}"),
        "undecided": ("open", "neither a shape over depth nor flatness was shown"),
    }
    return told[kind]


def _doubted(rows: pl.DataFrame) -> int:
    """Return at how many sites the dimension is not to be trusted, in at least half of the batches."""
    return _over_depth(rows, "dimension_trouble", ALL_ROWS).filter(pl.col("value") >= 0.5).height


def _count(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the number of massive rows at sites that have any."""
    return rows.filter(pl.col("metric") == "massive_rows", pl.col("rows") == ALL_ROWS, pl.col("value") > 0)


def _massive(rows: pl.DataFrame) -> Iterator[Card]:
    """Yield how many rows of a batch are massive, and whether they change the anisotropy where they do most."""
    sites = rows.filter(pl.col("metric") == "massive_rows", pl.col("rows") == ALL_ROWS).height
    some = _count(rows)
    if not sites:
        return
    if some.is_empty():
        yield Card("Massive rows", "none", "", f"no row of {sites} sites is far longer than the median", "equal")
        return
    most = some.sort("value").row(-1, named=True)
    sign, verdict = _changed(rows)
    where = f"at {some.height} of {sites} sites"
    yield Card(f"Massive rows in a batch, {where}", f"{most['value']:.3g}", range_text(most), verdict, sign)


def _changed(rows: pl.DataFrame) -> tuple[Sign, str]:
    """Return whether the anisotropy differs without massive rows, at the site where it differs most."""
    spread = rows.filter(pl.col("metric") == "anisotropy", pl.col("variant") == "")
    other = spread.filter(pl.col("rows") == WITHOUT_MASSIVE)
    both = spread.filter(pl.col("rows") == ALL_ROWS).join(other, on="site", suffix="_without")
    if both.is_empty():
        return "open", "nothing was measured without them"
    worst = both.sort((pl.col("value") - pl.col("value_without")).abs()).row(-1, named=True)
    without: Row = {end: worst[f"{end}_without"] for end in ("value", "ci_low", "ci_high")}
    kind = relation(as_interval(worst).log_over(as_interval(without)))
    return SIGNS[kind], (
        f"with them, the anisotropy at {worst['site']} is {worst['value']:.2g}, {WORDS[kind]} {without['value']:.2g}, "
        "which it is without"
    )
