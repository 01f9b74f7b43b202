"""Exact nearest neighbours in blocks: memory does not grow with the square of n."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError

_BLOCK = 1024


def nearest(rows: Float[Tensor, "n d"], k: int) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """Distances from each row to its `k` nearest others, ascending, in fp64, and which rows those are.

    The neighbours are found by |x|^2 + |y|^2 - 2xy around the mean, in fp64: in fp32 it confuses neighbours as soon as
    clusters lie far apart. It still loses digits, so the distances to those found are taken from the differences.
    """
    if len(rows) <= k:
        raise InputError(f"{k} neighbours need at least {k + 1} rows, but {len(rows)} came; pass more tokens")
    centred = rows.double()
    centred = centred - centred.mean(dim=0)
    norms = centred.square().sum(dim=1)
    distances, indices = [], []
    for start in range(0, len(rows), _BLOCK):
        block = centred[start : start + _BLOCK]
        squares = norms - 2 * (block @ centred.T)
        own = torch.arange(len(block), device=rows.device)
        squares[own, start + own] = torch.inf
        found = squares.topk(k, dim=1, largest=False).indices
        exact, order = (rows[found].double() - rows[start : start + _BLOCK, None].double()).norm(dim=2).sort(dim=1)
        distances.append(exact)
        indices.append(found.gather(1, order))
    return torch.cat(distances), torch.cat(indices)


def distinct_rows(rows: Float[Tensor, "n d"]) -> Int[Tensor, "m"]:
    """Indices of the first occurrence of each distinct row, ascending."""
    # Adding 0 makes -0.0 and 0.0 the same bits.
    bits = (rows.contiguous() + 0.0).view(torch.int32 if rows.dtype == torch.float32 else torch.int64).long()
    # Numbers that were widened from a shorter format end in zeros; folding spreads what they hold over all bits.
    bits = bits ^ (bits >> 16) ^ (bits >> 32)
    generator = torch.Generator().manual_seed(0)
    odd = torch.randint(-(2**62), 2**62, (rows.shape[1],), generator=generator) * 2 + 1
    # Integer sums wrap and do not round, so equal rows have equal hashes; 64 bits keep different rows apart.
    hashes = (bits * odd.to(rows.device)).sum(dim=1)
    _, group = hashes.unique(return_inverse=True)
    order = torch.arange(len(rows), device=rows.device)
    first = order.new_full((int(group.max()) + 1,), len(rows)).scatter_reduce(0, group, order, "amin")
    return first.sort().values
