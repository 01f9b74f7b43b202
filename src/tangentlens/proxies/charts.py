"""Charts: tokens split by their dominant concept, each part with a tangent plane of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor

from tangentlens.errors import InputError
from tangentlens.geometry.leading import leading_vectors
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.principal import Principal
from tangentlens.proxies.semi_nmf import SemiNMF


@dataclass(frozen=True, eq=False)
class Charts:
    """Concepts, and for each that enough rows follow most, the plane those rows spread in."""

    concepts: SemiNMF
    planes: Mapping[int, Subspace]

    def assign(self, x: Any) -> Int[Tensor, "n"]:
        """The chart of each row: the concept that adds most to it."""
        return self.concepts.dominant(x)

    def __repr__(self) -> str:
        return f"Charts({len(self.planes)} of {self.concepts.n_components} concepts)"


def charts(x: Any, n_charts: int, rank: int, seed: int = 0, least: int | None = None) -> Charts:
    """Split rows `x` (or their `Principal`) by dominant concept; each part of `least` rows gets its top directions.

    Args:
        x: Rows `(n, d)`.
        n_charts: Number of concepts.
        rank: Rank of each plane.
        seed: Of the concepts.
        least: Charts with fewer rows have no plane; four times the rank if not given.

    >>> import torch
    >>> rows = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
    >>> charts(rows, n_charts=4, rank=2)
    Charts(4 of 4 concepts)
    """
    principal = Principal.of(x)
    principal.check_rank(rank)
    least = 4 * rank if least is None else least
    concepts = SemiNMF(n_charts, seed=seed).fit(principal)
    chart = concepts.dominant(principal.rows)
    planes = {}
    for number in chart.unique().tolist():
        members = principal.rows[chart == number]
        if len(members) >= max(least, rank + 1) and not (members == members[0]).all():
            planes[number] = Subspace(leading_vectors(Moments.of(members).covariance(), rank))
    if len(planes) < 2:
        raise InputError(
            f"at least 2 charts of {least} rows are needed, but {len(principal.rows)} rows in {n_charts} charts gave "
            f"{len(planes)}; pass more rows, or ask for fewer charts or a smaller rank"
        )
    return Charts(concepts, planes)
