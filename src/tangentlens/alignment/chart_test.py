"""The chart test: do the gradients of a chart prefer its own plane to the planes of other charts?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tangentlens.alignment.group_moments import GroupMoments
from tangentlens.alignment.share import BINNED_ORDERS
from tangentlens.errors import InputError
from tangentlens.proxies.charts import Charts
from tangentlens.statistics.groups import sequence_groups
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import jackknife, log_share, share_jackknife
from tangentlens.statistics.words import relation, tally


@dataclass(frozen=True, eq=False)
class ChartTest:
    """The shares of gradients in the plane of their own chart and in the planes of other charts, as means over charts.

    Attributes:
        rank: The rank of a chart's plane.
        dim: The width of the site.
        own: Shares in the own plane by order: of all sequences, then without each group of them.
        swapped: Mean shares in the planes of the other charts, likewise.
        energy: The part of the energy that each group of sequences has, the mean over charts.
        log_ratios: ln(own / swapped) for energy, of each chart that was compared, with its interval over sequences.
    """

    rank: int
    dim: int
    own: Mapping[float, Float[Tensor, "g_plus_1"]]
    swapped: Mapping[float, Float[Tensor, "g_plus_1"]]
    energy: Float[Tensor, "g"]
    log_ratios: Mapping[str, Interval]

    @property
    def n_charts(self) -> int:
        """The number of charts that were compared."""
        return len(self.log_ratios)

    @property
    def wins(self) -> int:
        """The number of charts in which the own share exceeds the swapped one, whatever their intervals."""
        return sum(ratio.value > 0 for ratio in self.log_ratios.values())

    def by_chart(self) -> str:
        """Return in how many charts the own share is significantly above the swapped one, and in how many not.

        This describes the charts. It tests nothing: a plane in which all gradients lie more than in others gives its
        own chart a larger share, and all other charts a smaller one.
        """
        kinds = [relation(ratio) for ratio in self.log_ratios.values()]
        return tally(kinds, "that in other charts' planes", "charts", "in")

    def share(self, variant: str = "own", order: float = 1.0) -> Interval:
        """Return the share of `own` or `swapped` planes, the mean over charts, with its 95% interval over sequences."""
        return share_jackknife({"own": self.own, "swapped": self.swapped}[variant][order], self.energy)

    def log_ratio(self, order: float = 1.0) -> Interval:
        """Return ln(own / swapped) with its 95% interval over test sequences."""
        own, swapped = (log_share(shares[order]) for shares in (self.own, self.swapped))
        return jackknife(own - swapped, self.energy)

    def __repr__(self) -> str:
        return (
            f"ChartTest(own {self.share()}, swapped {self.share('swapped')}, own {self.by_chart()}, "
            f"rank {self.rank} of {self.dim})"
        )


def chart_test(
    charts: Charts,
    chart: Int[Tensor, "n"],
    gradients: Float[Tensor, "n d"],
    sequences: Int[Tensor, "n"],
    n_groups: int = 16,
) -> ChartTest:
    """Return the shares of each chart's gradients in its own plane and in the planes of the other charts.

    All charts have equal weight, whatever the energy of their gradients. Every plane is then as often a chart's own as
    it is another's, and gradients that are unrelated to charts have the same share in both.

    Args:
        charts: Charts and their planes, fitted to other sequences than those tested here.
        chart: The chart of each token `(n,)`, as returned by `charts.assign`.
        gradients: Gradients of the loss with respect to the tokens' activations, `(n, d)`.
        sequences: The id of the sequence each row came from, `(n,)`.
        n_groups: Number of groups of sequences for the jackknife.
    """
    groups = sequence_groups(sequences, n_groups)
    n_groups = int(groups.max()) + 1
    parts = {}
    for number in charts.planes:
        mine = chart == number
        moments = GroupMoments.of(gradients[mine], groups[mine], n_groups)
        # Whichever group the jackknife leaves out, order 2 still takes products of two groups.
        if int((moments.energy > 0).sum()) >= 3:
            parts[str(number)] = moments
    planes = {name: charts.planes[int(name)] for name in parts}
    energies = [moments.energy for moments in parts.values()]
    pairs: list[tuple[Tensor, Tensor]] = []
    for name in planes if len(planes) > 1 else ():
        # The moments of all charts together would take far more memory than the rows.
        shares = parts.pop(name).shares(planes, BINNED_ORDERS)
        others = torch.stack([share for other, share in shares.items() if other != name]).mean(dim=0)
        pairs.append((shares[name], others))
    if not pairs:
        raise InputError(
            "the gradients of at least 2 charts must not be zero in 3 groups of sequences, but those of "
            f"{len(planes)} of {len(charts.planes)} are so; pass more tokens"
        )
    own, swapped = (torch.stack(column) for column in zip(*pairs, strict=True))
    plane = next(iter(planes.values()))
    return ChartTest(
        rank=plane.rank,
        dim=plane.dim,
        own=dict(zip(BINNED_ORDERS, own.mean(dim=0).unbind(dim=1), strict=True)),
        swapped=dict(zip(BINNED_ORDERS, swapped.mean(dim=0).unbind(dim=1), strict=True)),
        energy=torch.stack(energies).mean(dim=0),
        log_ratios={
            name: jackknife(log_share(mine[:, 0]) - log_share(theirs[:, 0]), energy)
            for name, mine, theirs, energy in zip(planes, own, swapped, energies, strict=True)
        },
    )
