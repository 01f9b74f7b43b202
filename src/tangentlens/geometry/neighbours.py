"""Exact nearest neighbours at the speed of the matrix product: each pair once, in blocks, with a certificate."""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tangentlens.errors import InputError

_BLOCK = 1024
# Candidates beyond k: with them, rounding can hardly hide a neighbour, and the certificate seldom fails.
_SPARE = 2
# Rows that are searched by differences at once.
_FEW = 64
# An odd number without a pattern: the golden ratio's digits, as a signed integer.
_MIXER = -0x61C8864680B583EB
# Up to this many bytes, rows are kept as the search needs them; beyond, they are made anew for each block.
_CACHE = 2**28


class Neighbours(NamedTuple):
    """Distances from each row to its nearest others, ascending, in fp64, and which rows those are."""

    distances: Float[Tensor, "n k"]
    indices: Int[Tensor, "n k"]


def nearest(rows: Float[Tensor, "n d"], k: int) -> Neighbours:
    """The `k` nearest others of each row.

    Candidates come from |x|^2 + |y|^2 - 2xy in fp32, their distances from differences in fp64. A row whose candidates
    rounding may have decided, by the worst-case bound of docs/concepts.md ('Neighbours'), is searched again in fp64,
    and if that may not do either, by differences alone.

    >>> nearest(torch.tensor([[0.0], [1.0], [3.0]]), k=1).distances.flatten().tolist()
    [1.0, 1.0, 2.0]
    """
    n = len(rows)
    if n <= k:
        raise InputError(f"{k} neighbours need at least {k + 1} rows, but {n} came; pass more tokens")
    keep = min(k + _SPARE, n - 1)
    cloud = _Cloud(rows)
    squares, found = cloud.search(keep)
    everything = torch.arange(n, device=rows.device)
    distances, indices = cloud.measure(everything, found)
    if keep < n - 1:
        unsure = everything[~cloud.certain(everything, distances[:, k - 1], squares[:, -1])]
        for some in unsure.split(_BLOCK):
            squares, found = cloud.search_again(some, keep)
            distances[some], indices[some] = cloud.measure(some, found)
            still = some[~cloud.certain(some, distances[some, k - 1], squares[:, -1])]
            for few in still.split(_FEW):
                distances[few], indices[few] = cloud.measure(few, cloud.search_by_differences(few, keep))
    return Neighbours(distances[:, :k], indices[:, :k])


class _Cloud:
    """Rows around their mean, at unit scale: an offset costs no digits, and no square overflows."""

    def __init__(self, rows: Float[Tensor, "n d"]) -> None:
        self.rows = rows
        self.center = rows.mean(dim=0, dtype=torch.float64).to(rows.dtype)
        reach = float(torch.maximum(rows.amax(dim=0) - self.center, self.center - rows.amin(dim=0)).amax())
        # A power of two scales without rounding.
        self.scale = min(2.0 ** -max(math.frexp(reach)[1], -1000), torch.finfo(rows.dtype).max)

    def part(self, which: slice | Tensor, dtype: torch.dtype = torch.float32) -> Float[Tensor, "m d"]:
        if dtype == torch.float32 and isinstance(which, slice) and self._kept is not None:
            return self._kept[which]
        wide = self.rows[which].to(torch.promote_types(dtype, self.rows.dtype))
        return ((wide - self.center) * self.scale).to(dtype)

    @cached_property
    def _kept(self) -> Float[Tensor, "n d"] | None:
        if 4 * self.rows.numel() > _CACHE:
            return None
        return ((self.rows - self.center) * self.scale).float()

    @cached_property
    def norms(self) -> Float[Tensor, "n"]:
        return torch.cat([self.part(block).square().sum(dim=1) for block in _blocks(len(self.rows))])

    def search(self, keep: int) -> tuple[Float[Tensor, "n keep"], Int[Tensor, "n keep"]]:
        """Squared distances (fp32, at unit scale) to the `keep` nearest, and which those are."""
        squares = self.norms.new_full((len(self.rows), keep), torch.inf)
        found = torch.zeros(squares.shape, dtype=torch.int64, device=squares.device)
        for right in _blocks(len(self.rows)):
            y = self.part(right)
            # A distance is that of both rows, so half of all blocks will do.
            for left in _blocks(right.stop):
                block = torch.addmm(self.norms[right], self.part(left), y.T, alpha=-2).add_(self.norms[left, None])
                if left == right:
                    block.fill_diagonal_(torch.inf)
                else:
                    _keep_smallest(squares[right], found[right], block.T, left.start)
                _keep_smallest(squares[left], found[left], block, right.start)
        return squares, found

    def certain(
        self, which: Int[Tensor, "m"], distance: Float[Tensor, "m"], beyond: Float[Tensor, "m"]
    ) -> Bool[Tensor, "m"]:
        """Whether no row outside the candidates of a row, all of them `beyond`, can be nearer than `distance`."""
        distance = distance * self.scale
        rounding = (self.rows.shape[1] + 8) * torch.finfo(beyond.dtype).eps
        # A row that is nearer is no longer than |x| + distance, which bounds what rounding may have done to it.
        slack = rounding * (2 * self.norms[which].double().sqrt() + distance).square()
        return distance.square() + slack < beyond

    def search_again(self, which: Int[Tensor, "m"], keep: int) -> tuple[Float[Tensor, "m keep"], Int[Tensor, "m keep"]]:
        """The same for some rows, in fp64."""
        x = self.part(which, torch.float64)
        squares = x.new_full((len(which), keep), torch.inf)
        found = torch.zeros(squares.shape, dtype=torch.int64, device=squares.device)
        for right in _blocks(len(self.rows)):
            y = self.part(right, torch.float64)
            block = torch.addmm(y.square().sum(dim=1), x, y.T, alpha=-2).add_(x.square().sum(dim=1, keepdim=True))
            own = ((which >= right.start) & (which < right.stop)).nonzero()[:, 0]
            block[own, which[own] - right.start] = torch.inf
            _keep_smallest(squares, found, block, right.start)
        return squares, found

    def search_by_differences(self, which: Int[Tensor, "m"], keep: int) -> Int[Tensor, "m keep"]:
        """The nearest of a few rows, without products: slow, but nothing cancels."""
        x = self.part(which, torch.float64)
        far = torch.cat(
            [
                torch.cdist(x, self.part(right, torch.float64), compute_mode="donot_use_mm_for_euclid_dist")
                for right in _blocks(len(self.rows))
            ],
            dim=1,
        )
        far[torch.arange(len(which), device=which.device), which] = torch.inf
        return far.topk(keep, dim=1, largest=False).indices

    def measure(self, which: Int[Tensor, "m"], found: Int[Tensor, "m keep"]) -> Neighbours:
        """Distances from the rows `which` to those found, by differences, in fp64, ascending."""
        distances = torch.empty(found.shape, dtype=torch.float64, device=found.device)
        for part in _blocks(len(which)):
            origin = self.rows[which[part]].double()
            for column in range(found.shape[1]):
                other = self.rows[found[part, column]].double()
                distances[part, column] = (other - origin).norm(dim=1)
        distances, place = distances.sort(dim=1)
        return Neighbours(distances, found.gather(1, place))


def _blocks(stop: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, stop)) for start in range(0, stop, _BLOCK))


def _keep_smallest(
    squares: Float[Tensor, "m keep"], found: Int[Tensor, "m keep"], block: Float[Tensor, "m b"], first: int
) -> None:
    """Merge the columns of `block`, which are the rows from `first` on, into the smallest so far."""
    # Most rows find nothing nearer in most blocks, and a minimum costs far less than a selection.
    better = (block.amin(dim=1) < squares[:, -1]).nonzero()[:, 0]
    keep = squares.shape[1]
    values, columns = block[better].topk(min(keep, block.shape[1]), dim=1, largest=False)
    values, place = torch.cat([squares[better], values], dim=1).topk(keep, dim=1, largest=False)
    squares[better] = values
    found[better] = torch.cat([found[better], columns + first], dim=1).gather(1, place)


def without_duplicates(rows: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "m d"], int]:
    """The distinct rows, and how many repeat one of them."""
    kept = distinct_rows(rows)
    n_duplicates = len(rows) - len(kept)
    return (rows[kept] if n_duplicates else rows), n_duplicates


def check_enough(what: str, least: int, n_distinct: int, n_duplicates: int) -> None:
    """Refuse fewer distinct rows than `what` needs."""
    if n_distinct < least:
        raise InputError(
            f"{what} needs at least {least} distinct rows, but {n_distinct + n_duplicates} rows came, {n_duplicates} "
            "of them duplicates; pass more tokens"
        )


def distinct_rows(rows: Float[Tensor, "n d"]) -> Int[Tensor, "m"]:
    """Indices of the first occurrence of each distinct row, ascending."""
    return equal_rows(rows)[0]


def equal_rows(rows: Float[Tensor, "n d"]) -> tuple[Int[Tensor, "m"], Int[Tensor, "n"]]:
    """Indices of the first occurrence of each distinct row, ascending, and the place of each row's own among them."""
    hashes = torch.cat([_hash(part) for part in rows.split(_BLOCK)])
    _, group = hashes.unique(return_inverse=True)
    order = torch.arange(len(rows), device=rows.device)
    first = order.new_full((int(group.max()) + 1,), len(rows)).scatter_reduce(0, group, order, "amin")
    kept, turn = first.sort()
    place = torch.empty_like(turn)
    place[turn] = torch.arange(len(turn), device=turn.device)
    return kept, place[group]


def _hash(rows: Float[Tensor, "n d"]) -> Int[Tensor, "n"]:
    """64 bits of each row: equal rows have equal ones, since integer sums wrap and do not round."""
    if rows.dtype == torch.float32 and rows.shape[1] % 2:
        rows = torch.nn.functional.pad(rows, (0, 1))
    # Adding 0 makes -0.0 and 0.0 the same bits.
    bits = (rows + 0.0).contiguous().view(torch.int64)
    # A sign, or the few bits of a short format, sit at one end; folding and multiplying spread them over all bits.
    bits = (bits ^ (bits >> 16) ^ (bits >> 32)) * _MIXER
    bits = bits ^ (bits >> 29) ^ (bits >> 47)
    odd = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=torch.Generator().manual_seed(0)) * 2 + 1
    return (bits * odd.to(rows.device)).sum(dim=1)
