"""One random occurrence of each token type, drawn in a single pass over a text."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def draw_occurrences(
    source: Iterable[Int[Tensor, "length"]], types: Int[Tensor, "t"], vocabulary: int, seed: int
) -> tuple[Int[Tensor, "w length"], Bool[Tensor, "w length"]]:
    """Draw one occurrence of each type, all of its occurrences being equally likely, and return their windows.

    Args:
        source: Windows of token ids, all of the same length.
        types: The token ids `(t,)` of which to draw an occurrence; those that do not occur are left out.
        vocabulary: Number of token types.
        seed: Seed of the draw.

    Returns:
        The windows `(w, length)` that contain a drawn occurrence, in their order, and a mask of the same shape that is
        true at the drawn occurrences.

    >>> source = torch.tensor([[1, 2], [1, 3], [4, 4]])
    >>> tokens, drawn = draw_occurrences(source, types=torch.tensor([2, 3]), vocabulary=5, seed=0)
    >>> tokens.tolist(), drawn.tolist()
    ([[1, 2], [1, 3]], [[False, True], [False, True]])
    """
    make = torch.Generator().manual_seed(seed)
    # All other types share the last slot.
    other = len(types)
    place = torch.full((vocabulary,), other)
    place[types] = torch.arange(other)
    # Each occurrence gets a random number, and the occurrence with the highest of its type is drawn.
    highest = torch.zeros(other + 1, dtype=torch.float64)
    winner, position = torch.full((other,), -1), torch.zeros(other, dtype=torch.int64)
    kept: dict[int, Tensor] = {}
    for number, window in enumerate(source):
        draws, slot = torch.rand(len(window), generator=make, dtype=torch.float64), place[window]
        highest.scatter_reduce_(0, slot, draws, "amax")
        wins = ((draws == highest[slot]) & (slot != other)).nonzero()[:, 0]
        if len(wins):
            winner[slot[wins]], position[slot[wins]], kept[number] = number, wins, window.clone()
    occurring = winner >= 0
    numbers, row = winner[occurring].unique(return_inverse=True)
    tokens = torch.stack([kept[number] for number in numbers.tolist()]) if len(numbers) else torch.zeros(0, 0).long()
    drawn = torch.zeros(tokens.shape, dtype=torch.bool)
    drawn[row, position[occurring]] = True
    return tokens, drawn
