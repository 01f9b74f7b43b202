"""Own chart against other charts: do the gradients of a region prefer its own plane to the planes of other regions?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.alignment.intervals import (
    Interval,
    group_products,
    jackknife,
    leave_one_out,
    sequence_groups,
    share_jackknife,
)
from tangentlens.alignment.share import replicate_shares
from tangentlens.errors import InputError
from tangentlens.proxies.charts import Charts

ORDERS = (1.0, 2.0)


@dataclass(frozen=True, eq=False)
class ChartTest:
    """Shares of gradients in the plane of their own chart and, on average, in those of the others (`swapped`)."""

    rank: int
    dim: int
    own: Mapping[float, Float[Tensor, "g_plus_1"]]
    swapped: Mapping[float, Float[Tensor, "g_plus_1"]]
    wins: int
    n_charts: int

    def share(self, variant: str = "own", order: float = 1.0) -> Interval:
        """The share of `own` or `swapped` planes: the mean over charts, weighted by the energy of their gradients."""
        return share_jackknife({"own": self.own, "swapped": self.swapped}[variant][order])

    def log_ratio(self, order: float = 1.0) -> Interval:
        """ln(own / swapped) with its 95% interval over test sequences."""
        return jackknife((self.own[order] / self.swapped[order]).log())

    def __repr__(self) -> str:
        return (
            f"ChartTest(own {self.share()}, swapped {self.share('swapped')}, own wins in {self.wins} of "
            f"{self.n_charts} charts, rank {self.rank} of {self.dim})"
        )


def chart_test(
    charts: Charts,
    activations: Float[Tensor, "n d"],
    gradients: Float[Tensor, "n d"],
    sequences: Int[Tensor, "n"],
    n_groups: int = 16,
) -> ChartTest:
    """Hold the gradients of each chart's tokens against all planes.

    Args:
        charts: Fitted on other sequences than those that come here.
        activations: Rows, to tell each token's chart.
        gradients: Gradients of the loss by those activations.
        sequences: The id of the sequence each row came from.
        n_groups: Groups of sequences for the jackknife.
    """
    chart = charts.assign(activations)
    groups = sequence_groups(sequences, n_groups)
    n_groups = int(groups.max()) + 1
    planes = {str(number): plane for number, plane in charts.planes.items()}
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for name in planes:
        mine = chart == int(name)
        parts = group_products(gradients[mine], groups[mine], n_groups)
        if int((parts.diagonal(dim1=1, dim2=2).sum(dim=1) > 0).sum()) < 2:
            continue
        totals = leave_one_out(parts)
        shares = replicate_shares(totals, planes, ORDERS)
        others = torch.stack([share for other, share in shares.items() if other != name]).mean(dim=0)
        found.append((totals.diagonal(dim1=1, dim2=2).sum(dim=1, keepdim=True), shares[name], others))
    if len(found) < 2:
        raise InputError(
            f"the gradients of at least 2 charts must not be zero, but {len(found)} of {len(planes)} have any; pass "
            "more tokens"
        )
    energy, own, swapped = (torch.stack(column) for column in zip(*found, strict=True))
    weight = energy / energy.sum(dim=0)
    plane = next(iter(planes.values()))
    return ChartTest(
        rank=plane.rank,
        dim=plane.dim,
        own=dict(zip(ORDERS, (weight * own).sum(dim=0).unbind(dim=1), strict=True)),
        swapped=dict(zip(ORDERS, (weight * swapped).sum(dim=0).unbind(dim=1), strict=True)),
        wins=int((own[:, 0, 0] > swapped[:, 0, 0]).sum()),
        n_charts=len(found),
    )
