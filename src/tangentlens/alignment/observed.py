"""Tokens whose gradients are observations, with what every frequency bin needs of each, computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tangentlens.alignment.group_moments import summed_columns
from tangentlens.alignment.rows import TokenRows
from tangentlens.geometry.rows import squared_lengths, unit_scale
from tangentlens.geometry.subspace import Subspace

# What there is of each token.
_OF_EACH = ("places", "gradients", "sequences", "groups", "energy", "along", "inside")


@dataclass(frozen=True, eq=False)
class ObservedTokens:
    """The tokens that have a gradient, ordered by group, and what every frequency bin needs of each of them.

    Attributes:
        places: The place of each token among the rows that came.
        gradients: Its gradient, divided by `scale`.
        scale: A power of two that is common to all.
        sequences: The number of its sequence, from 0 on.
        groups: Its group of sequences.
        n_sequences: The number of sequences, of which a bin may lack some, like those of groups.
        n_groups: The number of groups.
        energy: The squared length of its gradient.
        along: The coordinates of its gradient in the bases of all subspaces.
        inside: The energy inside each subspace.
    """

    places: Int[Tensor, "n"]
    gradients: Float[Tensor, "n d"]
    scale: float
    sequences: Int[Tensor, "n"]
    groups: Int[Tensor, "n"]
    n_sequences: int
    n_groups: int
    energy: Float[Tensor, "n"]
    along: Float[Tensor, "n c"]
    inside: Float[Tensor, "n subspaces"]

    @classmethod
    def of(cls, rows: TokenRows, groups: Int[Tensor, "n"], subspaces: Sequence[Subspace]) -> ObservedTokens:
        """Return the tokens of rows.

        Args:
            rows: The rows.
            groups: The group of each.
            subspaces: The subspaces.
        """
        scale = unit_scale(rows.gradients)
        gradients = rows.gradients / scale
        # Tokens without a gradient, such as those without a target at the last layer, are not observations.
        energy = squared_lengths(gradients)
        order = groups.argsort(stable=True)
        places = order[energy[order] > 0]
        gradients, energy = gradients.index_select(0, places), energy[places]
        _, sequences = rows.sequences.unique(return_inverse=True)
        along = gradients @ torch.cat([q.basis for q in subspaces], dim=1).to(gradients)
        inside = summed_columns(along.double().square(), [q.rank for q in subspaces])
        return cls(
            places=places,
            gradients=gradients,
            scale=scale,
            sequences=sequences[places],
            groups=groups[places],
            n_sequences=int(sequences.max()) + 1,
            n_groups=int(groups.max()) + 1,
            energy=energy,
            along=along,
            inside=inside,
        )

    def among(self, mask: Bool[Tensor, "rows"]) -> ObservedTokens:
        """Return those among the rows that a mask chooses."""
        index = mask[self.places].nonzero()[:, 0]
        chosen = {name: getattr(self, name).index_select(0, index) for name in _OF_EACH}
        return replace(self, **chosen)
