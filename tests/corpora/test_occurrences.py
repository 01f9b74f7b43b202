from collections import Counter

import torch

from tangentlens.corpora.occurrences import draw_occurrences


def test_every_occurrence_of_a_type_has_the_same_chance():
    tokens = torch.tensor([[1, 2, 1, 5], [1, 3, 2, 9], [4, 1, 1, 2]])
    places = Counter()
    for seed in range(2000):
        found, drawn = draw_occurrences(tokens, torch.tensor([1, 2, 4]), 10, seed)
        assert found[drawn].sort().values.tolist() == [1, 2, 4]
        rows = [int((tokens == row).all(dim=1).nonzero()) for row in found]
        places.update((int(found[row, at]), rows[row], int(at)) for row, at in drawn.nonzero())
    assert {place for place in places if place[0] == 1} == {(1, 0, 0), (1, 0, 2), (1, 1, 0), (1, 2, 1), (1, 2, 2)}
    assert all(330 < times < 470 for place, times in places.items() if place[0] == 1)
    assert all(590 < times < 745 for place, times in places.items() if place[0] == 2)
    assert places[4, 2, 0] == 2000


def test_types_that_never_come_are_left_out():
    tokens, drawn = draw_occurrences(torch.tensor([[1, 2], [2, 2]]), torch.tensor([1, 3]), 10, 0)
    assert (tokens.tolist(), drawn.tolist()) == ([[1, 2]], [[True, False]])
    tokens, drawn = draw_occurrences([], torch.tensor([1]), 10, 0)
    assert tokens.shape == drawn.shape == (0, 0)
