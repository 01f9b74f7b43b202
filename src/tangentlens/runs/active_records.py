"""What the active-concepts test measured, as records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tangentlens.alignment.active_result import ActiveConcepts
from tangentlens.runs.records import Record
from tangentlens.runs.vocabulary import GRADIENT


def active_records(about: Record, result: ActiveConcepts, kind: str = "") -> Iterator[Record]:
    """Yield every number of an active-concepts test as records like `about`.

    A metric is `active_` and its name in the test's table; with `token_` in it, it is token by token. The rank is the
    number of active concepts, and the detail says of how many.

    Args:
        about: What the records have in common.
        result: The result of the test.
        kind: What to put before the names of variants, to tell several tests of one site apart, such as `sparse`.
    """
    about = replace(about, quantity=GRADIENT, order=1.0, rank=result.n_active, n=result.n_tokens)
    about = replace(about, detail=f"of {result.n_concepts} concepts, {result.codes_per_token:.3g} used by a token")
    for (metric, variant), estimate in result.estimates().items():
        named = "_".join(name for name in (kind, variant) if name)
        yield replace(about, variant=named).estimate(f"active_{metric}", estimate)
