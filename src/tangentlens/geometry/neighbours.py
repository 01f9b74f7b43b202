"""Exact nearest neighbours by blocked matrix products, certified by an error bound; and duplicate rows."""

from __future__ import annotations

import functools
import math
import platform
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import linear, pad

from tangentlens.errors import InputError
from tangentlens.geometry.precision import full_precision
from tangentlens.geometry.rows import squared_lengths
from tangentlens.lazy import cached_property

# Rows on either side of a block of the distance matrix, which fits into a cache; the larger is a multiple of the other.
_BLOCK, _TALL = 512, 2048
# The most columns of a chunk, and the most that are kept of a row in chunks.
_WIDEST, _HELD = 32, 256
# Candidates beyond k: with them, the certificate seldom fails; and candidates of the few rows for which it has failed.
_SPARE, _MORE = 5, 16
# Rows that are searched by differences at once, and rows of which the middle is taken.
_FEW = 64
# Candidates that are measured at once, and of how many rows at least: few enough to fit into a cache.
_MEASURED, _LEAST = 384, 16
# If more than this part of all rows has lost a neighbour, all are searched again.
_LOST = 0.125
# Coordinates that tell most rows apart.
_TOLD_APART = 16
# The multiplier of Fibonacci hashing: the fractional digits of the golden ratio, as a signed 64-bit integer.
_MIXER = -0x61C8864680B583EB
# Up to this many bytes, scaled rows are computed once and kept; beyond, they are computed again for each block.
_CACHE = 2**28


class Neighbours(NamedTuple):
    """The nearest neighbours of each row.

    Attributes:
        distances: Euclidean distances `(n, k)` to the nearest others, ascending, in fp64.
        indices: The indices `(n, k)` of these others among the rows.
    """

    distances: Float[Tensor, "n k"]
    indices: Int[Tensor, "n k"]

    def first(self, k: int) -> Neighbours:
        """Return the `k` nearest of them."""
        return Neighbours(self.distances[:, :k], self.indices[:, :k])


@full_precision()
def nearest(rows: Float[Tensor, "n d"], k: int) -> Neighbours:
    """Return the `k` nearest other rows of each row, exactly.

    Candidates are selected by |x|^2 + |y|^2 - 2xy in fp32, and their distances computed from differences in fp64. A
    worst-case error bound (docs/measures/dimension.md) tells for which rows rounding may have changed the selection.
    Of these, more candidates are measured; then they are searched again in fp32, in fp64, and last by differences.

    Args:
        rows: Rows `(n, d)`.
        k: How many neighbours to return; there must be more than `k` rows.

    >>> nearest(torch.tensor([[0.0], [1.0], [3.0]]), k=1).distances.flatten().tolist()
    [1.0, 1.0, 2.0]
    """
    n = len(rows)
    if n <= k:
        raise InputError(f"{k} neighbours need at least {k + 1} rows, but {n} came; pass more tokens")
    cloud = _Cloud(rows)
    squares, candidates = cloud.search(min(k + _SPARE, n - 1))
    uncertain = torch.arange(n, device=rows.device)
    if candidates.shape[1] == n - 1:
        return cloud.measure(uncertain, candidates).first(k)
    found = Neighbours(squares.new_empty(n, k, dtype=torch.float64), torch.empty_like(candidates[:, :k]))
    # Most rows are certain with the first k candidates, and the spare ones need not be measured.
    for count in (k, candidates.shape[1] - 1):
        near = cloud.measure(uncertain, candidates[uncertain, :count]).first(k)
        found.distances[uncertain], found.indices[uncertain] = near
        uncertain = uncertain[~cloud.certain(cloud.norms[uncertain], near.distances[:, -1], squares[uncertain, count])]
    found.distances[uncertain], found.indices[uncertain] = cloud.nearest_again(uncertain, k)
    return found


@full_precision()
def nearest_among(left: Float[Tensor, "m d"], neighbours: Neighbours, mask: Bool[Tensor, "n"], k: int) -> Neighbours:
    """Return the nearest neighbours of some of the rows among themselves, given those among all rows.

    Only rows of whose known neighbours fewer than `k` are left are searched again.

    Args:
        left: The rows that are left `(m, d)`, at least two.
        neighbours: The nearest neighbours of each of all rows, as `nearest` returns them, at least `k`.
        mask: Which of all rows are left.
        k: How many neighbours to return.

    Returns:
        The `k` nearest neighbours of the rows that are left, or all others if they are fewer. Indices count the rows
        that are left.
    """
    k = min(k, len(left) - 1)
    before, gone = neighbours.indices[mask], ~mask[neighbours.indices[mask]]
    # Those that are left, in their order, come before those that are gone.
    order = gone.byte().argsort(dim=1, stable=True)[:, :k]
    distances = neighbours.distances[mask].gather(1, order)
    indices = (mask.cumsum(0) - 1)[before.gather(1, order)]
    lost = gone.gather(1, order[:, -1:])[:, 0].nonzero()[:, 0]
    if len(lost) > _LOST * len(left):
        return nearest(left, k)
    if len(lost):
        distances[lost], indices[lost] = _Cloud(left).nearest_again(lost, k)
    return Neighbours(distances, indices)


class _Cloud:
    """Rows around their middle and at unit scale, so that a large mean costs no digits and no square overflows."""

    def __init__(self, rows: Float[Tensor, "n d"]) -> None:
        self.rows = rows
        # The median of a few: massive rows would draw a mean away from all others, whose products would then cancel.
        few = rows[:: -(-len(rows) // _FEW)]
        self.center = few.topk(len(few) // 2 + 1, dim=0).values[-1]
        low, high, center_low, center_high = torch.stack([*rows.aminmax(), *self.center.aminmax()]).tolist()
        reach = max(high - center_low, center_high - low)
        # Multiplication by a power of two does not round.
        self.scale = min(2.0 ** -max(math.frexp(reach)[1], -1000), torch.finfo(rows.dtype).max)
        # All centred and scaled rows in fp32, once they have been needed and if they take little memory.
        self.kept: Tensor | None = None

    def part(self, which: slice | Tensor, dtype: torch.dtype = torch.float32) -> Float[Tensor, "m d"]:
        """Return some of the centred and scaled rows."""
        if dtype == torch.float32 and isinstance(which, slice) and self.kept is not None:
            return self.kept[which]
        wide = self.rows[which].to(torch.promote_types(dtype, self.rows.dtype))
        return (wide - self.center).mul_(self.scale).to(dtype)

    @cached_property
    def norms(self) -> Float[Tensor, "n"]:
        """The squared lengths of the centred and scaled rows."""
        return torch.cat([_squared_lengths(self.part(block)) for block in _blocks(len(self.rows))])

    def search(self, keep: int) -> tuple[Float[Tensor, "n keep"], Int[Tensor, "n keep"]]:
        """Return the squared distances (fp32, at unit scale) from each row to its `keep` candidates, and the latter."""
        n = len(self.rows)
        if 4 * self.rows.numel() <= _CACHE:
            self.kept = self.part(slice(None))
        found = _Smallest(self.norms, n, keep)
        for right in _blocks(n):
            squares = _squares_to(self.part(right), self.norms[right])
            # Distances are symmetric, so half of all blocks suffice.
            for left in _blocks(right.stop, _TALL):
                block = squares(self.part(left), self.norms[left])
                if left.stop == right.stop:
                    block[right.start - left.start :].fill_diagonal_(torch.inf)
                found.add(right, block.T, left.start)
                before = slice(left.start, min(left.stop, right.start))
                found.add(before, block[: _size(before)], right.start)
        return found.numbers_and_columns()

    def certain(
        self, norms: Float[Tensor, "m"], distance: Float[Tensor, "m"], beyond: Float[Tensor, "m"]
    ) -> Bool[Tensor, "m"]:
        """Return whether no row that is not a candidate can be nearer than `distance` to rows of these `norms`.

        `beyond` is the computed square of a distance: all rows that are not candidates are computed as no nearer.
        """
        distance = distance * self.scale
        # The product rounds d times, by at most half of eps. Norms, summed in fp64, round as often only in fp64.
        times = self.rows.shape[1] * (2 if beyond.dtype == torch.float64 else 1) + 8
        rounding = times * torch.finfo(beyond.dtype).eps / 2
        # A row nearer to x than `distance` is at most |x| + distance long, which bounds the rounding of its product.
        slack = rounding * (2 * norms.double().sqrt() + distance).square()
        return distance.square() + slack < beyond

    def nearest_again(self, which: Int[Tensor, "m"], k: int) -> Neighbours:
        """Return the `k` nearest others of some of the rows: from more candidates, in more digits, by differences."""
        found = self._nearest_certainly(which, k, torch.float32)
        for search in (partial(self._nearest_certainly, dtype=torch.float64), self._nearest_by_differences):
            doubtful = found.distances[:, 0].isnan().nonzero()[:, 0]
            if len(doubtful):
                again = search(which[doubtful], k)
                found.distances[doubtful], found.indices[doubtful] = again
        return found

    def _nearest_certainly(self, which: Int[Tensor, "m"], k: int, dtype: torch.dtype) -> Neighbours:
        """Return the nearest others by products in a precision; distances are NaN where its rounding may matter."""
        keep = min(k + _MORE, len(self.rows) - 1)
        distances = torch.empty(len(which), k, dtype=torch.float64, device=which.device)
        indices = torch.empty_like(distances, dtype=torch.int64)
        for part in _blocks(len(which)):
            x = self.part(which[part], dtype)
            norms = _squared_lengths(x)
            squares, candidates = self._search_for(which[part], x, norms, keep)
            distances[part], indices[part] = self.measure(which[part], candidates).first(k)
            if keep < len(self.rows) - 1:
                sure = self.certain(norms, distances[part, -1], squares[:, -1])
                distances[part] = distances[part].where(sure[:, None], math.nan)
        return Neighbours(distances, indices)

    def _search_for(
        self, which: Int[Tensor, "m"], x: Float[Tensor, "m d"], norms: Float[Tensor, "m"], keep: int
    ) -> tuple[Float[Tensor, "m keep"], Int[Tensor, "m keep"]]:
        """Return what `search` returns for some of the rows, in the precision in which these are given."""
        found = _Smallest(x, len(which), keep)
        for right in _blocks(len(self.rows), _TALL):
            y = self.part(right, x.dtype)
            block = _squares_to(y, _squared_lengths(y))(x, norms)
            columns = torch.arange(right.start, right.stop, device=which.device)
            block.masked_fill_(columns == which[:, None], torch.inf)
            found.add(slice(None), block, right.start)
        return found.numbers_and_columns()

    def _nearest_by_differences(self, which: Int[Tensor, "m"], k: int) -> Neighbours:
        """Return the nearest others of some of the rows from differences: slow, but without cancellation."""
        found = [self.measure(few, self.search_by_differences(few, k)) for few in which.split(_FEW)]
        return Neighbours(*map(torch.cat, zip(*found, strict=True)))

    def search_by_differences(self, which: Int[Tensor, "m"], keep: int) -> Int[Tensor, "m keep"]:
        """Return the `keep` nearest others of a few rows, from differences: slow, but without cancellation."""
        x = self.part(which, torch.float64)
        distances = torch.cat(
            [
                torch.cdist(x, self.part(right, torch.float64), compute_mode="donot_use_mm_for_euclid_dist")
                for right in _blocks(len(self.rows))
            ],
            dim=1,
        )
        distances[torch.arange(len(which), device=which.device), which] = torch.inf
        return distances.topk(keep, dim=1, largest=False).indices

    def measure(self, which: Int[Tensor, "m"], candidates: Int[Tensor, "m keep"]) -> Neighbours:
        """Return the candidates of the rows `which`, sorted by their distance, which is exact to fp64."""
        distances = torch.empty(candidates.shape, dtype=torch.float64, device=candidates.device)
        for part in _blocks(len(which), max(_LEAST, _MEASURED // max(1, candidates.shape[1]))):
            others = self.rows.index_select(0, candidates[part].flatten()).unflatten(0, candidates[part].shape)
            apart = others.double().sub_(self.rows[which[part]].double()[:, None])
            distances[part] = torch.linalg.vector_norm(apart, dim=2)
        distances, order = distances.sort(dim=1)
        return Neighbours(distances, candidates.gather(1, order))


def _blocks(stop: int, size: int = _BLOCK) -> Iterator[slice]:
    """Return slices of at most `size` rows that cover the rows below `stop`."""
    return (slice(start, min(start + size, stop)) for start in range(0, stop, size))


def _squared_lengths(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n"]:
    """Return the square of each length, summed in fp64 and rounded once to the precision of the rows."""
    return squared_lengths(rows).to(rows.dtype)


def _squares_to(
    y: Float[Tensor, "b d"], y_norms: Float[Tensor, "b"]
) -> Callable[[Float[Tensor, "m d"], Float[Tensor, "m"]], Float[Tensor, "m b"]]:
    """Return a function of rows and their squared lengths that returns their squared distances to the rows `y`."""
    if y.device.type == "cpu" and y.dtype == torch.float32 and _onednn_is_faster():
        weight, bias = (-2 * y).to_mkldnn(), y_norms.to_mkldnn()
        return lambda x, x_norms: linear(x.to_mkldnn(), weight, bias).to_dense().add_(x_norms[:, None])
    return lambda x, x_norms: torch.add(x_norms[:, None], y_norms).addmm_(x, y.T, alpha=-2)


@functools.cache
def _onednn_is_faster() -> bool:
    """Return whether oneDNN multiplies faster than MKL, which uses the widest instructions on Intel's processors only.

    Nearest neighbours are exact with both.
    """
    told = Path("/proc/cpuinfo")
    maker = told.read_text() if told.exists() else platform.processor()
    return torch.backends.mkldnn.is_available() and "GenuineIntel" not in maker


def _size(part: slice) -> int:
    return int(part.stop - part.start)


class _Smallest:
    """The `keep` smallest of the numbers in each row, which come in blocks of columns.

    Columns are taken in chunks. The `keep` smallest numbers of a row are in the `keep` chunks with the smallest minima,
    and only these are held: minima take a small part of the time that it takes to rank all numbers. No size depends on
    the numbers, so that the host need not wait for a GPU.
    """

    def __init__(self, like: Tensor, n: int, keep: int) -> None:
        # A power of two, because then most blocks consist of whole chunks.
        self.keep, self.width = keep, 2 ** max(0, min(_WIDEST, _HELD // max(1, keep)).bit_length() - 1)
        self.minima = like.new_full((n, keep), torch.inf)
        self.chunks = like.new_full((n, keep, self.width), torch.inf)
        self.first = torch.zeros(n, keep, dtype=torch.int64, device=like.device)

    def add(self, rows: slice, block: Float[Tensor, "m b"], start: int) -> None:
        """Take the numbers `block` of some of the rows, in the columns from `start` on."""
        short = -block.shape[1] % self.width
        chunks = (pad(block, (0, short), value=torch.inf) if short else block).unflatten(1, (-1, self.width))
        # In the order of memory, also if the block is transposed.
        minima = chunks.permute(1, 2, 0).amin(dim=1).T if block.stride(0) == 1 else chunks.amin(dim=2)
        self.minima[rows], place = torch.cat([self.minima[rows], minima], dim=1).topk(self.keep, dim=1, largest=False)
        held, old, new = place < self.keep, place.clamp_max(self.keep - 1), (place - self.keep).clamp_min(0)
        self.chunks[rows] = torch.where(held[:, :, None], _taken(self.chunks[rows], old), _taken(chunks, new))
        self.first[rows] = torch.where(held, self.first[rows].gather(1, old), start + new * self.width)

    def numbers_and_columns(self) -> tuple[Float[Tensor, "n keep"], Int[Tensor, "n keep"]]:
        """Return the smallest numbers, ascending, and their columns."""
        numbers, place = self.chunks.flatten(1).topk(self.keep, dim=1, largest=False)
        chunk = place // self.width
        return numbers, self.first.gather(1, chunk) + place - chunk * self.width


def _taken(chunks: Float[Tensor, "m c w"], which: Int[Tensor, "m keep"]) -> Float[Tensor, "m keep w"]:
    """Return some of the chunks of each row."""
    row = torch.arange(len(which), device=which.device)[:, None]
    if not chunks.is_contiguous():
        return chunks[row, which]
    # The same, and four times as fast.
    return chunks.flatten(0, 1).index_select(0, (row * chunks.shape[1] + which).flatten()).unflatten(0, which.shape)


def without_duplicates(rows: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "m d"], int]:
    """Return the distinct rows `(m, d)` in their order, and the number n - m of rows that repeat one of them."""
    kept = distinct_rows(rows)
    n_duplicates = len(rows) - len(kept)
    return (rows[kept] if n_duplicates else rows), n_duplicates


def distinct_rows(rows: Float[Tensor, "n d"]) -> Int[Tensor, "m"]:
    """Return the index of the first occurrence of each distinct row of `rows` `(n, d)`, in ascending order."""
    return equal_rows(rows)[0]


def equal_rows(rows: Float[Tensor, "n d"]) -> tuple[Int[Tensor, "m"], Int[Tensor, "n"]]:
    """Return the distinct rows, and which of them each row equals; rows are compared by a 64-bit hash.

    Args:
        rows: Rows `(n, d)`.

    Returns:
        The index of the first occurrence of each distinct row `(m,)`, ascending; and for each row `(n,)` the position
        (0 ... m - 1) of the distinct row that it equals.
    """
    odd = torch.randint(-(2**62), 2**62, (rows.shape[1],), generator=torch.Generator().manual_seed(0)) * 2 + 1
    odd = odd.to(rows.device)
    # Most rows already differ in a few coordinates, and whole rows are compared where these are equal.
    hashes = _hash(rows[:, :: -(-rows.shape[1] // _TOLD_APART)], odd)
    _, group, sizes = hashes.unique(return_inverse=True, return_counts=True)
    alike = (sizes[group] > 1).nonzero()[:, 0]
    hashes[alike] = torch.cat([_hash(rows[part], odd) for part in alike.split(_BLOCK)])
    _, group = hashes.unique(return_inverse=True)
    index = torch.arange(len(rows), device=rows.device)
    first = index.new_full((int(group.max()) + 1,), len(rows)).scatter_reduce(0, group, index, "amin")
    kept, order = first.sort()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return kept, place[group]


def _hash(rows: Float[Tensor, "n d"], odd: Int[Tensor, "m"]) -> Int[Tensor, "n"]:
    """Return a 64-bit hash of each row; it depends on the row alone, because integer sums wrap and do not round.

    Args:
        rows: Rows `(n, d)`.
        odd: Random odd numbers, one for each feature or more.
    """
    if rows.dtype == torch.float32 and rows.shape[1] % 2:
        rows = torch.nn.functional.pad(rows, (0, 1))
    # Adding 0 turns -0.0 into 0.0: the two are equal, but differ in their bits.
    bits = (rows + 0.0).contiguous().view(torch.int64)
    # Rows may differ in the sign bit alone, or in the few upper bits that a short format sets. Shifts and a product
    # spread every difference over all bits.
    bits = (bits ^ (bits >> 16) ^ (bits >> 32)) * _MIXER
    bits = bits ^ (bits >> 29) ^ (bits >> 47)
    return (bits * odd[: bits.shape[1]]).sum(dim=1)
