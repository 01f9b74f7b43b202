"""The result of a tangent test: shares with their intervals, ratios to controls, and what may be said of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.alignment.chance import Chance
from tangentlens.alignment.permuted import Permuted
from tangentlens.alignment.share import ORDERS
from tangentlens.geometry.subspace import Subspace
from tangentlens.lazy import cached_property
from tangentlens.notebook import as_html
from tangentlens.statistics.bootstrap import bootstrap_intervals
from tangentlens.statistics.influence import DECIDES, TOP, effective_number
from tangentlens.statistics.interval import Interval
from tangentlens.statistics.jackknife import (
    LEAST_EFFECTIVE,
    jackknife,
    jackknives,
    log_odds,
    log_share,
    share_jackknife,
    share_jackknives,
)
from tangentlens.statistics.words import compare, verdict


class Cell(NamedTuple):
    """The key of one share.

    Attributes:
        variant: The proxy or control whose share it is.
        order: The order of the share.
        freq_bin: The tokens whose gradients it is of: 'all', or a frequency bin such as 'target.0'.
    """

    variant: str
    order: float
    freq_bin: str


class TokenCell(NamedTuple):
    """The key of one token share, a mean over tokens.

    Attributes:
        variant: The proxy or control whose share it is.
        freq_bin: The tokens whose gradients it is of: 'all', or a frequency bin such as 'target.0'.
    """

    variant: str
    freq_bin: str


AnyCell = TypeVar("AnyCell", Cell, TokenCell)


@dataclass(frozen=True, eq=False)
class TangentTest:
    """Shares of the proxy and its controls: `table` has every number with its interval, `verdict()` says it in words.

    Attributes:
        proxy: The name of the proxy.
        rank: The rank of the proxy and its controls; None for a mean over sites of different ranks.
        dim: The width of the site.
        shares: Shares by cell: of all sequences, then without each group of them.
        n_tokens: The number of tokens in each frequency bin whose gradient is not zero.
        energy: For each frequency bin, the part of its energy that each group of sequences has.
        n_bins: The number of frequency bins.
        token_shares: Means over tokens of their own share: of all sequences, then of each bootstrap draw.
        n_sequences: The number of sequences in each frequency bin.
        effective_tokens: How many tokens of equal energy would count as much: (sum |g|^2)^2 / sum |g|^4, by frequency
            bin.
        effective_sequences: The same for sequences, which decides on how reliable an interval is.
        held_by_top: The part of the proxy's number that the top 1% of tokens hold, by order, for all tokens.
        rms: The root mean square length of a gradient in each frequency bin: of all sequences, then without each group.
        anisotropy: The uncentred anisotropy of the gradients in each frequency bin, in the same way.
        chances: The distributions of the controls that are known in closed form.
        p_values: The probability that a draw of a control takes at least the proxy's share. For `random` and `normal`
            the draws are subspaces in any direction, and for `permuted` the proxy itself with other axes.
        subspaces: The proxy and the fitted controls by name.
        of: What the shares are of, in one word.
    """

    proxy: str
    rank: int | None
    dim: int
    shares: Mapping[Cell, Float[Tensor, "g_plus_1"]]
    n_tokens: Mapping[str, int]
    energy: Mapping[str, Float[Tensor, "g"]]
    n_bins: int
    token_shares: Mapping[TokenCell, Float[Tensor, "draws_plus_1"]] = field(default_factory=dict)
    n_sequences: Mapping[str, int] = field(default_factory=dict)
    effective_tokens: Mapping[str, float] = field(default_factory=dict)
    effective_sequences: Mapping[str, float] = field(default_factory=dict)
    held_by_top: Mapping[float, float] = field(default_factory=dict)
    rms: Mapping[str, Float[Tensor, "g_plus_1"]] = field(default_factory=dict)
    anisotropy: Mapping[str, Float[Tensor, "g_plus_1"]] = field(default_factory=dict)
    chances: Mapping[Cell, Chance | Permuted] = field(default_factory=dict)
    p_values: Mapping[Cell, float] = field(default_factory=dict)
    subspaces: Mapping[str, Subspace] = field(default_factory=dict)
    of: str = "gradient"

    def share(self, variant: str | None = None, order: float = 1.0, freq_bin: str = "all") -> Interval:
        """Return a share with its 95% interval: over test sequences, or for controls in closed form over their draws.

        There is no interval (its ends are NaN) if fewer than 2 groups of sequences hold the gradients in effect. At
        order 2, a share so near 0 or 1 that noise takes the estimate outside is not estimable: its value is NaN.

        Args:
            variant: The proxy, which is the default, or a control.
            order: The order of the share.
            freq_bin: 'all', or a frequency bin such as 'target.0'.
        """
        return self._intervals[Cell(variant or self.proxy, order, freq_bin)]

    def log_ratio(self, control: str, order: float = 1.0, freq_bin: str = "all") -> Interval:
        """Return ln(share of the proxy / share of the control) with its 95% interval over test sequences."""
        return self._log_ratios[Cell(control, order, freq_bin)]

    def token_share(self, variant: str | None = None, freq_bin: str = "all") -> Interval:
        """Return the mean over tokens of |Q'g|^2 / |g|^2 with its 95% bootstrap interval over test sequences.

        Unlike in `share`, a long gradient has no more weight than a short one.
        """
        return self._token_intervals[TokenCell(variant or self.proxy, freq_bin)]

    def token_log_ratio(self, control: str, freq_bin: str = "all") -> Interval:
        """Return ln(token share of the proxy / of the control) with its 95% interval over test sequences."""
        return self._token_log_ratios[TokenCell(control, freq_bin)]

    # The intervals of a bin are computed together: a due step has thousands, and one by one they would take longer than
    # the shares themselves.

    @cached_property
    def _intervals(self) -> dict[Cell, Interval]:
        """Every share with its interval."""
        found = {cell: chance.interval() for cell, chance in self.chances.items()}
        for freq_bin, cells in _by_bin(cell for cell in self.shares if cell not in found):
            shares = torch.stack([self.shares[cell] for cell in cells])
            found |= zip(cells, share_jackknives(shares, self.energy[freq_bin]), strict=True)
        return found

    @cached_property
    def _log_ratios(self) -> dict[Cell, Interval]:
        """The log-ratio of the proxy's share to that of every variant, with its interval."""
        found: dict[Cell, Interval] = {}
        for freq_bin, cells in _by_bin(self.shares):
            proxy, other = (
                torch.stack([self.shares[cell] for cell in of])
                for of in ([cell._replace(variant=self.proxy) for cell in cells], cells)
            )
            found |= zip(cells, jackknives(log_share(proxy) - log_share(other), self.energy[freq_bin]), strict=True)
        return found

    @cached_property
    def _token_intervals(self) -> dict[TokenCell, Interval]:
        """Every token share with its interval."""
        found: dict[TokenCell, Interval] = {}
        for freq_bin, cells in _by_bin(self.token_shares):
            shares = log_odds(torch.stack([self.token_shares[cell] for cell in cells]))
            intervals = bootstrap_intervals(shares, self.n_sequences[freq_bin])
            found |= zip(cells, (interval.from_log_odds() for interval in intervals), strict=True)
        return found

    @cached_property
    def _token_log_ratios(self) -> dict[TokenCell, Interval]:
        """The log-ratio of the proxy's token share to that of every variant, with its interval."""
        found: dict[TokenCell, Interval] = {}
        for freq_bin, cells in _by_bin(self.token_shares):
            logs = log_share(torch.stack([self.token_shares[cell] for cell in cells]))
            proxy = log_share(self.token_shares[TokenCell(self.proxy, freq_bin)])
            found |= zip(cells, bootstrap_intervals(proxy - logs, self.n_sequences[freq_bin]), strict=True)
        return found

    def rms_of_bin(self, freq_bin: str) -> Interval:
        """Return the root mean square length of a gradient in a frequency bin, with its 95% interval over sequences.

        It is over the tokens that the shares are of: those whose gradient is not zero.
        """
        return jackknife(self.rms[freq_bin].log(), self.energy[freq_bin]).exp()

    def anisotropy_of_bin(self, freq_bin: str) -> Interval:
        """Return the uncentred anisotropy of the gradients in a frequency bin, with its 95% interval over sequences."""
        return share_jackknife(self.anisotropy[freq_bin], self.energy[freq_bin])

    @property
    def variants(self) -> list[str]:
        """Return the name of the proxy, then those of its controls in the order in which they were requested."""
        return list(dict.fromkeys(cell.variant for cell in self.shares))

    def frequency_log_ratio(
        self, kind: str = "target", order: float = 1.0, variant: str | None = None
    ) -> Interval | None:
        """Return ln(share on the most frequent tokens / share on the rarest) with its 95% interval over sequences.

        Args:
            kind: Whether tokens are binned by their 'input' or their 'target'.
            order: The order of the share.
            variant: The proxy, which is the default, or a control.

        Returns:
            The log-ratio, or None if one of the two bins has no share.
        """
        rarest, most = (Cell(variant or self.proxy, order, f"{kind}.{end}") for end in (0, self.n_bins - 1))
        if rarest not in self.shares or most not in self.shares:
            return None
        energies = (self.energy[cell.freq_bin] for cell in (most, rarest))
        return jackknife(log_share(self.shares[most]) - log_share(self.shares[rarest]), *energies)

    @property
    def table(self) -> pl.DataFrame:
        """Return every number with its interval: one row per metric (`share`, `token_share`), variant, order and bin.

        The columns `ci_over` and `log_ratio_over` name the source of variation that an interval covers.
        """
        rows = []
        for cell in self.shares:
            ratio = None if cell.variant == self.proxy else self.log_ratio(*cell)
            rows.append(self._row("share", cell, self.share(*cell), ratio, self.p_values.get(cell)))
        for token_cell in self.token_shares:
            cell = Cell(token_cell.variant, 1.0, token_cell.freq_bin)
            ratio = None if cell.variant == self.proxy else self.token_log_ratio(*token_cell)
            rows.append(self._row("token_share", cell, self.token_share(*token_cell), ratio, None))
        return pl.DataFrame(rows, infer_schema_length=None)

    def verdict(self) -> str:
        """Return what the intervals allow to be said, in one line for each order and control."""
        lines = self._without_interval()
        for order in self._orders:
            lines += [self._taken(order), *(f"  {warning}" for warning in self._warnings(order))]
            for control in self.variants[1:]:
                p_value = self.p_values.get(Cell(control, order, "all"))
                lines.append(f"  {compare(control, self.log_ratio(control, order), p_value)}")
        if self.token_shares:
            lines.append(f"Token by token, it takes {self.token_share()} of the energy on average.")
            lines += [f"  {compare(control, self.token_log_ratio(control))}" for control in self.variants[1:]]
        return "\n".join(lines)

    @property
    def _orders(self) -> list[float]:
        """The orders of the shares of all tokens."""
        return list(dict.fromkeys(cell.order for cell in self.shares if cell.freq_bin == "all"))

    def _taken(self, order: float) -> str:
        what = f"the {self.of}'s {ORDERS[order]}"
        return f"The proxy (rank {self.rank} of {self.dim}) takes {self.share(order=order)} of {what}."

    def _without_interval(self) -> list[str]:
        if effective_number(self.energy["all"]) >= LEAST_EFFECTIVE:
            return []
        return [f"Shares have no interval: {self.effective_sequences['all']:.1f} effective sequences hold the energy."]

    def _warnings(self, order: float) -> list[str]:
        held = self.held_by_top.get(order, 0.0)
        return [f"Warning: {TOP:.0%} of the tokens hold {held:.0%} of this number."] if held > DECIDES else []

    def _compared(self) -> Iterator[tuple[object, ...]]:
        """Yield how the proxy compares with each control: what is shared, the control, both shares, and the verdict."""
        for order in self._orders:
            for control in self.variants[1:]:
                ratio, p_value = self.log_ratio(control, order), self.p_values.get(Cell(control, order, "all"))
                yield ORDERS[order], control, self.share(control, order), ratio.exp(), verdict(ratio, p_value)
        for control in self.variants[1:] if self.token_shares else ():
            ratio = self.token_log_ratio(control)
            yield "energy, token by token", control, self.token_share(control), ratio.exp(), verdict(ratio)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the share of the proxy, and how it compares with each control."""
        first, *others = self._orders
        facts = [*self._without_interval(), *self._warnings(first)]
        facts += [text for order in others for text in (self._taken(order), *self._warnings(order))]
        columns = ("share of", "control", "its share", "proxy / it", "the proxy is")
        return as_html(self._taken(first), facts, columns, self._compared())

    def _row(
        self, metric: str, cell: Cell, share: Interval, ratio: Interval | None, p_value: float | None
    ) -> dict[str, Any]:
        """Return one row of the table."""
        of_ratio = {} if ratio is None else ratio.columns()
        return {
            "metric": metric,
            **cell._asdict(),
            **share.columns(),
            "log_ratio": of_ratio.get("value"),
            "log_ratio_low": of_ratio.get("ci_low"),
            "log_ratio_high": of_ratio.get("ci_high"),
            "log_ratio_over": of_ratio.get("ci_over"),
            "p_value": p_value,
            "n": self.n_tokens[cell.freq_bin],
            "effective_tokens": self.effective_tokens.get(cell.freq_bin),
            "effective_sequences": self.effective_sequences.get(cell.freq_bin),
        }

    def __repr__(self) -> str:
        return f"TangentTest(rank={self.rank}, dim={self.dim}, tokens={self.n_tokens['all']})\n{self.verdict()}"


def _by_bin(cells: Iterable[AnyCell]) -> Iterator[tuple[str, list[AnyCell]]]:
    """Yield each frequency bin and its cells."""
    found: dict[str, list[AnyCell]] = {}
    for cell in cells:
        found.setdefault(cell.freq_bin, []).append(cell)
    yield from found.items()


def average(tests: Iterable[TangentTest]) -> TangentTest:
    """Return the mean over sites of their tangent tests.

    Means are taken within each jackknife replicate, so the intervals account for the fact that all sites see the same
    sequences. Chance depends on the spectrum of a single site, so the mean has no p-values. It has a rank if that is
    the same at all sites. Its number of tokens, and the effective numbers, are the smallest of all sites.

    Args:
        tests: The tests of the sites, on the same sequences.
    """
    tests = list(tests)
    cells = [cell for cell in tests[0].shares if all(cell in test.shares for test in tests)]
    shares = {cell: torch.stack([test.shares[cell] for test in tests]).mean(dim=0) for cell in cells}
    bins = [name for name in tests[0].rms if all(name in test.rms for test in tests)]
    ranks = {test.rank for test in tests}
    rank = ranks.pop() if len(ranks) == 1 else None
    # Every site has the same weight in the mean, whatever the energy of its gradients.
    energy = {name: torch.stack([test.energy[name] for test in tests]).mean(dim=0) for name in tests[0].energy}
    return TangentTest(
        proxy=tests[0].proxy,
        rank=rank,
        dim=tests[0].dim,
        shares=shares,
        n_tokens={name: min(test.n_tokens[name] for test in tests) for name in tests[0].n_tokens},
        energy=energy,
        n_bins=tests[0].n_bins,
        effective_tokens={name: min(one.effective_tokens[name] for one in tests) for name in energy},
        effective_sequences={name: min(one.effective_sequences[name] for one in tests) for name in energy},
        rms={name: torch.stack([test.rms[name] for test in tests]).mean(dim=0) for name in bins},
        anisotropy={name: torch.stack([test.anisotropy[name] for test in tests]).mean(dim=0) for name in bins},
        of=tests[0].of,
    )
