"""Second moments of groups of sequences: shares with their jackknife replicates, order 2 free of the sample's noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tangentlens.alignment.share import check_gradients, moment_shares, spectral_power
from tangentlens.geometry.leading import NEAR, basis_without_groups, krylov_basis, leading_vectors
from tangentlens.geometry.rows import gram, squared_lengths, symmetric_product, unit_scale
from tangentlens.geometry.subspace import Subspace
from tangentlens.lazy import cached_property
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
        gradients: The gradients, ordered by group and divided by the root of the energy of all groups.
        sizes: How many of them each group has.
        scale: That root.

    >>> rows = torch.tensor([[2.0, 0.0], [0.0, 1.0], [2.0, 1.0]], dtype=torch.float64)
    >>> moments = GroupMoments.of(rows, torch.tensor([0, 1, 2]), n_groups=3)
    >>> shares = moments.shares({"first axis": Subspace.span([[1.0, 0.0]])}, (1.0, 2.0))["first axis"][0]
    >>> [round(share, 6) for share in shares.tolist()]
    [0.8, 0.941176]
    """

    gradients: Float[Tensor, "n d"]
    sizes: Sequence[int]
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
        norm = float(torch.linalg.vector_norm(unit, dtype=torch.float64)) or 1.0
        ordered = unit.index_select(0, groups.argsort(stable=True)).div_(norm)
        return cls(ordered, groups.bincount(minlength=n_groups).tolist(), scale * norm)

    @property
    def rows(self) -> Sequence[Float[Tensor, "_ d"]]:
        """The gradients of each group."""
        return self.gradients.split(self.sizes)

    @cached_property
    def energy(self) -> Float[Tensor, "g"]:
        """The part of the energy that each group has."""
        return self._member @ squared_lengths(self.gradients)

    @cached_property
    def total(self) -> Float[Tensor, "d d"]:
        """The second moment of all groups."""
        if self._few:
            return gram(self.gradients).double()
        total = torch.zeros_like(self._parts[0], dtype=torch.float64)
        # A sum over groups in fp64 would first copy them all.
        for part in self._parts:
            total += part
        return total

    @property
    def _few(self) -> bool:
        """Whether inner products of gradients take less time than moments of groups: the two are even near this."""
        return 2 * len(self.gradients) < 3 * self.gradients.shape[1]

    @cached_property
    def _parts(self) -> Float[Tensor, "g d d"]:
        """The sum of gg' over the gradients of each group, in their precision."""
        d = self.gradients.shape[1]
        parts = self.gradients.new_empty(len(self.sizes), d, d)
        for part, rows in zip(parts, self.rows, strict=True):
            gram(rows, out=part)
        return parts

    @cached_property
    def _inner(self) -> Float[Tensor, "n n"]:
        """The inner products of all gradients."""
        return gram(self.gradients.T).double()

    @cached_property
    def _member(self) -> Float[Tensor, "g n"]:
        """1 where a gradient belongs to a group, else 0."""
        sizes = torch.tensor(self.sizes, device=self.gradients.device)
        group = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes, output_size=len(self.gradients))
        return (group == torch.arange(len(sizes), device=sizes.device)[:, None]).double()

    def shares(
        self,
        subspaces: Mapping[str, Subspace],
        orders: Sequence[float],
        start: Float[Tensor, "d c"] | None = None,
        along: Float[Tensor, "n columns"] | None = None,
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
            along: The coordinates of `gradients` in the bases of all subspaces, if they are known.
        """
        check_gradients(self.total)
        ranks, kept = [q.rank for q in subspaces.values()], self._kept
        if along is None:
            along = self.gradients @ torch.cat([q.basis for q in subspaces.values()], dim=1).to(self.gradients)

        def taken(order: float) -> Float[Tensor, "g_plus_1 subspaces"]:
            if order == 1:
                inside = summed_columns(self._member @ along.double().square(), ranks)
                return kept @ inside / (kept @ self.energy)[:, None]
            if order == 2:
                return _between(self._within(along, ranks), kept).T / self._whole(kept)[:, None]
            totals = leave_one_out(self._parts.double())
            return torch.stack([moment_shares(total, subspaces, (order,), start)[:, 0] for total in totals])

        shares = torch.stack([taken(order) for order in orders], dim=2)
        return dict(zip(subspaces, shares.unbind(dim=1), strict=True))

    @cached_property
    def _kept(self) -> Float[Tensor, "g_plus_1 g"]:
        """Which groups count: all of them, then all but one."""
        g = len(self.sizes)
        return torch.ones_like(self.energy) - torch.eye(g + 1, g).roll(1, dims=0).to(self.energy)

    def rms(self) -> Float[Tensor, "g_plus_1"]:
        """Return the root mean square length of a gradient: of all groups, then without each of them."""
        counts = self.energy.new_tensor(self.sizes)
        return (self._kept @ self.energy / (self._kept @ counts)).sqrt() * self.scale

    def anisotropy(self) -> Float[Tensor, "g_plus_1"]:
        """Return the uncentred anisotropy, lambda_1 / trace: of all groups, then without each of them.

        Without a group, the leading direction is sought in the span that `basis_without_groups` returns.
        """
        check_gradients(self.total)
        basis = krylov_basis(self.total)
        # A narrow space is searched as a whole.
        if basis.shape[1] < len(basis):
            leading = basis @ torch.linalg.eigh(basis.T @ self.total @ basis).eigenvectors[:, -NEAR:].flip(1)
            basis = basis_without_groups(self.gradients, self._member, self.total, leading)
        along = pad_sequence((self.gradients @ basis.to(self.gradients)).split(self.sizes), batch_first=True)
        inside = leave_one_out((along.mT @ along).double())
        return torch.linalg.eigvalsh(inside)[:, -1] / (self._kept @ self.energy)

    def _within(self, along: Float[Tensor, "n c"], ranks: Sequence[int]) -> Float[Tensor, "subspaces g g"]:
        """Return tr Q'P_g P_h Q for all pairs of groups, for each subspace.

        Args:
            along: The coordinates of all gradients along the bases of all subspaces.
            ranks: How many of the columns belong to each subspace.
        """
        images = self.gradients.new_empty(len(self.sizes), along.shape[1], self.gradients.shape[1])
        pairs = zip(along.split(self.sizes), self.rows, strict=True)
        for image, (inside, rows) in zip(images, pairs, strict=True):
            # The moment of a group is X'X, and X'(XQ) is cheaper than (X'X)Q.
            torch.mm(inside.T, rows, out=image)
        # Products of single columns lose few digits, and are added up in fp64.
        columns = images.transpose(0, 1)
        products = (columns @ columns.mT).double().split(list(ranks))
        return torch.stack([of_subspace.sum(dim=0) for of_subspace in products])

    def power(self, order: float) -> Float[Tensor, "d d"]:
        """Return the matrix M of trace 1 for which the share of all groups is tr Q'MQ.

        The distribution of a random subspace's share follows from it. At order 2, M may have small negative
        eigenvalues. It is NaN if no two groups have a direction in common.
        """
        if order != 2:
            return spectral_power(self.total, order)
        return self._between_groups().double() / self._whole(torch.ones_like(self.energy)[None])

    def _between_groups(self) -> Float[Tensor, "d d"]:
        """Return the sum of P_g P_h over different groups, of which only the spread of chance is computed.

        Single precision is enough for that. The square of a moment X'X is X'(XX')X, which is cheaper if there are few
        rows.
        """
        n, d = self.gradients.shape
        if self._few:
            member = self._member.to(self.gradients)
            different = self._inner.to(self.gradients) * (1 - member.T @ member)
            return symmetric_product(self.gradients, different @ self.gradients)
        squares = gram(self.total.to(self.gradients))
        if 5 * n < 2 * len(self.sizes) * d:
            own = torch.cat([rows @ rows.T @ rows for rows in self.rows])
            return squares - symmetric_product(self.gradients, own)
        for part in self._parts:
            squares -= gram(part)
        return squares

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
        image = (self.total @ q.basis).to(self.gradients)
        pairs = zip(self.rows, along, strict=True)
        return held_by_top(
            torch.cat([(inside * (rows @ (image - rows.T @ inside))).sum(dim=1) for rows, inside in pairs])
        )

    @cached_property
    def _products(self) -> Float[Tensor, "g g"]:
        """The products <P_g, P_h> of the moments of all pairs of groups."""
        if self._few:
            return self._member @ self._inner.square() @ self._member.T
        flat = self._parts.double().flatten(1)
        return flat @ flat.T

    def _whole(self, kept: Float[Tensor, "replicates g"]) -> Float[Tensor, "replicates"]:
        """Return tr X of each replicate, or NaN if it is 0 up to rounding."""
        whole = _between(self._products, kept)
        return whole.where(whole > _NOTHING * (kept @ self._products.diagonal()), math.nan)


def summed_columns(columns: Float[Tensor, "n c"], ranks: Sequence[int]) -> Float[Tensor, "n subspaces"]:
    """Return the sums over the columns of each subspace, given how many each has."""
    return torch.stack([part.sum(dim=1) for part in columns.split(list(ranks), dim=1)], dim=1)


def _between(
    products: Float[Tensor, "*subspaces g g"], kept: Float[Tensor, "replicates g"]
) -> Float[Tensor, "*subspaces replicates"]:
    """Return the sum of the products of different groups, over the groups that each replicate keeps."""
    different = products - torch.diag_embed(products.diagonal(dim1=-2, dim2=-1))
    return (kept @ different * kept).sum(dim=-1)
