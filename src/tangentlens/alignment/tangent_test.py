"""The tangent test: a proxy fitted on some sequences against the gradients of others, beside controls of its rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tangentlens.alignment.chance import Chance, chance_beside
from tangentlens.alignment.frequency import N_BINS, FrequencyBins
from tangentlens.alignment.intervals import (
    Interval,
    bootstrap_interval,
    cluster_bootstrap,
    group_products,
    jackknife,
    leave_one_out,
    log_odds,
    sequence_groups,
    share_jackknife,
)
from tangentlens.alignment.share import moment_shares
from tangentlens.errors import InputError
from tangentlens.geometry.rows import as_rows
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies import DRAWN, PROXIES
from tangentlens.proxies.principal import Principal

PROXY = "semi_nmf"
CONTROLS = ("normal", "random", "pca", "covariance", "tail", "kmeans", "ica", "shuffled")
ORDERS = (1.0, 2.0, math.inf)
# Frequency bins have few tokens each, and no leading direction to speak of.
BINNED_ORDERS = (1.0, 2.0)
WHAT = {1.0: "energy", 2.0: "anisotropy", math.inf: "leading direction"}
# How often a control that is drawn is drawn; its share is the mean.
N_DRAWS = 8
# Leading eigenvectors of all test gradients, from which those without a group are found.
_NEAR = 8


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

    def share(self, variant: str = PROXY, order: float = 1.0, freq_bin: str = "all") -> Interval:
        """The share with its 95% interval: over test sequences, or for `random` and `normal` over their draws."""
        cell = Cell(variant, order, freq_bin)
        if cell in self.chances:
            return self.chances[cell].interval()
        return share_jackknife(self.shares[cell], self.present[freq_bin])

    def log_ratio(self, control: str, order: float = 1.0, freq_bin: str = "all") -> Interval:
        """ln(share of the proxy / share of the control) with its 95% interval over test sequences."""
        proxy, other = (self.shares[Cell(variant, order, freq_bin)] for variant in (PROXY, control))
        return jackknife(_log(proxy) - _log(other), self.present[freq_bin])

    def token_share(self, variant: str = PROXY, freq_bin: str = "all") -> Interval:
        """The mean over tokens of |Q'g|^2 / |g|^2, in which no gradient outweighs another; bootstrap over sequences."""
        replicates = log_odds(self.token_shares[TokenCell(variant, freq_bin)])
        return bootstrap_interval(replicates, self.n_sequences[freq_bin]).from_log_odds()

    def token_log_ratio(self, control: str, freq_bin: str = "all") -> Interval:
        """ln(mean token share of the proxy / of the control) with its 95% interval over test sequences."""
        proxy, other = (self.token_shares[TokenCell(variant, freq_bin)] for variant in (PROXY, control))
        return bootstrap_interval(_log(proxy) - _log(other), self.n_sequences[freq_bin])

    @property
    def variants(self) -> list[str]:
        """The proxy, then its controls in the order they were asked for."""
        return list(dict.fromkeys(cell.variant for cell in self.shares))

    def frequency_log_ratio(self, kind: str = "target", order: float = 1.0, variant: str = PROXY) -> Interval | None:
        """ln(share on the most frequent tokens / share on the rarest); None if it was not binned so."""
        rarest, most = (Cell(variant, order, f"{kind}.{end}") for end in (0, self.n_bins - 1))
        if rarest not in self.shares or most not in self.shares:
            return None
        present = self.present[most.freq_bin] | self.present[rarest.freq_bin]
        return jackknife(_log(self.shares[most]) - _log(self.shares[rarest]), present)

    @property
    def table(self) -> pl.DataFrame:
        """One row per metric (`share`, `token_share`), variant, order and bin; every interval says what it is over."""
        rows = []
        for cell in self.shares:
            ratio = None if cell.variant == PROXY else self.log_ratio(*cell)
            rows.append(_row("share", cell, self.share(*cell), ratio, self.p_values.get(cell), self.n_tokens))
        for token_cell in self.token_shares:
            cell = Cell(token_cell.variant, 1.0, token_cell.freq_bin)
            ratio = None if cell.variant == PROXY else self.token_log_ratio(*token_cell)
            rows.append(_row("token_share", cell, self.token_share(*token_cell), ratio, None, self.n_tokens))
        return pl.DataFrame(rows, infer_schema_length=None)

    def verdict(self) -> str:
        """What the intervals allow to be said, one sentence an order and control."""
        lines = []
        for order in dict.fromkeys(cell.order for cell in self.shares if cell.freq_bin == "all"):
            share = self.share(order=order)
            lines.append(f"The proxy (rank {self.rank} of {self.dim}) takes {share} of the gradient's {WHAT[order]}.")
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
        "value": share.value,
        "ci_low": share.low,
        "ci_high": share.high,
        "ci_over": share.over,
        "log_ratio": ratio and ratio.value,
        "log_ratio_low": ratio and ratio.low,
        "log_ratio_high": ratio and ratio.high,
        "log_ratio_over": ratio and ratio.over,
        "p_value": p_value,
        "n": n[cell.freq_bin],
    }


def compare(control: str, log_ratio: Interval, p_value: float | None = None) -> str:
    """Above, below, or not told apart: the log-ratio of proxy to control in words.

    >>> compare("random", Interval(0.7, 0.6, 0.8), p_value=0.2)
    '2.01 [1.82, 2.23] times the random control: above its mean, as a random draw often is (p = 0.2)'
    """
    told = f"{log_ratio.exp()} times the {control} control: "
    if log_ratio.high < 0:
        return told + "below it"
    if log_ratio.low <= 0:
        return told + "not told apart from it"
    if p_value is None:
        return told + "above it"
    often = "above its mean, as a random draw often is" if p_value >= 0.05 else "above it"
    return f"{told}{often} (p = {p_value:.2g})"


def tangent_test(
    activations: Any,
    gradients: Any,
    sequences: Any,
    tokens: Any = None,
    targets: Any = None,
    rank: int = 16,
    controls: Sequence[str] = CONTROLS,
    bins: FrequencyBins | None = None,
    n_groups: int = 16,
    seed: int = 0,
) -> TangentTest:
    """Fit the proxy on the first half of the sequences and test it on the gradients of the second half.

    Args:
        activations: Rows `(n, d)` at one site.
        gradients: Gradients of the loss by those activations, `(n, d)`.
        sequences: The id of the sequence each row came from, `(n,)`.
        tokens: Input token ids `(n,)`, to bin by.
        targets: Target token ids `(n,)`, to bin by; a negative id is 'no target'.
        rank: Number of concepts. If they depend on each other the proxy's rank is lower, and the controls' with it.
        controls: Which of `CONTROLS`; docs/concepts.md says what each excludes.
        bins: Frequency bins; by default from the counts of `tokens` (or `targets`) themselves.
        n_groups: Groups of sequences for the jackknife.
        seed: Of everything that is drawn.

    >>> make = torch.Generator().manual_seed(0)
    >>> rows, sequences = torch.randn(800, 12, generator=make), torch.arange(800) // 20
    >>> rows[:, :3] *= 5
    >>> tangent_test(rows, rows.sin(), sequences, rank=3, controls=["normal"]).log_ratio("normal").exp()
    1.16 [1.11, 1.22]
    """
    rows, grads = as_rows(activations), as_rows(gradients)
    ids = torch.as_tensor(sequences, device=rows.device)
    kinds = {"input": tokens, "target": targets}
    binned = {kind: torch.as_tensor(of, device=rows.device) for kind, of in kinds.items() if of is not None}
    _check(rows, grads, {"sequences": ids, **binned}, rank, controls)
    fit = first_half(ids)
    subspaces, drawn = _fitted(rows[fit], rank, controls, seed)
    tested = _Tested(subspaces, drawn, controls)
    grads, ids = grads[~fit], ids[~fit]
    groups = sequence_groups(ids, n_groups)
    binned = {kind: of[~fit] for kind, of in binned.items()}
    tokenwise = _token_shares(grads, tested)
    for freq_bin, chosen in _selections(binned, bins, len(groups), ids.device):
        parts = group_products(grads[chosen], groups[chosen], int(groups.max()) + 1)
        tested.add_bin(freq_bin, parts, tokenwise[chosen], ids[chosen], seed)
    if not tested.shares:
        raise InputError(
            "the gradients of at least 2 groups of test sequences must not be zero, but fewer are; "
            "check that this site is in the loss, or pass more sequences"
        )
    return tested.result(bins.n_bins if bins else N_BINS)


def _check(rows: Tensor, grads: Tensor, labels: Mapping[str, Tensor], rank: int, controls: Sequence[str]) -> None:
    n, d = rows.shape
    for name, x, shape in [("gradients", grads, (n, d)), *((name, x, (n,)) for name, x in labels.items())]:
        if x.shape != shape:
            raise InputError(f"{name} must be {shape}, a row for each activation, but came as {tuple(x.shape)}")
    unknown = set(controls) - set(CONTROLS)
    if unknown:
        raise InputError(f"controls must be among {', '.join(CONTROLS)}, but {', '.join(sorted(unknown))} came")
    # The normal control must find room for its rank beside the proxy's.
    most = d // 2 if "normal" in controls else d - 1
    if not 1 <= rank <= most:
        raise InputError(
            f"rank must be between 1 and {most} at width {d} with these controls, but is {rank}; choose another"
        )


def first_half(sequences: Int[Tensor, "n"]) -> Bool[Tensor, "n"]:
    """Which rows belong to the first half of the sequences, by id: they fit, the others test."""
    _, index = sequences.unique(return_inverse=True)
    count = int(index.max()) + 1 if len(index) else 0
    if count < 4:
        raise InputError(f"at least 4 sequences are needed, 2 to fit and 2 to test, but {count} came; pass more")
    return index < count // 2


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
    return TangentTest(rank, tests[0].dim, shares, tests[0].n_tokens, present, tests[0].n_bins)


def _selections(
    binned: Mapping[str, Int[Tensor, "n"]], bins: FrequencyBins | None, n: int, device: torch.device
) -> Iterator[tuple[str, Bool[Tensor, "n"]]]:
    yield "all", torch.ones(n, dtype=torch.bool, device=device)
    for kind, ids in binned.items():
        if not (ids >= 0).any():
            continue
        used = bins or FrequencyBins.of(ids[ids >= 0].bincount())
        index = used.assign(ids)
        for number in range(used.n_bins):
            yield f"{kind}.{number}", index == number


def _fitted(
    rows: Float[Tensor, "n d"], rank: int, controls: Sequence[str], seed: int
) -> tuple[dict[str, Subspace], dict[str, str]]:
    """The proxy and its fitted and drawn controls by name, and which control each draw is of."""
    principal = Principal.of(rows)
    proxy = PROXIES[PROXY](principal, rank, seed)
    found, drawn = {PROXY: proxy}, {}
    for name in controls:
        if name in PROXIES:
            found[name] = PROXIES[name](principal, proxy.rank, seed)
        for number in range(N_DRAWS if name in DRAWN else 0):
            found[f"{name} {number}"] = DRAWN[name](principal, proxy.rank, seed + number)
            drawn[f"{name} {number}"] = name
    return found, drawn


def _token_shares(grads: Float[Tensor, "n d"], tested: _Tested) -> Float[Tensor, "n variants"]:
    """|Q'g|^2 / |g|^2 of every token and fitted subspace; NaN where the gradient is zero."""
    unit = grads / grads.abs().amax(dim=1, keepdim=True)
    bases = torch.cat([q.basis for q in tested.subspaces.values()], dim=1).to(grads)
    inside = (unit @ bases).square().split([q.rank for q in tested.subspaces.values()], dim=1)
    return torch.stack([part.sum(dim=1) for part in inside], dim=1) / unit.square().sum(dim=1, keepdim=True)


class _Tested:
    """What a `TangentTest` is made of, bin by bin."""

    def __init__(self, subspaces: dict[str, Subspace], drawn: dict[str, str], controls: Sequence[str]) -> None:
        self.subspaces = subspaces
        self.drawn = drawn
        self.controls = controls
        self.proxy = subspaces[PROXY]
        self.shares: dict[Cell, Tensor] = {}
        self.token_shares: dict[TokenCell, Tensor] = {}
        self.chances: dict[Cell, Chance] = {}
        self.p_values: dict[Cell, float] = {}
        self.n_tokens: dict[str, int] = {}
        self.n_sequences: dict[str, int] = {}
        self.present: dict[str, Tensor] = {}

    def add_bin(
        self,
        freq_bin: str,
        parts: Float[Tensor, "g d d"],
        tokenwise: Float[Tensor, "n variants"],
        ids: Int[Tensor, "n"],
        seed: int,
    ) -> None:
        self.n_tokens[freq_bin] = len(ids)
        self.present[freq_bin] = parts.diagonal(dim1=1, dim2=2).sum(dim=1) > 0
        if int(self.present[freq_bin].sum()) < 2:
            return
        totals = leave_one_out(parts)
        values, vectors = torch.linalg.eigh(totals[0])
        orders = ORDERS if freq_bin == "all" else BINNED_ORDERS
        near = vectors[:, -_NEAR:].flip(1)
        replicates = torch.stack([moment_shares(total, self.subspaces, orders, near) for total in totals])
        for number, order in enumerate(orders):
            for variant, found in self._by_variant(replicates[:, :, number]).items():
                self.shares[Cell(variant, order, freq_bin)] = found
            self._add_chance(values, vectors, order, freq_bin)
            self._add_draws(replicates[0, :, number], order, freq_bin)
        self._add_tokens(tokenwise, ids, freq_bin, seed)

    def _by_variant(self, found: Float[Tensor, "replicates subspaces"]) -> dict[str, Tensor]:
        """The proxy and each control in turn: fitted, the mean of draws, or the mean of all there could be."""
        by_name: dict[str, list[Tensor]] = {}
        for name, column in zip(self.subspaces, found.unbind(dim=1), strict=True):
            by_name.setdefault(self.drawn.get(name, name), []).append(column)
        means = {name: torch.stack(columns).mean(dim=0) for name, columns in by_name.items()}
        proxy, rank, dim = means[PROXY], self.proxy.rank, self.proxy.dim
        # The means of the random and the normal control, in closed form; docs/concepts.md, 'Chance'.
        means["random"] = torch.full_like(proxy, rank / dim)
        means["normal"] = (1 - proxy) * rank / (dim - rank)
        return {name: means[name] for name in (PROXY, *self.controls)}

    def _add_chance(self, values: Tensor, vectors: Tensor, order: float, freq_bin: str) -> None:
        anywhere, beside = chance_beside(values, vectors, self.proxy, order)
        for control, chance in (("random", anywhere), ("normal", beside)):
            if control in self.controls:
                cell = Cell(control, order, freq_bin)
                self.chances[cell] = chance
                # The ratio to the mean of `normal` grows with the share alone, so one law decides on both
                # (docs/concepts.md, 'Tests').
                self.p_values[cell] = anywhere.p_value(float(self.shares[Cell(PROXY, order, freq_bin)][0]))

    def _add_draws(self, found: Float[Tensor, "subspaces"], order: float, freq_bin: str) -> None:
        for control in dict.fromkeys(self.drawn.values()):
            draws = torch.stack(
                [share for name, share in zip(self.subspaces, found, strict=True) if self.drawn.get(name) == control]
            )
            beaten = int((draws >= self.shares[Cell(PROXY, order, freq_bin)][0]).sum())
            self.p_values[Cell(control, order, freq_bin)] = (1 + beaten) / (1 + len(draws))

    def _add_tokens(
        self, tokenwise: Float[Tensor, "n variants"], ids: Int[Tensor, "n"], freq_bin: str, seed: int
    ) -> None:
        used = ~tokenwise[:, 0].isnan()
        _, index = ids[used].unique(return_inverse=True)
        n_sequences = int(index.max()) + 1
        if n_sequences < 2:
            return
        counted = torch.cat([tokenwise[used].double(), torch.ones_like(tokenwise[used][:, :1]).double()], dim=1)
        sums = counted.new_zeros(n_sequences, counted.shape[1]).index_add_(0, index, counted)
        replicates = cluster_bootstrap(sums, seed=seed)
        self.n_sequences[freq_bin] = n_sequences
        for variant, found in self._by_variant(replicates[:, :-1] / replicates[:, -1:]).items():
            self.token_shares[TokenCell(variant, freq_bin)] = found

    def result(self, n_bins: int) -> TangentTest:
        return TangentTest(
            rank=self.proxy.rank,
            dim=self.proxy.dim,
            shares=self.shares,
            n_tokens=self.n_tokens,
            present=self.present,
            n_bins=n_bins,
            token_shares=self.token_shares,
            n_sequences=self.n_sequences,
            chances=self.chances,
            p_values=self.p_values,
            subspaces={name: q for name, q in self.subspaces.items() if name not in self.drawn},
        )


def _log(share: Tensor) -> Tensor:
    return share.clamp_min(1e-12).log()
