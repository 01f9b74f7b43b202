"""Token rows: activations, their gradients, and the sequence and token that each row came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.massive import THRESHOLD, massive_rows
from tangentlens.geometry.rows import as_numbers, as_rows, group_products, unit_scale
from tangentlens.geometry.subspace import Subspace
from tangentlens.statistics.groups import sequence_groups
from tangentlens.statistics.jackknife import leave_one_out

# The id of a token or target that is not known. Any negative id means the same.
UNKNOWN = -100


@dataclass(frozen=True, eq=False)
class TokenRows:
    """One row per token at one site.

    Attributes:
        activations: Rows `(n, d)`.
        gradients: Gradients of the loss with respect to the activations, `(n, d)`.
        sequences: The id of the sequence that each row came from.
        tokens: The id of each row's input token; negative if it is not known.
        targets: The id of the token that each row has to predict; negative if there is none or it is not known.
        positions: The place of each row in its sequence, from 0 on; negative if it is not known.
    """

    activations: Float[Tensor, "n d"]
    gradients: Float[Tensor, "n d"]
    sequences: Int[Tensor, "n"]
    tokens: Int[Tensor, "n"]
    targets: Int[Tensor, "n"]
    positions: Int[Tensor, "n"]

    @classmethod
    def of(cls, activations: Any, gradients: Any, sequences: Any, tokens: Any = None, targets: Any = None) -> TokenRows:
        """Return rows that have been checked: finite, and with a gradient and a sequence for each activation.

        Args:
            activations: Rows `(n, d)`.
            gradients: Gradients of the loss with respect to the activations, `(n, d)`.
            sequences: The id of the sequence each row came from, `(n,)`.
            tokens: Input token ids `(n,)`; unknown if left out.
            targets: Target token ids `(n,)`; unknown if left out.
        """
        rows, grads = as_rows(activations), as_rows(gradients)
        ids = {"sequences": sequences, "tokens": tokens, "targets": targets, "positions": None}
        known = {
            name: torch.full((len(rows),), UNKNOWN, device=rows.device) if of is None else as_ids(of, name, rows.device)
            for name, of in ids.items()
        }
        for name, x, shape in (
            ("gradients", grads, rows.shape),
            *((name, x, rows.shape[:1]) for name, x in known.items()),
        ):
            if x.shape != shape:
                raise InputError(
                    f"{name} must be {tuple(shape)}, a row for each activation, but came as {tuple(x.shape)}; take "
                    "them from the same tokens"
                )
        return cls(rows, grads, **known)

    @classmethod
    def none(cls, width: int, device: torch.device) -> TokenRows:
        """Return an empty set of rows of the given width."""
        nothing, ids = torch.empty(0, width, device=device), torch.empty(0, dtype=torch.int64, device=device)
        return cls(nothing, nothing, ids, ids, ids, ids)

    def __getitem__(self, chosen: Tensor) -> TokenRows:
        return TokenRows(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def halves(self) -> tuple[TokenRows, TokenRows]:
        """Return the rows of the first half of the sequences, to fit on, and those of the second, to test on."""
        fit = first_half(self.sequences)
        return self[fit], self[~fit]

    def without_massive(self, threshold: float = THRESHOLD) -> TokenRows:
        """Return the rows whose activations are not massive: not above `threshold` times the median length."""
        return self[~massive_rows(self.activations, threshold).mask]

    def second_moments(self, n_groups: int = 16) -> Float[Tensor, "g_plus_1 d d"]:
        """Return the second moment of the gradients: of all sequences, then without each group of them.

        Groups whose gradients are all zero are not counted.
        """
        groups = sequence_groups(self.sequences, n_groups)
        parts = group_products(self.gradients, groups, int(groups.max()) + 1)
        parts = parts[parts.diagonal(dim1=1, dim2=2).sum(dim=1) > 0]
        if len(parts) < 2:
            raise no_gradients()
        return leave_one_out(parts)

    def energy_shares(
        self, subspaces: Mapping[str, Subspace], n_groups: int = 16
    ) -> dict[str, Float[Tensor, "g_plus_1"]]:
        """Return the energy share of every subspace: of all sequences, then without each group of them.

        Groups whose gradients are all zero are not counted. At order 1 no second moment is needed, only lengths.

        Args:
            subspaces: The subspaces by name.
            n_groups: Number of groups of sequences.
        """
        rows, groups = self.gradients / unit_scale(self.gradients), sequence_groups(self.sequences, n_groups)
        along = (rows @ torch.cat([q.basis for q in subspaces.values()], dim=1).to(rows)).square()
        parts = [rows.square(), *along.split([q.rank for q in subspaces.values()], dim=1)]
        energies = torch.stack([part.sum(dim=1, dtype=torch.float64) for part in parts], dim=1)
        sums = energies.new_zeros(int(groups.max()) + 1, len(parts)).index_add_(0, groups, energies)
        sums = sums[sums[:, 0] > 0]
        if len(sums) < 2:
            raise no_gradients()
        whole, *inside = leave_one_out(sums).unbind(dim=1)
        return {name: energy / whole for name, energy in zip(subspaces, inside, strict=True)}


def no_gradients() -> InputError:
    """Return the error for gradients that are zero in all but one group of sequences, or in all."""
    return InputError(
        "the gradients of at least 2 groups of test sequences must not be zero, but fewer are; check that this site is "
        "in the loss, or pass more sequences"
    )


def as_ids(x: Any, name: str, device: torch.device) -> Int[Tensor, "n"]:
    """Return `x` as a tensor of whole numbers on `device`, or raise an error that speaks of `name`."""
    ids = as_numbers(name, x).to(device)
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise InputError(f"{name} must be whole numbers, one for each row, but are {ids.dtype}; convert them to int64")
    return ids.long()


def first_half(sequences: Int[Tensor, "n"]) -> Bool[Tensor, "n"]:
    """Return which rows belong to the first half of the sequences, in the order of their ids."""
    _, index = sequences.unique(return_inverse=True)
    count = int(index.max()) + 1 if len(index) else 0
    if count < 4:
        raise InputError(f"at least 4 sequences are needed, 2 to fit and 2 to test, but {count} came; pass more")
    return index < count // 2
