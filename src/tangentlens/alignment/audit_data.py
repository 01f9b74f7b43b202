"""What the audit looks at: rows that fit and rows that test, the proxy, anchors and their tangent planes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.alignment.tangent_test import as_ids, first_half
from tangentlens.errors import InputError
from tangentlens.geometry.curvature.tangents import local_tangents
from tangentlens.geometry.dimension.intrinsic import intrinsic_dimension
from tangentlens.geometry.rows import as_rows, group_products
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.principal import Principal
from tangentlens.proxies.semi_nmf import semi_nmf
from tangentlens.statistics.bootstrap import bootstrap_means
from tangentlens.statistics.groups import sequence_groups
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import leave_one_out

N_ANCHORS = 1024
# Numbers in all tangent planes together, at most: a quarter of a GiB.
_PLANE_NUMBERS = 2**25


@dataclass(frozen=True, eq=False)
class Rows:
    """Activations, their gradients, and the sequences they came from."""

    activations: Float[Tensor, "n d"]
    gradients: Float[Tensor, "n d"]
    sequences: Int[Tensor, "n"]

    @classmethod
    def of(cls, activations: Any, gradients: Any, sequences: Any) -> Rows:
        """Checked: a gradient and a sequence for every row."""
        rows, grads = as_rows(activations), as_rows(gradients)
        ids = as_ids(sequences, "sequences", rows.device)
        if rows.shape != grads.shape or ids.shape != rows.shape[:1]:
            raise InputError(
                f"activations, gradients and sequences must have a row for each token, but are {tuple(rows.shape)}, "
                f"{tuple(grads.shape)} and {tuple(ids.shape)}"
            )
        return cls(rows, grads, ids)

    def halves(self) -> tuple[Rows, Rows]:
        """The first half of the sequences, to fit; the second, to test."""
        fit = first_half(self.sequences)
        first, second = (
            Rows(self.activations[chosen], self.gradients[chosen], self.sequences[chosen]) for chosen in (fit, ~fit)
        )
        return first, second

    def totals(self, n_groups: int = 16) -> Float[Tensor, "g_plus_1 d d"]:
        """Second moments of the gradients, of all and without each group of sequences that has any."""
        groups = sequence_groups(self.sequences, n_groups)
        parts = group_products(self.gradients, groups, int(groups.max()) + 1)
        parts = parts[parts.diagonal(dim1=1, dim2=2).sum(dim=1) > 0]
        if len(parts) < 2:
            raise InputError(
                "the gradients of at least 2 groups of test sequences must not be zero, but fewer are; check that this "
                "site is in the loss, or pass more sequences"
            )
        return leave_one_out(parts)


@dataclass(frozen=True)
class Check:
    """One check: what was found, what it means for the claim, its numbers, and its word in the verdict, if any."""

    name: str
    found: str
    means: str
    estimates: Mapping[str, Interval] = field(default_factory=dict)
    says: str | None = None


@dataclass(frozen=True, eq=False)
class Audited:
    """What the checks look at; everything is fitted to `fit` and tested on the gradients of `test`."""

    fit: Rows
    test: Rows
    rank: int
    dimension: int | None
    seed: int

    @cached_property
    def principal(self) -> Principal:
        """The activations that fit, with their eigendecomposition."""
        return Principal.of(self.fit.activations)

    @cached_property
    def proxy(self) -> Subspace:
        """The tangent proxy."""
        return semi_nmf(self.principal, self.rank, self.seed)

    @cached_property
    def totals(self) -> Float[Tensor, "g_plus_1 d d"]:
        """Second moments of the gradients that test."""
        return self.test.totals()

    @cached_property
    def anchors(self) -> Int[Tensor, "a"]:
        """Some of the test tokens that have a gradient, in the order of their sequences."""
        usable = self.test.gradients.abs().amax(dim=1).gt(0).nonzero()[:, 0]
        most = min(N_ANCHORS, max(_PLANE_NUMBERS // (self.proxy.dim * self.plane_dimension), 64))
        drawn = torch.randperm(len(usable), generator=self.generator())[:most].sort().values
        return usable[drawn.to(usable.device)]

    @cached_property
    def plane_dimension(self) -> int:
        """The dimension asked for, or the intrinsic one."""
        return self.dimension or max(round(intrinsic_dimension(self.fit.activations).value), 1)

    @cached_property
    def planes(self) -> Float[Tensor, "a d m"]:
        """The tangent planes at the anchors, from the tokens that fit."""
        m = self.plane_dimension
        return local_tangents(self.fit.activations, self.test.activations[self.anchors], m, k=max(4 * m, 16))

    def generator(self, number: int = 0) -> torch.Generator:
        """A source of numbers that the seed decides."""
        return torch.Generator().manual_seed(self.seed + number)

    def anchor_means(self, values: Float[Tensor, "a q"]) -> tuple[Float[Tensor, "draws_plus_1 q"], int]:
        """Means over anchors, of all sequences and of sequences drawn with replacement; and how many there are."""
        means, n = bootstrap_means(values, self.test.sequences[self.anchors], self.seed)
        if n < 2:
            raise InputError(f"anchors must come from at least 2 sequences, but come from {n}; pass more sequences")
        return means, n
