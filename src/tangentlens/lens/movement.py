"""The movement of a site on the probe: with and without massive rows, and as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.alignment.movement import movement
from tangentlens.alignment.movement_result import Movement, average_movement
from tangentlens.errors import InputError
from tangentlens.geometry.massive import massive_rows
from tangentlens.lens.measures import Fitting
from tangentlens.lens.records import share_records
from tangentlens.runs.records import Record
from tangentlens.runs.vocabulary import MOVEMENT, PROXY, WITHOUT_MASSIVE


@dataclass(frozen=True, eq=False)
class SiteMovement:
    """How the rows of a site moved.

    Attributes:
        since: The step from which on.
        all_rows: The movement of all rows.
        without_massive: The movement of rows that are massive at neither step, if some are; or why it could not be
            measured.
    """

    since: int
    all_rows: Movement
    without_massive: Movement | InputError | None = None


@dataclass(frozen=True, eq=False)
class Pair:
    """The rows of a site at two steps.

    Attributes:
        since: The earlier step.
        before: The rows at that step.
        after: The rows of the same tokens now.
        sequences: The sequence of each row.
        tokens: The token id of each row.
    """

    since: int
    before: Float[Tensor, "n d"]
    after: Float[Tensor, "n d"]
    sequences: Int[Tensor, "n"]
    tokens: Int[Tensor, "n"]

    def __getitem__(self, chosen: Tensor) -> Pair:
        parts = (self.before, self.after, self.sequences, self.tokens)
        return Pair(self.since, *(part[chosen] for part in parts))


def measure_movement(pair: Pair, fitting: Fitting) -> SiteMovement:
    """Measure how rows moved and, if some are massive at either step, measure it again without these.

    Args:
        pair: The rows of both steps.
        fitting: The proxy and how it is compared.
    """
    measured = SiteMovement(pair.since, _measured(pair, fitting))
    before, after = (massive_rows(rows, fitting.massive).mask for rows in (pair.before, pair.after))
    if not bool((before | after).any()):
        return measured
    try:
        return replace(measured, without_massive=_measured(pair[~(before | after)], fitting))
    except InputError as error:
        return replace(measured, without_massive=error)


def _measured(pair: Pair, fitting: Fitting) -> Movement:
    return movement(
        pair.before,
        pair.after,
        pair.sequences,
        tokens=None if fitting.bins is None else pair.tokens,
        rank=fitting.rank,
        controls=fitting.controls,
        orders=fitting.orders,
        bins=fitting.bins,
        seed=fitting.seed,
        proxy=fitting.proxy,
    )


def site_movement_records(about: Record, site: SiteMovement) -> Iterator[Record]:
    """Yield the movement of a site as records like `about`: of all rows and, if some are massive, without these."""
    yield from _records(about, site.all_rows, site.since)
    without = replace(about, quantity=MOVEMENT, rows=WITHOUT_MASSIVE)
    if isinstance(site.without_massive, Movement):
        yield from _records(without, site.without_massive, site.since)
    elif site.without_massive is not None:
        yield without.unmeasured(str(site.without_massive))


def mean_movement_records(about: Record, sites: Sequence[SiteMovement]) -> Iterator[Record]:
    """Yield means over sites that moved since the same step: of all rows, and without massive ones if some are."""
    if len({site.since for site in sites}) != 1:
        return
    yield from _means(about, [site.all_rows for site in sites], sites[0].since)
    without = [site.without_massive for site in sites]
    if any(without) and not any(isinstance(one, InputError) for one in without):
        kept = [one if isinstance(one, Movement) else site.all_rows for one, site in zip(without, sites, strict=True)]
        yield from _means(replace(about, rows=WITHOUT_MASSIVE), kept, sites[0].since)


def _means(about: Record, movements: Sequence[Movement], since: int) -> Iterator[Record]:
    """Yield means over sites, if all have the same width and were tested on the same sequences."""
    if len({(one.test.dim, len(shares)) for one in movements for shares in one.test.shares.values()}) == 1:
        yield from _records(about, average_movement(movements), since)


def _records(about: Record, moved: Movement, since: int) -> Iterator[Record]:
    yield from share_records(about, moved.test, MOVEMENT)
    here = replace(about, quantity=MOVEMENT, n=moved.n)
    for metric, variant in moved.changes:
        estimate = moved.change(metric, variant)
        if not variant:
            yield here.estimate(metric, estimate, detail=f"since step {since}")
        else:
            detail = PROXY if variant == moved.test.proxy else ""
            yield here.estimate(metric, estimate, variant=variant, rank=moved.test.rank, detail=detail)
