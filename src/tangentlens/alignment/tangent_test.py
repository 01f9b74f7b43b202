"""The tangent test: a proxy fitted on some sequences against the gradients of others, beside controls of its rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tangentlens.alignment.chance import Chance, chance_beside
from tangentlens.alignment.frequency import N_BINS, FrequencyBins
from tangentlens.alignment.share import replicate_shares
from tangentlens.alignment.tangent_result import PROXY, Cell, TangentTest, TokenCell
from tangentlens.errors import InputError
from tangentlens.geometry.leading import NEAR, leading_vectors
from tangentlens.geometry.rows import as_numbers, as_rows, group_products
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies import DRAWN, PROXIES
from tangentlens.proxies.principal import Principal
from tangentlens.statistics.bootstrap import bootstrap_means
from tangentlens.statistics.groups import sequence_groups
from tangentlens.statistics.jackknife import leave_one_out

CONTROLS = ("normal", "random", "pca", "covariance", "tail", "kmeans", "ica", "shuffled")
ORDERS = (1.0, 2.0, math.inf)
# Frequency bins have few tokens each, and no leading direction to speak of.
BINNED_ORDERS = (1.0, 2.0)
# How often a control that is drawn is drawn; its share is the mean.
N_DRAWS = 8


def tangent_test(
    activations: Any,
    gradients: Any,
    sequences: Any,
    tokens: Any = None,
    targets: Any = None,
    rank: int = 16,
    controls: Sequence[str] = CONTROLS,
    orders: Sequence[float] = ORDERS,
    bins: FrequencyBins | None = None,
    fit_on: Any = None,
    n_groups: int = 16,
    seed: int = 0,
) -> TangentTest:
    """Fit the proxy on the first half of the sequences and test it on the gradients of the second half.

    Or fit it on other rows, and test it on the gradients of all.

    Args:
        activations: Rows `(n, d)` at one site.
        gradients: Gradients of the loss by those activations, `(n, d)`.
        sequences: The id of the sequence each row came from, `(n,)`.
        tokens: Input token ids `(n,)`, to bin by.
        targets: Target token ids `(n,)`, to bin by; a negative id is 'no target'.
        rank: Number of concepts. If they depend on each other the proxy's rank is lower, and the controls' with it.
        controls: Which of `CONTROLS`; docs/concepts.md says what each excludes.
        orders: Of the shares; frequency bins have those of order 1 and 2 only.
        bins: Frequency bins; by default from the counts of `tokens` (or `targets`) themselves.
        fit_on: Activations `(m, d)` of other sequences at the same site, to fit the proxy and its controls on.
        n_groups: Groups of sequences for the jackknife.
        seed: Of everything that is drawn.

    >>> make = torch.Generator().manual_seed(0)
    >>> rows, sequences = torch.randn(800, 12, generator=make), torch.arange(800) // 20
    >>> rows[:, :3] *= 5
    >>> tangent_test(rows, rows.sin(), sequences, rank=3, controls=["normal"]).log_ratio("normal").exp()
    1.16 [1.11, 1.22]
    """
    rows, grads = as_rows(activations), as_rows(gradients)
    ids = as_ids(sequences, "sequences", rows.device)
    kinds = {"input": tokens, "target": targets}
    binned = {kind: as_ids(of, kind, rows.device) for kind, of in kinds.items() if of is not None}
    _check(rows, grads, {"sequences": ids, **binned}, rank, controls, orders, n_groups)
    if fit_on is None:
        fit = first_half(ids)
        fitted, grads, ids = rows[fit], grads[~fit], ids[~fit]
        binned = {kind: of[~fit] for kind, of in binned.items()}
    else:
        fitted = as_rows(fit_on).to(rows.device)
        _check_width(fitted, rows)
    subspaces, drawn = _fitted(fitted, rank, controls, seed)
    tested = _Tested(subspaces, drawn, controls, orders)
    groups = sequence_groups(ids, n_groups)
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


def _check(
    rows: Tensor,
    grads: Tensor,
    labels: Mapping[str, Tensor],
    rank: int,
    controls: Sequence[str],
    orders: Sequence[float],
    n_groups: int,
) -> None:
    n, d = rows.shape
    for name, x, shape in [("gradients", grads, (n, d)), *((name, x, (n,)) for name, x in labels.items())]:
        if x.shape != shape:
            raise InputError(f"{name} must be {shape}, a row for each activation, but came as {tuple(x.shape)}")
    if n_groups < 2:
        raise InputError(f"n_groups must be at least 2, for an interval over groups of sequences, but is {n_groups}")
    unknown = set(controls) - set(CONTROLS)
    if unknown:
        raise InputError(f"controls must be among {', '.join(CONTROLS)}, but {', '.join(sorted(unknown))} came")
    if not orders or not set(orders) <= set(ORDERS):
        raise InputError(f"orders must be some of {ORDERS}, but {tuple(orders)} came")
    # The normal control must find room for its rank beside the proxy's.
    most = d // 2 if "normal" in controls else d - 1
    if not 1 <= rank <= most:
        raise InputError(
            f"rank must be between 1 and {most} at width {d} with these controls, but is {rank}; choose another"
        )


def _check_width(fitted: Tensor, rows: Tensor) -> None:
    if fitted.shape[1] != rows.shape[1]:
        raise InputError(
            f"fit_on must have {rows.shape[1]} features, as the activations have, but has {fitted.shape[1]}; use the "
            "same site"
        )


def as_ids(x: Any, name: str, device: torch.device) -> Int[Tensor, "n"]:
    """Whole numbers, one for each row."""
    ids = as_numbers(name, x).to(device)
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise InputError(f"{name} must be whole numbers, one for each row, but are {ids.dtype}")
    return ids.long()


def first_half(sequences: Int[Tensor, "n"]) -> Bool[Tensor, "n"]:
    """Which rows belong to the first half of the sequences, by id: they fit, the others test."""
    _, index = sequences.unique(return_inverse=True)
    count = int(index.max()) + 1 if len(index) else 0
    if count < 4:
        raise InputError(f"at least 4 sequences are needed, 2 to fit and 2 to test, but {count} came; pass more")
    return index < count // 2


def _selections(
    binned: Mapping[str, Int[Tensor, "n"]], bins: FrequencyBins | None, n: int, device: torch.device
) -> Iterator[tuple[str, Bool[Tensor, "n"]]]:
    yield "all", torch.ones(n, dtype=torch.bool, device=device)
    for kind, ids in binned.items():
        if not (ids >= 0).any():
            continue
        used, known = bins, ids
        if used is None:
            # Ids may be any numbers, so their counts are kept by rank.
            types, known = ids.unique(return_inverse=True)
            used = FrequencyBins.of(known.bincount().where(types >= 0, 0))
        index = used.assign(known)
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

    def __init__(
        self, subspaces: dict[str, Subspace], drawn: dict[str, str], controls: Sequence[str], orders: Sequence[float]
    ) -> None:
        self.orders = orders
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
        orders = [order for order in self.orders if freq_bin == "all" or order in BINNED_ORDERS]
        near = leading_vectors(totals[0], min(NEAR, self.proxy.dim)) if math.inf in orders else None
        replicates = torch.stack(list(replicate_shares(totals, self.subspaces, orders, near).values()), dim=1)
        for number, order in enumerate(orders):
            for variant, found in self._by_variant(replicates[:, :, number]).items():
                self.shares[Cell(variant, order, freq_bin)] = found
            self._add_chance(totals[0], order, freq_bin)
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

    def _add_chance(self, moment: Float[Tensor, "d d"], order: float, freq_bin: str) -> None:
        anywhere, beside = chance_beside(moment, self.proxy, order)
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
            law = Chance(mean=float(draws.mean()), std=float(draws.std()), total=1.0)
            self.p_values[Cell(control, order, freq_bin)] = law.p_value(
                float(self.shares[Cell(PROXY, order, freq_bin)][0])
            )

    def _add_tokens(
        self, tokenwise: Float[Tensor, "n variants"], ids: Int[Tensor, "n"], freq_bin: str, seed: int
    ) -> None:
        used = ~tokenwise[:, 0].isnan()
        replicates, n_sequences = bootstrap_means(tokenwise[used], ids[used], seed)
        if n_sequences < 2:
            return
        self.n_sequences[freq_bin] = n_sequences
        for variant, found in self._by_variant(replicates).items():
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
