"""Groups of rows that depend on each other: an interval leaves out, or draws, whole groups."""

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.errors import InputError

N_GROUPS = 64


def sequence_groups(sequences: Int[Tensor, "n"], n_groups: int) -> Int[Tensor, "n"]:
    """Return the group (0 ... G - 1) of each row: whole sequences, in the order of their ids, divided evenly.

    >>> sequence_groups(torch.tensor([7, 7, 9, 9, 12]), n_groups=2).tolist()
    [0, 0, 0, 0, 1]
    """
    _, index = sequences.unique(return_inverse=True)
    count = int(index.max()) + 1 if len(index) else 0
    if count < 2:
        raise InputError(f"an interval over sequences needs at least 2 of them, but {count} came; pass more sequences")
    return index * min(n_groups, count) // count


def linked_groups(neighbour: Int[Tensor, "n"], n_groups: int = N_GROUPS) -> Int[Tensor, "n"]:
    """Return groups of about equal size that never separate a row from its nearest neighbour.

    >>> linked_groups(torch.tensor([1, 0, 3, 2]), n_groups=2).tolist()
    [0, 0, 1, 1]
    """
    n = len(neighbour)
    links = scipy.sparse.coo_matrix((np.ones(n), (np.arange(n), neighbour.cpu().numpy())), shape=(n, n))
    _, component = scipy.sparse.csgraph.connected_components(links, directed=False)
    # Assigned from the largest component on, so that no group gets much more than another.
    place = np.argsort(np.argsort(-np.bincount(component), kind="stable"), kind="stable")
    return torch.from_numpy(place[component] % n_groups).to(neighbour.device)


def compact_groups(rows: Float[Tensor, "n d"], size: int, n_groups: int = N_GROUPS) -> Int[Tensor, "n"]:
    """Return groups made of compact cells of about `size` rows, so that most neighbours share a group.

    Cells come from repeated halving at medians. They are assigned to groups at random: a group of cells from one region
    would differ from the next by more than chance.

    >>> compact_groups(torch.tensor([[0.0], [5.0], [1.0], [6.0]]), size=2).unique(return_counts=True)[1].tolist()
    [2, 2]
    """
    pieces = [torch.arange(len(rows), device=rows.device)]
    while len(rows) >= 2 * len(pieces) * size:
        halves = []
        for piece in pieces:
            # The coordinate with the largest variance.
            axis = int(rows[piece].var(dim=0, correction=0).argmax())
            order = piece[rows[piece, axis].argsort(stable=True)]
            halves += [order[: len(order) // 2], order[len(order) // 2 :]]
        pieces = halves
    group = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    assigned = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0)) % n_groups
    for number, piece in zip(assigned.tolist(), pieces, strict=True):
        group[piece] = number
    return group
