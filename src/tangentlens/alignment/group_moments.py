"""Second moments of groups of sequences: shares with their jackknife replicates, order 2 free of the sample's noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.alignment.share import check_gradients, moment_shares, spectral_power
from tangentlens.geometry.leading import krylov_basis, leading_vectors
from tangentlens.geometry.rows import gram, unit_scale
from tangentlens.geometry.subspace import Subspace
from tangentlens.statistics.influence import held_by_top
from tangentlens.statistics.jackknife import leave_one_out

# Groups have no direction in common if their products are smaller than this part of their squares: rounding alone.
_NOTHING = 1e-9


@dataclass(frozen=True, eq=False)
class GroupMoments:
    """The second moments of gradients in groups of sequences.

    Where gradients are not many more than features, as in a frequency bin, their inner products take the place of the
    moments of the groups, which are never formed.

    Attributes:
        rows: The gradients of each group, divided by the root of the energy of all groups.
        scale: That root.

    >>> rows = torch.tensor([[2.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
    >>> moments = GroupMoments.of(rows, torch.tensor([0, 1, 2]), n_groups=3)
    >>> moments.shares({"first axis": Subspace.span([[1.0, 0.0]])}, (1.0, 2.0))["first axis"][0].tolist()
    [0.8, 0.9411764705882353]
    """

    rows: Sequence[Float[Tensor, "_ d"]]
    scale: float

    @classmethod
    def of(cls, rows: Float[Tensor, "n d"], groups: Int[Tensor, "n"], n_groups: int) -> GroupMoments:
        """Return the moments of rows.

        Args:
            rows: Gradients `(n, d)`.
            groups: The group (0 ... n_groups - 1) of each row.
            n_groups: Number of groups.
        """
        # At unit scale, squares of very small or large moments neither vanish nor overflow.
        scale = unit_scale(rows)
        unit = rows / scale
        norm = float(unit.double().norm() or 1.0)
        unit = unit / norm
        ordered = unit[groups.argsort(stable=True)].split(groups.bincount(minlength=n_groups).tolist())
        return cls(ordered, scale * norm)

    @cached_property
    def energy(self) -> Float[Tensor, "g"]:
        """The part of the energy that each group has."""
        return torch.stack([rows.double().square().sum() for rows in self.rows])

    @cached_property
    def total(self) -> Float[Tensor, "d d"]:
        """The second moment of all groups."""
        return gram(self._all).double() if self._few else self._parts.sum(dim=0)

    @cached_property
    def _all(self) -> Float[Tensor, "n d"]:
        return torch.cat(list(self.rows))

    @property
    def _few(self) -> bool:
        """Whether inner products of gradients take less time than moments of groups: the two are even near this."""
        return 2 * len(self._all) < 3 * self._all.shape[1]

    @cached_property
    def _parts(self) -> Float[Tensor, "g d d"]:
        """The sum of gg' over the gradients of each group."""
        d = self._all.shape[1]
        parts = self._all.new_empty(len(self.rows), d, d, dtype=torch.float64)
        for part, rows in zip(parts, self.rows, strict=True):
            part.copy_(gram(rows))
        return parts

    @cached_property
    def _inner(self) -> Float[Tensor, "n n"]:
        """The inner products of all gradients."""
        return (self._all @ self._all.T).double()

    @cached_property
    def _member(self) -> Float[Tensor, "g n"]:
        """1 where a gradient belongs to a group, else 0."""
        sizes = torch.tensor([len(rows) for rows in self.rows], device=self._all.device)
        group = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes, output_size=len(self._all))
        return (group == torch.arange(len(sizes), device=sizes.device)[:, None]).double()

    def shares(
        self, subspaces: Mapping[str, Subspace], orders: Sequence[float], start: Float[Tensor, "d c"] | None = None
    ) -> dict[str, Float[Tensor, "g_plus_1 orders"]]:
        """Return the share of every subspace at every order: of all groups, then without each of them.

        Order 2 takes products of different groups only: tr Q'XQ / tr X, where X is the sum of P_g P_h over g != h. The
        square of a group's own moment contains the square of its noise, which lies in all directions and draws the
        share towards r / d (docs/measures/alignment.md, 'Order 2'). This estimate can lie outside of 0 and 1 if the
        share is near them. It is NaN if no two groups have a direction in common. Orders 1 and inf are those of
        `moment_shares`.

        Args:
            subspaces: The subspaces by name.
            orders: The orders of the shares: 1, 2 and `math.inf`.
            start: Leading eigenvectors of the moment of all groups, `(d, c)`, to find those without a group faster.
        """
        check_gradients(self.total)
        ranks = [q.rank for q in subspaces.values()]
        bases, kept = torch.cat([q.basis for q in subspaces.values()], dim=1).to(self._all), self._kept
        along = (self._all @ bases).double().split(ranks, dim=1)

        def taken(order: float) -> Float[Tensor, "g_plus_1 subspaces"]:
            if order == 1:
                inside = torch.stack([self._member @ one.square().sum(dim=1) for one in along], dim=1)
                return kept @ inside / (kept @ self.energy)[:, None]
            if order == 2:
                inside = torch.stack([_between(one, kept) for one in self._within(bases, along)], dim=1)
                return inside / self._whole(kept)[:, None]
            totals = leave_one_out(self._parts)
            return torch.stack([moment_shares(total, subspaces, (order,), start)[:, 0] for total in totals])

        shares = torch.stack([taken(order) for order in orders], dim=2)
        return dict(zip(subspaces, shares.unbind(dim=1), strict=True))

    @cached_property
    def _kept(self) -> Float[Tensor, "g_plus_1 g"]:
        """Which groups count: all of them, then all but one."""
        g = len(self.rows)
        return torch.ones_like(self.energy) - torch.eye(g + 1, g).roll(1, dims=0).to(self.energy)

    def rms(self) -> Float[Tensor, "g_plus_1"]:
        """Return the root mean square length of a gradient: of all groups, then without each of them."""
        counts = self.energy.new_tensor([len(rows) for rows in self.rows])
        return (self._kept @ self.energy / (self._kept @ counts)).sqrt() * self.scale

    def anisotropy(self) -> Float[Tensor, "g_plus_1"]:
        """Return the uncentred anisotropy, lambda_1 / trace: of all groups, then without each of them.

        The leading direction without a group is sought in the same small subspace as with all groups, which is where it
        is unless the spectrum is flat.
        """
        check_gradients(self.total)
        basis = krylov_basis(self.total)
        inside = torch.stack([gram(rows @ basis.to(rows)) for rows in self.rows])
        return torch.linalg.eigvalsh(leave_one_out(inside))[:, -1] / (self._kept @ self.energy)

    def _within(
        self, bases: Float[Tensor, "d c"], along: Sequence[Float[Tensor, "n _"]]
    ) -> Iterator[Float[Tensor, "g g"]]:
        """Yield tr Q'P_g P_h Q for all pairs of groups, for one subspace after the other.

        Args:
            bases: The bases of all subspaces.
            along: The coordinates of all gradients in each of them.
        """
        if self._few:
            for one in along:
                yield self._member @ (self._inner * (one @ one.T)) @ self._member.T
            return
        # A moment X'X times B is X'(XB), which is cheaper if there are few rows; in fp32 it is also faster.
        if len(self._all) < len(self.rows) * self._all.shape[1]:
            image = torch.stack([rows.T @ (rows @ bases) for rows in self.rows]).double()
        else:
            image = self._parts @ bases.double()
        for one in image.split([part.shape[1] for part in along], dim=2):
            yield _products(one)

    def power(self, order: float) -> Float[Tensor, "d d"]:
        """Return the matrix M of trace 1 for which the share of all groups is tr Q'MQ.

        The distribution of a random subspace's share follows from it. At order 2, M may have small negative
        eigenvalues. It is NaN if no two groups have a direction in common.
        """
        if order != 2:
            return spectral_power(self.total, order)
        whole = self._whole(torch.ones_like(self.energy)[None])
        # Only the spread of chance is computed from M, for which single precision is enough.
        if self._few:
            others = self._inner * (1 - self._member.T @ self._member)
            return (self._all.T @ (others.to(self._all) @ self._all)).double() / whole
        own = torch.zeros_like(self.total)
        for rows, part in zip(self.rows, self._parts, strict=True):
            # The square of a moment X'X is X'(XX')X, which is cheaper if there are few rows.
            own += rows.T @ (rows @ rows.T @ rows) if 3 * len(rows) < len(part) else gram(part.float())
        return (self.total @ self.total - own) / whole

    def held_by_top(self, q: Subspace, order: float) -> float:
        """Return the part of the share's numerator that the top 1% of tokens hold.

        A token adds |Q'g|^2 to that of order 1 and (v_1 . g)^2 to the leading eigenvalue, at order inf. To that of
        order 2 it adds (g'CQ)(Q'g), where C is the second moment of the other groups, as in the share itself.
        """
        if order == math.inf:
            leader = leading_vectors(self.total, 1)
            return held_by_top(torch.cat([(rows @ leader.to(rows)).square()[:, 0] for rows in self.rows]))
        along = [rows @ q.basis.to(rows) for rows in self.rows]
        if order == 1:
            return held_by_top(torch.cat([inside.square().sum(dim=1) for inside in along]))
        image = (self.total @ q.basis).to(self._all)
        pairs = zip(self.rows, along, strict=True)
        return held_by_top(
            torch.cat([(inside * (rows @ (image - rows.T @ inside))).sum(dim=1) for rows, inside in pairs])
        )

    @cached_property
    def _products(self) -> Float[Tensor, "g g"]:
        """The products <P_g, P_h> of the moments of all pairs of groups."""
        return self._member @ self._inner.square() @ self._member.T if self._few else _products(self._parts)

    def _whole(self, kept: Float[Tensor, "replicates g"]) -> Float[Tensor, "replicates"]:
        """Return tr X of each replicate, or NaN if it is 0 up to rounding."""
        whole = _between(self._products, kept)
        return whole.where(whole > _NOTHING * (kept @ self._products.diagonal()), math.nan)


def _products(matrices: Float[Tensor, "g d c"]) -> Float[Tensor, "g g"]:
    """Return <A_g, A_h> for all pairs of matrices."""
    flat = matrices.flatten(1)
    return flat @ flat.T


def _between(products: Float[Tensor, "g g"], kept: Float[Tensor, "replicates g"]) -> Float[Tensor, "replicates"]:
    """Return the sum of the products of different groups, over the groups that each replicate keeps."""
    return torch.einsum("rg,gh,rh->r", kept, products - torch.diag(products.diagonal()), kept)
