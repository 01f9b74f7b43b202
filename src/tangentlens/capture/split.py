"""The moments of one pass, those of massive rows apart from the others: on the CPU and, without waiting, on a GPU."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from tangentlens.geometry.massive import massive_among, massive_rows, row_lengths
from tangentlens.geometry.moments import Moments

# The moments of ordinary rows and of massive ones; None of none.
Pair = tuple[Moments | None, Moments | None]


def split_of(rows: Float[Tensor, "n d"], counts: Bool[Tensor, "n"], threshold: float) -> Split | SplitThere:
    """Return the split of a pass, by the lengths of its activations.

    Args:
        rows: The activations; on the CPU, those that count.
        counts: Which of them count.
        threshold: How many times as long as the median row a row must be to count as massive.
    """
    if rows.device.type == "cpu":
        return Split(massive_rows(rows, threshold).mask)
    lengths = row_lengths(rows)
    counts = counts & _are_finite(lengths, counts)
    return SplitThere(counts, massive_among(lengths, counts, threshold))


class Split:
    """A split on the CPU, which selects rows. Rows that are not finite raise an `InputError`.

    Args:
        massive: Which rows are massive.
    """

    def __init__(self, massive: Bool[Tensor, "n"]) -> None:
        self.massive = massive
        # Most passes have no massive rows, and then no row is copied.
        self._has_some = bool(massive.any())

    def moments(self, rows: Float[Tensor, "n d"]) -> Pair:
        """Return the moments of rows."""
        if not self._has_some:
            return Moments.of(rows), None
        return Moments.of(rows[~self.massive]), Moments.of(rows[self.massive])

    def both(self, activations: Pair, gradients: Float[Tensor, "n d"]) -> tuple[Pair, Pair]:
        """Return the moments of the activations and those of their gradients."""
        return activations, self.moments(gradients)


class SplitThere:
    """A split on a GPU, by masks: to select rows, the host would have to wait for their number.

    Of rows that are not finite there are no moments.

    Args:
        counts: Which rows count.
        massive: Which of these are massive.
    """

    def __init__(self, counts: Bool[Tensor, "n"], massive: Bool[Tensor, "n"]) -> None:
        self.counts, self.massive = counts, massive
        # At most half of the rows are longer than the median, so that no others need to be multiplied twice.
        self._longest = massive.byte().topk(len(massive) // 2).indices

    def moments(self, rows: Float[Tensor, "n d"]) -> Pair:
        """Return the moments of rows."""
        few, longest = self.massive[self._longest], rows[self._longest]
        return Moments.of_chosen(rows, self.counts & ~self.massive), Moments.of_chosen(longest, few)

    def both(self, activations: Pair, gradients: Float[Tensor, "n d"]) -> tuple[Pair, Pair]:
        """Return the moments of the activations and those of their gradients."""
        finite = _are_finite(row_lengths(gradients), self.counts)
        ordinary, few = (None if one is None else one.where(finite) for one in activations)
        return (ordinary, few), SplitThere(self.counts & finite, self.massive & finite).moments(gradients)


def _are_finite(lengths: Float[Tensor, "n"], counts: Bool[Tensor, "n"]) -> Bool[Tensor, ""]:
    """Return whether all rows that count are finite."""
    return (lengths.isfinite() | ~counts).all()
