"""Concepts in words, as records: what a lens keeps of each concept of a site if it is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.alignment.concepts import BEFORE, Concept, Concepts, describe_concepts, matched
from tangentlens.alignment.frequency import checked_counts
from tangentlens.alignment.rows import TokenRows, first_half
from tangentlens.errors import InputError
from tangentlens.geometry.massive import massive_rows
from tangentlens.lens.measures import Fitting
from tangentlens.runs.records import Record
from tangentlens.runs.vocabulary import ACTIVATION, ALL_ROWS, GRADIENT, WITHOUT_MASSIVE

# Returns the text of token ids.
Text = Callable[[list[int]], str]


@dataclass(frozen=True, eq=False)
class Wording:
    """What is needed to put concepts into words.

    Attributes:
        text: Returns the text of token ids.
        counts: Occurrences of each token id in the corpus, if they are known.
    """

    text: Text
    counts: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Earlier:
    """The directions of the concepts at the last due step, to see which of them are still there."""

    step: int
    directions: Float[Tensor, "k d"]


def as_wording(given: Any, counts: Any = None) -> Wording | None:
    """Return what puts concepts into words; None for None.

    Args:
        given: A tokenizer, whose `decode` is used, or a function from a list of token ids to their text.
        counts: Occurrences of each token id in the corpus, if they are known.
    """
    text = getattr(given, "decode", given)
    if text is not None and not callable(text):
        raise InputError(
            f"concepts must be a tokenizer, or a function from a list of token ids to their text, but is {given!r}"
        )
    return None if text is None else Wording(text, None if counts is None else checked_counts(counts))


def concept_records(
    about: Record,
    rows: TokenRows,
    around: Int[Tensor, "n width"],
    fit_on: Float[Tensor, "m d"] | None,
    fitting: Fitting,
    wording: Wording,
    earlier: Earlier | None = None,
) -> tuple[list[Record], Earlier | None]:
    """Return what is to be written of the concepts of a site, and their directions, for the next due step.

    If the rows do not allow it, one record says why, and there are no directions.

    Massive rows are left out: with them, most concepts would be spent on a handful of tokens.

    Args:
        about: What the records have in common.
        rows: The rows of the step.
        around: The tokens around each of the rows.
        fit_on: Activations of other sequences to fit to; without them half of the sequences fit.
        fitting: The rank, the seed and the threshold of massive rows.
        wording: What puts token ids into words.
        earlier: The concepts of the last due step, if there was one.
    """
    massive = massive_rows(rows.activations, fitting.massive).mask
    here = replace(about, rows=WITHOUT_MASSIVE if bool(massive.any()) else ALL_ROWS)
    rows, around = rows[~massive], around[~massive]
    try:
        if fit_on is None:
            fits = first_half(rows.sequences)
            fit_on, rows, around = rows.activations[fits], rows[~fits], around[~fits]
        else:
            fit_on = fit_on[~massive_rows(fit_on, fitting.massive).mask]
        found = describe_concepts(fit_on, rows, fitting.rank, fitting.seed, wording.counts)
        records = list(_told(replace(here, n=len(rows.tokens)), found, around, wording.text))
    except InputError as error:
        return [replace(about, quantity=ACTIVATION, variant="concepts").unmeasured(f"no concepts: {error}")], None
    if earlier is not None:
        records += _kept(here, found.directions, earlier)
    return records, Earlier(about.step, found.directions)


def _told(here: Record, found: Concepts, around: Int[Tensor, "n width"], text: Text) -> Iterator[Record]:
    """Yield the records of all concepts."""
    yield replace(here, quantity=ACTIVATION, metric="concept_chance", value=1 / found.directions.shape[1])
    for number, concept in enumerate(found.described):
        yield from _told_one(replace(here, variant=str(number)), concept, around, text)


def _told_one(here: Record, concept: Concept, around: Int[Tensor, "n width"], text: Text) -> Iterator[Record]:
    """Yield the records of one concept."""
    activation = replace(here, quantity=ACTIVATION)
    yield activation.estimate("concept_variance", concept.variance)
    yield replace(here, quantity=GRADIENT).estimate("concept_energy", concept.energy)
    yield replace(activation, metric="concept_usage", value=concept.usage)
    yield replace(activation, metric="concept_found_again", value=concept.found_again)
    if concept.frequency is not None:
        yield replace(activation, metric="concept_frequency", value=concept.frequency)
    pairs = zip(around[concept.top].tolist(), concept.contributions.tolist(), strict=True)
    words = [[*_in_context(ids, text), round(size, 3)] for ids, size in pairs]
    yield replace(activation, metric="concept_tokens", value=float(len(words)), detail=json.dumps(words))


def _kept(here: Record, directions: Float[Tensor, "k d"], earlier: Earlier) -> Iterator[Record]:
    """Yield, for each concept, its match among those of the last due step and their cosine."""
    matches, cosines = matched(directions, earlier.directions)
    for number, (match, cosine) in enumerate(zip(matches.tolist(), cosines.tolist(), strict=True)):
        activation = replace(here, quantity=ACTIVATION, variant=str(number))
        yield replace(activation, metric="concept_kept", value=cosine, detail=f"{earlier.step}:{match}")


def _in_context(ids: list[int], text: Text) -> tuple[str, str, str]:
    """Return the text before a token, the token, and the text after it."""
    parts = ids[:BEFORE], ids[BEFORE : BEFORE + 1], ids[BEFORE + 1 :]
    try:
        before, token, after = (str(text([one for one in part if one >= 0])) for part in parts)
    except Exception as error:
        # It is the caller's function, and must not end a training.
        raise InputError(f"the text of token ids must be found by `concepts`, but it raised {error!r}") from error
    return before, token, after
