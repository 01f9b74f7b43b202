"""What a tangent test found: shares with their intervals, ratios to controls, and what may be said of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import polars as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tangentlens.alignment.chance import Chance
from tangentlens.alignment.share import ORDERS
from tangentlens.geometry.subspace import Subspace
from tangentlens.statistics.bootstrap import bootstrap_interval
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import jackknife, log_odds, log_share, share_jackknife
from tangentlens.statistics.words import compare


class Cell(NamedTuple):
    """One number of the test: which subspace, at which order, on the gradients of which tokens."""

    variant: str
    order: float
    freq_bin: str


class TokenCell(NamedTuple):
    """One mean over tokens: which subspace, on the gradients of which tokens."""

    variant: str
    freq_bin: str


@dataclass(frozen=True, eq=False)
class TangentTest:
    """Shares of the proxy and its controls: `table` has every number with its interval, `verdict()` the words."""

    proxy: str
    rank: int | None
    dim: int
    shares: Mapping[Cell, Float[Tensor, "g_plus_1"]]
    n_tokens: Mapping[str, int]
    present: Mapping[str, Bool[Tensor, "g"]]
    n_bins: int
    token_shares: Mapping[TokenCell, Float[Tensor, "draws_plus_1"]] = field(default_factory=dict)
    n_sequences: Mapping[str, int] = field(default_factory=dict)
    chances: Mapping[Cell, Chance] = field(default_factory=dict)
    p_values: Mapping[Cell, float] = field(default_factory=dict)
    subspaces: Mapping[str, Subspace] = field(default_factory=dict)

    def share(self, variant: str | None = None, order: float = 1.0, freq_bin: str = "all") -> Interval:
        """The share with its 95% interval: over test sequences, or for `random` and `normal` over their draws."""
        cell = Cell(variant or self.proxy, order, freq_bin)
        if cell in self.chances:
            return self.chances[cell].interval()
        return share_jackknife(self.shares[cell], self.present[freq_bin])

    def log_ratio(self, control: str, order: float = 1.0, freq_bin: str = "all") -> Interval:
        """ln(share of the proxy / share of the control) with its 95% interval over test sequences."""
        proxy, other = (self.shares[Cell(variant, order, freq_bin)] for variant in (self.proxy, control))
        return jackknife(log_share(proxy) - log_share(other), self.present[freq_bin])

    def token_share(self, variant: str | None = None, freq_bin: str = "all") -> Interval:
        """The mean over tokens of |Q'g|^2 / |g|^2, in which no gradient outweighs another; bootstrap over sequences."""
        replicates = log_odds(self.token_shares[TokenCell(variant or self.proxy, freq_bin)])
        return bootstrap_interval(replicates, self.n_sequences[freq_bin]).from_log_odds()

    def token_log_ratio(self, control: str, freq_bin: str = "all") -> Interval:
        """ln(mean token share of the proxy / of the control) with its 95% interval over test sequences."""
        proxy, other = (self.token_shares[TokenCell(variant, freq_bin)] for variant in (self.proxy, control))
        return bootstrap_interval(log_share(proxy) - log_share(other), self.n_sequences[freq_bin])

    @property
    def variants(self) -> list[str]:
        """The proxy, then its controls in the order they were asked for."""
        return list(dict.fromkeys(cell.variant for cell in self.shares))

    def frequency_log_ratio(
        self, kind: str = "target", order: float = 1.0, variant: str | None = None
    ) -> Interval | None:
        """ln(share on the most frequent tokens / share on the rarest); None if it was not binned so."""
        rarest, most = (Cell(variant or self.proxy, order, f"{kind}.{end}") for end in (0, self.n_bins - 1))
        if rarest not in self.shares or most not in self.shares:
            return None
        present = self.present[most.freq_bin] | self.present[rarest.freq_bin]
        return jackknife(log_share(self.shares[most]) - log_share(self.shares[rarest]), present)

    @property
    def table(self) -> pl.DataFrame:
        """One row per metric (`share`, `token_share`), variant, order and bin; every interval says what it is over."""
        rows = []
        for cell in self.shares:
            ratio = None if cell.variant == self.proxy else self.log_ratio(*cell)
            rows.append(_row("share", cell, self.share(*cell), ratio, self.p_values.get(cell), self.n_tokens))
        for token_cell in self.token_shares:
            cell = Cell(token_cell.variant, 1.0, token_cell.freq_bin)
            ratio = None if cell.variant == self.proxy else self.token_log_ratio(*token_cell)
            rows.append(_row("token_share", cell, self.token_share(*token_cell), ratio, None, self.n_tokens))
        return pl.DataFrame(rows, infer_schema_length=None)

    def verdict(self) -> str:
        """What the intervals allow to be said, one sentence an order and control."""
        lines = []
        for order in dict.fromkeys(cell.order for cell in self.shares if cell.freq_bin == "all"):
            share = self.share(order=order)
            lines.append(f"The proxy (rank {self.rank} of {self.dim}) takes {share} of the gradient's {ORDERS[order]}.")
            for control in self.variants[1:]:
                p_value = self.p_values.get(Cell(control, order, "all"))
                lines.append(f"  {compare(control, self.log_ratio(control, order), p_value)}")
        if self.token_shares:
            lines.append(f"Token by token, it takes {self.token_share()} of the energy on average.")
            lines += [f"  {compare(control, self.token_log_ratio(control))}" for control in self.variants[1:]]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"TangentTest(rank={self.rank}, dim={self.dim}, tokens={self.n_tokens['all']})\n{self.verdict()}"


def _row(
    metric: str, cell: Cell, share: Interval, ratio: Interval | None, p_value: float | None, n: Mapping[str, int]
) -> dict[str, Any]:
    return {
        "metric": metric,
        **cell._asdict(),
        **share.columns(),
        "log_ratio": ratio and ratio.value,
        "log_ratio_low": ratio and ratio.ci_low,
        "log_ratio_high": ratio and ratio.ci_high,
        "log_ratio_over": ratio and ratio.ci_over,
        "p_value": p_value,
        "n": n[cell.freq_bin],
    }


def average(tests: Iterable[TangentTest]) -> TangentTest:
    """The mean share over sites, with intervals that know the sites share their sequences.

    A chance level is of one site's spectrum, so the average has no p-values; it has a rank if the sites agree on it.
    """
    tests = list(tests)
    cells = [cell for cell in tests[0].shares if all(cell in test.shares for test in tests)]
    shares = {cell: torch.stack([test.shares[cell] for test in tests]).mean(dim=0) for cell in cells}
    ranks = {test.rank for test in tests}
    rank = ranks.pop() if len(ranks) == 1 else None
    present = {name: torch.stack([test.present[name] for test in tests]).any(dim=0) for name in tests[0].present}
    return TangentTest(tests[0].proxy, rank, tests[0].dim, shares, tests[0].n_tokens, present, tests[0].n_bins)
