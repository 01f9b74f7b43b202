"""Charts: rows split by their dominant concept, each part with a plane of its own."""

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
from tangentlens.proxies.semi_nmf import SPAN_TOL, SemiNMF


@dataclass(frozen=True, eq=False)
class Charts:
    """A split of rows by their dominant concept.

    Attributes:
        concepts: The fitted concepts.
        planes: The leading principal directions of the rows of each chart, by the number of its concept. Concepts that
            dominate too few rows have no plane.
    """

    concepts: SemiNMF
    planes: Mapping[int, Subspace]

    def assign(self, x: Any) -> Int[Tensor, "n"]:
        """Return the chart of each row of `x` `(n, d)`: the number of the concept that contributes most to it."""
        return self.concepts.dominant(x)

    def __repr__(self) -> str:
        return f"Charts({len(self.planes)} of {self.concepts.n_components} concepts)"


def charts(x: Any, n_charts: int, rank: int, seed: int = 0, least: int | None = None) -> Charts:
    """Split rows by their dominant concept and fit a plane to each part.

    Args:
        x: Rows `(n, d)`, or their `Principal`.
        n_charts: Number of concepts.
        rank: Rank of each plane, which is spanned by the leading principal directions of the chart.
        seed: Seed of the concepts.
        least: Charts with fewer rows have no plane; four times the rank by default.

    >>> import torch
    >>> rows = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
    >>> charts(rows, n_charts=4, rank=2)
    Charts(4 of 4 concepts)
    """
    principal = Principal.of(x)
    principal.check_rank(rank)
    least = 4 * rank if least is None else least
    concepts = SemiNMF(n_charts, seed=seed, tol=SPAN_TOL).fit(principal)
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
