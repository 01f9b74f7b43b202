"""One occurrence of each token type, drawn while a text goes by."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def draw_occurrences(
    source: Iterable[Int[Tensor, "length"]], types: Int[Tensor, "t"], vocabulary: int, seed: int
) -> tuple[Int[Tensor, "w length"], Bool[Tensor, "w length"]]:
    """The windows that hold the occurrence drawn for each type, any of its with the same chance, and where these are.

    >>> source = torch.tensor([[1, 2], [1, 3], [4, 4]])
    >>> tokens, drawn = draw_occurrences(source, types=torch.tensor([2, 3]), vocabulary=5, seed=0)
    >>> tokens.tolist(), drawn.tolist()
    ([[1, 2], [1, 3]], [[False, True], [False, True]])
    """
    make = torch.Generator().manual_seed(seed)
    # All other types share the last place.
    other = len(types)
    place = torch.full((vocabulary,), other)
    place[types] = torch.arange(other)
    # Each occurrence has a lot, and the highest of its type wins.
    highest = torch.zeros(other + 1, dtype=torch.float64)
    winner, position = torch.full((other,), -1), torch.zeros(other, dtype=torch.int64)
    kept: dict[int, Tensor] = {}
    for number, window in enumerate(source):
        lots, of = torch.rand(len(window), generator=make, dtype=torch.float64), place[window]
        highest.scatter_reduce_(0, of, lots, "amax")
        wins = ((lots == highest[of]) & (of != other)).nonzero()[:, 0]
        if len(wins):
            winner[of[wins]], position[of[wins]], kept[number] = number, wins, window.clone()
    found = winner >= 0
    numbers, row = winner[found].unique(return_inverse=True)
    tokens = torch.stack([kept[number] for number in numbers.tolist()]) if len(numbers) else torch.zeros(0, 0).long()
    drawn = torch.zeros(tokens.shape, dtype=torch.bool)
    drawn[row, position[found]] = True
    return tokens, drawn
