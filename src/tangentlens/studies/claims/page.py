"""The ledger as a page of Markdown: a table of verdicts, then what each of them rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from tangentlens.errors import InputError
from tangentlens.runs.files import make_directory, write_whole
from tangentlens.studies.claims.ledger import FINISHED, Entry, by_population, letters
from tangentlens.studies.claims.phases import phases
from tangentlens.studies.claims.shapes import depth_shapes

# What is between these marks is written anew; the rest of a page stays.
BEGIN, END = "<!-- ledger -->", "<!-- /ledger -->"

# What a reader has to know of the two tables at the end.
_SHAPES = (
    "Each stratum at the last step, with networks in place of batches. The difference is the one that the shape",
    "rests on: between a peak or a dip and an end, or between the two ends. If the shape is undecided, it is the",
    "largest difference between two sites. A difference whose interval excludes 0 does not make a shape by itself.",
    "Intervals are 95% intervals over networks, not corrected for the number of rows of the table.",
)
_TURNS = (
    "'How many' is the number of networks that show a turn; the others are left out. A curve that is highest at the",
    "first or the last due step has no peak. Networks of one kind are taken together, whatever their text. Intervals",
    "are 95% intervals over networks, not corrected for the number of rows of the table. A turn is known to about one",
    "doubling of the step.",
)


def write_page(path: Path, entries: Sequence[Entry], records: pl.DataFrame) -> None:
    """Write the ledger into a file, between its marks if it has them.

    Args:
        path: The file.
        entries: The ledger of the records.
        records: The records of all runs, as `read_runs` returns them.
    """
    before, after = _around(path)
    made = "\n".join(_lines(entries, records))
    make_directory(path.parent)
    write_whole(path, f"{before}{BEGIN}\n\n{made}\n\n{END}{after}".encode())


def _around(path: Path) -> tuple[str, str]:
    """Return what a page holds before and after the ledger; without marks, the ledger comes last."""
    if not path.exists():
        return "# Ledger of claims\n\n", "\n"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} must be a Markdown file in UTF-8, but cannot be read ({error})") from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin:
        return f"{text.rstrip()}\n\n", "\n"
    if not end:
        raise InputError(f"{path} must have {END} after {BEGIN}, but has not; add it where the ledger should end")
    return before, after


def _lines(entries: Sequence[Entry], records: pl.DataFrame) -> Iterator[str]:
    shapes, turns = depth_shapes(records), phases(records)
    for population, some in by_population(entries).items():
        counts = Counter(entry.verdict for entry in some)
        told = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
        claims = "1 claim" if len(some) == 1 else f"{len(some)} claims"
        yield f"{(population or 'too few networks').capitalize()}: {claims}, {told}."
        yield ""
        yield from _table(
            ("", "claim", "effect", "lowest to highest", "claimed", "verdict"),
            [(e.claim.id, e.claim.statement, e.effect, _spread(e), e.margin, f"**{e.verdict}**") for e in some],
        )
        yield ""
    called = letters(entries)
    yield "## What each verdict rests on"
    yield ""
    yield "Networks are of these kinds, which are called strata:"
    yield ""
    yield from _table(("", "stratum"), [(letter, name) for name, letter in called.items()])
    for entry in entries:
        yield ""
        yield from _details(entry, called)
    if shapes.height:
        yield ""
        yield "## Shapes over depth"
        yield ""
        yield from _SHAPES
        yield ""
        rows = [(called.get(stratum, stratum), *others) for stratum, *others in shapes.iter_rows()]
        yield from _table(shapes.columns, rows)
    if turns.height:
        yield ""
        yield "## When training turns"
        yield ""
        yield from _TURNS
        yield ""
        rows = [
            (kind, turn, n, step, f"{at:.2f} [{low:.2f}, {high:.2f}]")
            for kind, turn, n, step, at, low, high in turns.iter_rows()
        ]
        yield from _table(("networks", "turn", "how many", "step", "doublings, log2(step + 1)"), rows)


def _spread(entry: Entry) -> str:
    """Return the range of the means of strata, or of finished models, which a mean over them hides."""
    values = [mean for name, mean in entry.strata.items() if name != FINISHED]
    values += entry.each(FINISHED).values()
    ends = [f"{end:.3g}" for end in (min(values), max(values))] if values else []
    return " to ".join(dict.fromkeys(ends))


def _details(entry: Entry, called: Mapping[str, str]) -> Iterator[str]:
    """Yield what a verdict rests on: the number, the networks, and the command that redoes it."""
    claim, sizes = entry.claim, entry.n_networks
    yield f"**{claim.id}. {claim.statement}**"
    yield ""
    if entry.population:
        yield f"- Judged in: {entry.population}."
    yield f"- Source: {claim.source}; {claim.known}."
    yield f"- Effect: {claim.effect}. Claimed: {entry.margin}."
    if entry.judgement is not None:
        level = f"{100 * entry.judgement.level:.3g}%"
        yield f"- Measured: {entry.effect}, a {level} interval over networks; {entry.verdict}."
    means = [f"{mean:.3g} in {called[name]} ({sizes[name]})" for name, mean in entry.strata.items() if name != FINISHED]
    if means:
        yield f"- Means, with the number of networks: {', '.join(means)}."
    # A mean over such different models says less than each of them.
    each = [f"{name} {value:.3g}" for name, value in entry.each(FINISHED).items()]
    if each:
        yield f"- Each: {', '.join(each)}."
    if entry.why:
        yield f"- {entry.why[0].upper()}{entry.why[1:]}."
    yield f"- Redo: `{entry.command}`, then `tangentlens claims`."


def _table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |"
