"""Exact nearest neighbours by blocked matrix products, certified by an error bound; and duplicate rows."""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tangentlens.errors import InputError

# Rows in a block of the distance matrix.
_BLOCK = 1024
# Candidates beyond k: with them, the certificate seldom fails.
_SPARE = 2
# Rows that are searched by differences at once.
_FEW = 64
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

    def cpu(self) -> "Neighbours":
        """Return them on the CPU, for what looks at a few numbers many times and would wait for a GPU each time."""
        return Neighbours(self.distances.cpu(), self.indices.cpu())


def nearest(rows: Float[Tensor, "n d"], k: int) -> Neighbours:
    """Return the `k` nearest other rows of each row, exactly.

    Candidates are selected by |x|^2 + |y|^2 - 2xy in fp32, and their distances computed from differences in fp64. A
    worst-case error bound (docs/measures/dimension.md) tells for which rows rounding may have changed the selection.
    These are searched again in fp64, and where that is not certain either, by differences alone.

    Args:
        rows: Rows `(n, d)`.
        k: How many neighbours to return; there must be more than `k` rows.

    >>> nearest(torch.tensor([[0.0], [1.0], [3.0]]), k=1).distances.flatten().tolist()
    [1.0, 1.0, 2.0]
    """
    n = len(rows)
    if n <= k:
        raise InputError(f"{k} neighbours need at least {k + 1} rows, but {n} came; pass more tokens")
    keep = min(k + _SPARE, n - 1)
    cloud = _Cloud(rows)
    squares, candidates = cloud.search(keep)
    everything = torch.arange(n, device=rows.device)
    distances, indices = cloud.measure(everything, candidates)
    if keep < n - 1:
        uncertain = everything[~cloud.certain(everything, distances[:, k - 1], squares[:, -1])]
        certain = []
        for some in uncertain.split(_BLOCK):
            squares, candidates = cloud.search_again(some, keep)
            distances[some], indices[some] = cloud.measure(some, candidates)
            certain.append(cloud.certain(some, distances[some, k - 1], squares[:, -1]))
        for few in uncertain[~torch.cat(certain)].split(_FEW):
            distances[few], indices[few] = cloud.measure(few, cloud.search_by_differences(few, keep))
    return Neighbours(distances[:, :k], indices[:, :k])


class _Cloud:
    """Rows around their mean and at unit scale, so that a large mean costs no digits and no square overflows."""

    def __init__(self, rows: Float[Tensor, "n d"]) -> None:
        self.rows = rows
        self.center = rows.mean(dim=0, dtype=torch.float64).to(rows.dtype)
        reach = float(torch.maximum(rows.amax(dim=0) - self.center, self.center - rows.amin(dim=0)).amax())
        # Multiplication by a power of two does not round.
        self.scale = min(2.0 ** -max(math.frexp(reach)[1], -1000), torch.finfo(rows.dtype).max)

    def part(self, which: slice | Tensor, dtype: torch.dtype = torch.float32) -> Float[Tensor, "m d"]:
        """Return some of the centred and scaled rows."""
        if dtype == torch.float32 and isinstance(which, slice) and self._kept is not None:
            return self._kept[which]
        wide = self.rows[which].to(torch.promote_types(dtype, self.rows.dtype))
        return ((wide - self.center) * self.scale).to(dtype)

    @cached_property
    def _kept(self) -> Float[Tensor, "n d"] | None:
        """All centred and scaled rows in fp32, or None if they would take too much memory."""
        if 4 * self.rows.numel() > _CACHE:
            return None
        return ((self.rows - self.center) * self.scale).float()

    @cached_property
    def norms(self) -> Float[Tensor, "n"]:
        """The squared lengths of the centred and scaled rows."""
        return torch.cat([self.part(block).square().sum(dim=1) for block in _blocks(len(self.rows))])

    def search(self, keep: int) -> tuple[Float[Tensor, "n keep"], Int[Tensor, "n keep"]]:
        """Return the squared distances (fp32, at unit scale) from each row to its `keep` candidates, and the latter."""
        squares = self.norms.new_full((len(self.rows), keep), torch.inf)
        candidates = torch.zeros(squares.shape, dtype=torch.int64, device=squares.device)
        for right in _blocks(len(self.rows)):
            y = self.part(right)
            # Distances are symmetric, so half of all blocks suffice.
            for left in _blocks(right.stop):
                block = torch.addmm(self.norms[right], self.part(left), y.T, alpha=-2).add_(self.norms[left, None])
                if left == right:
                    block.fill_diagonal_(torch.inf)
                else:
                    _keep_smallest(squares[right], candidates[right], block.T, left.start)
                _keep_smallest(squares[left], candidates[left], block, right.start)
        return squares, candidates

    def certain(
        self, which: Int[Tensor, "m"], distance: Float[Tensor, "m"], beyond: Float[Tensor, "m"]
    ) -> Bool[Tensor, "m"]:
        """Return whether no row that is not a candidate can be nearer than `distance`.

        `beyond` is the computed square of the distance to the farthest candidate: all other rows are computed as
        farther.
        """
        distance = distance * self.scale
        rounding = (self.rows.shape[1] + 8) * torch.finfo(beyond.dtype).eps
        # A row nearer to x than `distance` is at most |x| + distance long, which bounds the rounding of its product.
        slack = rounding * (2 * self.norms[which].double().sqrt() + distance).square()
        return distance.square() + slack < beyond

    def search_again(self, which: Int[Tensor, "m"], keep: int) -> tuple[Float[Tensor, "m keep"], Int[Tensor, "m keep"]]:
        """Return what `search` returns for some of the rows, computed in fp64."""
        x, everything = self.part(which, torch.float64), torch.arange(len(self.rows), device=which.device)
        squares = x.new_full((len(which), keep), torch.inf)
        candidates = torch.zeros(squares.shape, dtype=torch.int64, device=squares.device)
        for right in _blocks(len(self.rows)):
            y = self.part(right, torch.float64)
            block = torch.addmm(y.square().sum(dim=1), x, y.T, alpha=-2).add_(x.square().sum(dim=1, keepdim=True))
            block.masked_fill_(which[:, None] == everything[right], torch.inf)
            _keep_smallest(squares, candidates, block, right.start)
        return squares, candidates

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
        for part in _blocks(len(which)):
            origin = self.rows[which[part]].double()
            for column in range(candidates.shape[1]):
                other = self.rows[candidates[part, column]].double()
                distances[part, column] = (other - origin).norm(dim=1)
        distances, order = distances.sort(dim=1)
        return Neighbours(distances, candidates.gather(1, order))


def _blocks(stop: int) -> Iterator[slice]:
    """Return slices of at most `_BLOCK` rows that cover the rows below `stop`."""
    return (slice(start, min(start + _BLOCK, stop)) for start in range(0, stop, _BLOCK))


def _keep_smallest(
    squares: Float[Tensor, "m keep"], candidates: Int[Tensor, "m keep"], block: Float[Tensor, "m b"], first: int
) -> None:
    """Merge the columns of `block`, which stand for the rows from `first` on, into the smallest so far, in place."""
    # In most blocks most rows have no nearer neighbour, and a minimum costs far less than a selection. A GPU selects
    # faster than the host can wait to hear where it would be of use.
    waits = block.device.type != "cpu"
    better = slice(None) if waits else (block.amin(dim=1) < squares[:, -1]).nonzero()[:, 0]
    keep = squares.shape[1]
    values, columns = block[better].topk(min(keep, block.shape[1]), dim=1, largest=False)
    values, place = torch.cat([squares[better], values], dim=1).topk(keep, dim=1, largest=False)
    squares[better] = values
    candidates[better] = torch.cat([candidates[better], columns + first], dim=1).gather(1, place)


def without_duplicates(rows: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "m d"], int]:
    """Return the distinct rows `(m, d)` in their order, and the number n - m of rows that repeat one of them."""
    kept = distinct_rows(rows)
    n_duplicates = len(rows) - len(kept)
    return (rows[kept] if n_duplicates else rows), n_duplicates


def check_enough(what: str, least: int, n_distinct: int, n_duplicates: int) -> None:
    """Raise an error if there are fewer distinct rows than `what` needs.

    Args:
        what: What needs the rows, for the error message.
        least: How many distinct rows it needs.
        n_distinct: Number of distinct rows.
        n_duplicates: Number of rows that were dropped because they repeat one of these.
    """
    if n_distinct < least:
        raise InputError(
            f"{what} needs at least {least} distinct rows, but {n_distinct + n_duplicates} rows came, {n_duplicates} "
            "of them duplicates; pass more tokens"
        )


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
    hashes = torch.cat([_hash(part, odd) for part in rows.split(_BLOCK)])
    _, group = hashes.unique(return_inverse=True)
    index = torch.arange(len(rows), device=rows.device)
    first = index.new_full((int(group.max()) + 1,), len(rows)).scatter_reduce(0, group, index, "amin")
    kept, order = first.sort()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return kept, place[group]


def _hash(rows: Float[Tensor, "n d"], odd: Int[Tensor, "d"]) -> Int[Tensor, "n"]:
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
