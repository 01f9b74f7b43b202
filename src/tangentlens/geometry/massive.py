"""Massive rows: the few rows, often attention sinks, that are many times as long as the others of their site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.rows import as_rows, power_of_two, shaped_rows

# A row is massive if it is longer than this many times the median row of its site.
THRESHOLD = 10.0
# Rows that are measured at once: few enough to fit into a cache.
_PART = 512
# How many positions and tokens are listed by name.
_LISTED = 5


@dataclass(frozen=True, eq=False)
class MassiveRows:
    """Which rows are massive.

    Attributes:
        mask: True for massive rows, `(n,)`. `x[~mask]` leaves them out of anything that takes rows.
        ratios: The length of each row, divided by the median length, `(n,)`.
        threshold: The ratio above which a row is massive.
    """

    mask: Bool[Tensor, "n"]
    ratios: Float[Tensor, "n"]
    threshold: float

    @property
    def count(self) -> int:
        """The number of massive rows."""
        return int(self.mask.sum())

    @property
    def largest(self) -> float:
        """The largest ratio of all rows, massive or not."""
        return float(self.ratios.max())

    def __repr__(self) -> str:
        return (
            f"MassiveRows({self.count} of {len(self.mask)} rows above {self.threshold:g} times the median length, "
            f"the longest {self.largest:.3g} times)"
        )


def massive_rows(x: Any, threshold: float = THRESHOLD) -> MassiveRows:
    """Find the rows that are many times as long as the median row.

    In many trained decoders a handful of tokens, such as the first of a window, are tens to hundreds of times as long
    as the others. They decide every measure that is made of second moments (docs/massive.md).

    Args:
        x: Rows `(n, d)` of one site.
        threshold: The length, in multiples of the median length, above which a row is massive; more than 1.

    Returns:
        Which rows are massive. None is if at least half of all rows are zero, because there is no length to compare
        with.

    >>> rows = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
    >>> rows[:3] *= 100
    >>> found = massive_rows(rows)
    >>> found.count, rows[~found.mask].shape
    (3, torch.Size([997, 8]))
    """
    check_threshold(threshold)
    lengths = row_lengths(shaped_rows(x))
    if not len(lengths) or not lengths.isfinite().all():
        as_rows(x)
    return massive_by_length(lengths, threshold)


def massive_by_length(lengths: Float[Tensor, "n"], threshold: float) -> MassiveRows:
    """Return which rows are massive, given their lengths or any multiple of them."""
    ratios = _over_median(lengths, lengths.median())
    return MassiveRows(ratios > threshold, ratios, threshold)


def row_lengths(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n"]:
    """Return the length of each row in fp64; that of a row that is not finite is not finite."""
    return torch.cat([_lengths(part) for part in rows.split(_PART)])


def massive_among(lengths: Float[Tensor, "n"], counts: Bool[Tensor, "n"], threshold: float) -> Bool[Tensor, "n"]:
    """Return which of the rows that count are massive, given all lengths; the host need not wait for a GPU."""
    middle = ((counts.sum() - 1) // 2).clamp_min(0)
    median = lengths.where(counts, torch.inf).sort().values.index_select(0, middle[None])
    return (_over_median(lengths, median) > threshold) & counts


def _over_median(lengths: Float[Tensor, "n"], median: Tensor) -> Float[Tensor, "n"]:
    """Return lengths over the median; 0 if that is 0."""
    return (lengths / median).where(median > 0, 0.0)


def _lengths(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n"]:
    """Return the length of each row in fp64; squares of very large or small numbers would overflow or vanish."""
    if rows.dtype != torch.float64:
        # The square of every number of a smaller type is one in fp64.
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    scale = power_of_two(rows.abs().amax(dim=1, keepdim=True))
    return (rows / scale).norm(dim=1) * scale[:, 0]


def check_threshold(threshold: Any, name: str = "threshold") -> None:
    """Raise if something makes no sense as a multiple of the median length; `name` is what a user calls it."""
    if not isinstance(threshold, int | float) or not threshold > 1:
        raise InputError(
            f"{name} must be a number above 1, the median length itself, but is {threshold!r}; 10 is usual"
        )


@dataclass(frozen=True)
class Places:
    """Where massive rows were found.

    Attributes:
        positions: How many there are at each position of a sequence.
        tokens: How many there are of each token id.

    >>> Places({0: 32, 1: 1}, {7: 33}).told()
    'at positions 0 (32 times), 1 (once); tokens 7 (33 times)'
    """

    positions: Mapping[int, int]
    tokens: Mapping[int, int]

    @classmethod
    def of(cls, massive: MassiveRows, positions: Int[Tensor, "n"], tokens: Int[Tensor, "n"]) -> Places:
        """Return where the massive rows are; a negative position or token id means that it is not known."""
        known = (ids[massive.mask].tolist() for ids in (positions, tokens))
        return cls(*(dict(Counter(number for number in numbers if number >= 0)) for numbers in known))

    def __add__(self, other: Places) -> Places:
        return Places(_summed(self.positions, other.positions), _summed(self.tokens, other.tokens))

    def told(self, token_name: Callable[[int], str] = str) -> str:
        """Return the most frequent positions and tokens in words; empty if neither is known.

        Args:
            token_name: Returns what to call a token, given its id.
        """
        at, of = _listed(self.positions, str), _listed(self.tokens, token_name)
        return "; ".join([f"at positions {at}"] * bool(at) + [f"tokens {of}"] * bool(of))


def _summed(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return dict(Counter(one) + Counter(other))


def _listed(counts: Mapping[int, int], name: Callable[[int], str]) -> str:
    """Return the most frequent entries with how often they occur, and how many others there are."""
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    shown = [f"{name(number)} ({'once' if times == 1 else f'{times} times'})" for number, times in ranked[:_LISTED]]
    rest = len(ranked) - len(shown)
    return ", ".join(shown) + (f" and {rest} others" if rest else "")
