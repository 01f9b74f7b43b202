"""The tangent test: how much of the gradients of some sequences lies in a proxy that was fitted to others.

The proxy is compared with controls of the same rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tangentlens.alignment.chance import Chance, chance_beside
from tangentlens.alignment.frequency import N_BINS, FrequencyBins
from tangentlens.alignment.group_moments import GroupMoments
from tangentlens.alignment.observed import ObservedTokens
from tangentlens.alignment.permuted import PairSums, Permutations, Permuted, ones, permuted_mean
from tangentlens.alignment.rows import TokenRows, no_gradients
from tangentlens.alignment.share import BINNED_ORDERS, ORDERS
from tangentlens.alignment.tangent_result import Cell, TangentTest, TokenCell
from tangentlens.errors import InputError
from tangentlens.geometry.leading import NEAR, leading_vectors
from tangentlens.geometry.rows import as_rows
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies import CLOSED_FORM, DEFAULT, PROXIES, Fit, named_proxy
from tangentlens.proxies.principal import Principal
from tangentlens.statistics.bootstrap import bootstrap_means
from tangentlens.statistics.groups import sequence_groups
from tangentlens.statistics.influence import effective_number

CONTROLS = (*CLOSED_FORM, *(name for name in PROXIES if name != DEFAULT))
# The number of draws of a control that is drawn at random; its share is their mean.
N_DRAWS = 8
# The number of groups of sequences for the jackknife.
N_GROUPS = 16
# The direction of all ones is measured for the mean of `permuted`, but is no control itself.
_ONES = "all ones"


def tangent_test(
    activations: Any,
    gradients: Any,
    sequences: Any,
    tokens: Any = None,
    targets: Any = None,
    rank: int = 16,
    controls: Sequence[str] = CONTROLS,
    orders: Sequence[float] = tuple(ORDERS),
    bins: FrequencyBins | None = None,
    fit_on: Any = None,
    n_groups: int = N_GROUPS,
    seed: int = 0,
    proxy: str | Fit = DEFAULT,
) -> TangentTest:
    """Fit a proxy to the activations of some sequences and test it on the gradients of other sequences.

    By default the first half of the sequences fits the proxy and its controls, and the gradients of the second half
    test them. With `fit_on`, the proxy is fitted to those rows and tested on the gradients of all sequences.

    Args:
        activations: Rows `(n, d)` at one site.
        gradients: Gradients of the loss with respect to those activations, `(n, d)`.
        sequences: The id of the sequence each row came from, `(n,)`.
        tokens: Input token ids `(n,)`, to bin by frequency.
        targets: Target token ids `(n,)`, to bin by frequency; a negative id means 'no target'.
        rank: Number of concepts. If concepts are linearly dependent, the proxy's rank, and with it that of the
            controls, is lower.
        controls: Which of `CONTROLS` to compare with; docs/measures/alignment.md says what each of them excludes.
        orders: Orders of the shares: 1, 2 and `math.inf`. Frequency bins have orders 1 and 2 only.
        bins: Frequency bins; by default they are made from the counts of `tokens` (or `targets`) themselves.
        fit_on: Activations `(m, d)` of other sequences at the same site, to fit the proxy and its controls on.
        n_groups: Number of groups of sequences for the jackknife.
        seed: Seed of everything that is drawn.
        proxy: The proxy to test: a name in `tangentlens.proxies.PROXIES`, or a function
            `(rows, rank, seed) -> Subspace`.

    Returns:
        Shares of the proxy and of every control, with intervals, ratios and p-values.

    >>> make = torch.Generator().manual_seed(0)
    >>> rows, sequences = torch.randn(800, 12, generator=make), torch.arange(800) // 20
    >>> rows[:, :3] *= 5
    >>> tangent_test(rows, rows.sin(), sequences, rank=3, controls=["normal"]).log_ratio("normal").exp()
    1.16 [1.11, 1.22]
    """
    rows = TokenRows.of(activations, gradients, sequences, tokens, targets)
    if fit_on is None:
        fit, test = rows.halves()
        fitted = fit.activations
    else:
        fitted, test = as_rows(fit_on).to(rows.activations.device), rows
    return proxy_test(fitted, test, rank, controls, orders, bins, n_groups, seed, proxy)


def proxy_test(
    fit_on: Float[Tensor, "m d"] | Principal,
    rows: TokenRows,
    rank: int,
    controls: Sequence[str] = CONTROLS,
    orders: Sequence[float] = tuple(ORDERS),
    bins: FrequencyBins | None = None,
    n_groups: int = N_GROUPS,
    seed: int = 0,
    proxy: str | Fit = DEFAULT,
) -> TangentTest:
    """Return the tangent test, on the gradients of `rows`, of a proxy fitted to `fit_on`.

    Args:
        fit_on: Activations `(m, d)` to fit the proxy and its controls to, or their eigendecomposition.
        rows: The rows to test on, which have been checked.
        rank: As in `tangent_test`, like all that follow.
        controls: The controls to compare with.
        orders: The orders of the shares.
        bins: Frequency bins.
        n_groups: Number of groups of sequences for the jackknife.
        seed: Seed of everything that is drawn.
        proxy: The proxy to test.
    """
    name, fit = named_proxy(proxy)
    _check(rows, rank, controls, orders, n_groups)
    principal = Principal.of(fit_on)
    if principal.dim != rows.activations.shape[1]:
        raise InputError(
            f"fit_on must have {rows.activations.shape[1]} features, as the activations have, but has {principal.dim}; "
            "use the same site"
        )
    # There is nothing to learn from comparing the proxy with itself.
    controls = [control for control in controls if control != name]
    subspaces, drawn = _fitted(principal, name, fit, rank, controls, seed)
    return _tested(_Tested(name, subspaces, drawn, controls, orders, seed), rows, bins, n_groups)


def subspace_test(
    subspaces: Mapping[str, Subspace], rows: TokenRows, orders: Sequence[float] = tuple(ORDERS), seed: int = 0
) -> TangentTest:
    """Return the test, on the gradients of `rows`, of subspaces that are there already.

    Args:
        subspaces: The subspaces by name, all of the same rank; the first one is compared with the others, and with
            `random`.
        rows: The rows to test on.
        orders: The orders of the shares.
        seed: Seed of everything that is drawn.
    """
    first, *others = subspaces
    tested = _Tested(first, dict(subspaces), {}, [*others, "random"], orders, seed)
    # Without token ids there are no frequency bins.
    return _tested(tested, TokenRows.of(rows.activations, rows.gradients, rows.sequences), None, N_GROUPS)


def _tested(tested: _Tested, rows: TokenRows, bins: FrequencyBins | None, n_groups: int) -> TangentTest:
    """Return the test on the gradients of `rows`, of all tokens and, with token ids, by frequency."""
    tokens = ObservedTokens.of(rows, sequence_groups(rows.sequences, n_groups), list(tested.subspaces.values()))
    tested.add_bin("all", tokens)
    for freq_bin, chosen in _bins(rows, bins):
        tested.add_bin(freq_bin, tokens.among(chosen))
    if not tested.shares:
        raise no_gradients()
    return tested.result(bins.n_bins if bins else N_BINS)


def _check(rows: TokenRows, rank: int, controls: Sequence[str], orders: Sequence[float], n_groups: int) -> None:
    """Raise if the settings are not possible with these rows."""
    d = rows.activations.shape[1]
    if n_groups < 2:
        raise InputError(
            f"n_groups must be at least 2, for an interval over groups of sequences, but is {n_groups}; 16 is usual"
        )
    known = (*CLOSED_FORM, *PROXIES)
    unknown = set(controls) - set(known)
    if unknown:
        raise InputError(
            f"controls must be among {', '.join(known)}, but {', '.join(sorted(unknown))} came; choose from these"
        )
    if not orders or not set(orders) <= set(ORDERS):
        raise InputError(f"orders must be some of {tuple(ORDERS)}, but {tuple(orders)} came; choose from these")
    # The normal control is drawn in the complement of the proxy, which must have at least the proxy's rank.
    most = d // 2 if "normal" in controls else d - 1
    if not 1 <= rank <= most:
        raise InputError(
            f"rank must be between 1 and {most} at width {d} with these controls, but is {rank}; choose another"
        )


def _bins(rows: TokenRows, bins: FrequencyBins | None) -> Iterator[tuple[str, Bool[Tensor, "n"]]]:
    """Yield the name and the mask of each frequency bin of the rows, by input and by target."""
    for kind, ids in (("input", rows.tokens), ("target", rows.targets)):
        if not (ids >= 0).any():
            continue
        used, known = bins, ids
        if used is None:
            # Ids may be arbitrarily large, so types are numbered from 0 before they are counted.
            types, known = ids.unique(return_inverse=True)
            used = FrequencyBins.of(known.bincount().where(types >= 0, 0))
        used.warn_of_unknown(known)
        index = used.assign(known)
        for number in range(used.n_bins):
            yield f"{kind}.{number}", index == number


def _fitted(
    principal: Principal, proxy: str, fit: Fit, rank: int, controls: Sequence[str], seed: int
) -> tuple[dict[str, Subspace], dict[str, str]]:
    """Return the proxy and its fitted and drawn controls by name, and which control each draw belongs to."""
    subspaces, drawn = {proxy: fit(principal, rank, seed)}, {}
    rank = subspaces[proxy].rank
    for name in controls:
        rival = PROXIES.get(name)
        if rival is not None and not rival.drawn:
            subspaces[name] = rival.fit(principal, rank, seed)
        elif rival is not None:
            for number, draw in enumerate(draws_of(name, principal, rank, seed)):
                subspaces[f"{name} {number}"] = draw
                drawn[f"{name} {number}"] = name
    return subspaces, drawn


def draws_of(name: str, principal: Principal, rank: int, seed: int) -> list[Subspace]:
    """Return the draws of a control that is drawn at random, whose mean counts."""
    return [PROXIES[name].fit(principal, rank, seed + number) for number in range(N_DRAWS)]


class _Tested:
    """Collects the parts of a `TangentTest`, one frequency bin after the other.

    Args:
        name: The name of the proxy.
        subspaces: The proxy and its fitted and drawn controls by name.
        drawn: The control that each draw belongs to, by name of the draw.
        controls: The names of all controls, those in closed form included.
        orders: The orders of the shares.
        seed: The seed of permutations and of the bootstrap.
    """

    def __init__(
        self,
        name: str,
        subspaces: dict[str, Subspace],
        drawn: dict[str, str],
        controls: Sequence[str],
        orders: Sequence[float],
        seed: int,
    ) -> None:
        self.name = name
        self.orders = orders
        self.proxy = subspaces[name]
        self.subspaces = subspaces | {_ONES: ones(self.proxy)}
        self.drawn = drawn
        self.controls = controls
        self.seed = seed
        self.shares: dict[Cell, Tensor] = {}
        self.token_shares: dict[TokenCell, Tensor] = {}
        self.chances: dict[Cell, Chance | Permuted] = {}
        self.sums: dict[tuple[float, str], PairSums] = {}
        self.p_values: dict[Cell, float] = {}
        self.n_tokens: dict[str, int] = {}
        self.n_sequences: dict[str, int] = {}
        self.effective_tokens: dict[str, float] = {}
        self.effective_sequences: dict[str, float] = {}
        self.energy: dict[str, Tensor] = {}
        self.held_by_top: dict[float, float] = {}
        self.rms: dict[str, Tensor] = {}
        self.anisotropy: dict[str, Tensor] = {}

    def add_bin(self, freq_bin: str, tokens: ObservedTokens) -> None:
        """Add the shares, chance levels and p-values of the tokens of a bin, unless too few have gradients."""
        moments = GroupMoments.of(tokens.gradients, tokens.groups, tokens.n_groups)
        self._add_counts(freq_bin, tokens, moments)
        if int((moments.energy > 0).sum()) < 2:
            return
        if freq_bin != "all":
            self.rms[freq_bin], self.anisotropy[freq_bin] = moments.rms() * tokens.scale, moments.anisotropy()
        orders = [order for order in self.orders if freq_bin == "all" or order in BINNED_ORDERS]
        near = leading_vectors(moments.total, min(NEAR, self.proxy.dim)) if math.inf in orders else None
        found = moments.shares(self.subspaces, orders, near, along=tokens.along / moments.scale)
        # From here on, a few numbers at a time are needed on the host.
        replicates = torch.stack(list(found.values()), dim=1).cpu()
        for number, order in enumerate(orders):
            for variant, shares in self._by_variant(replicates[:, :, number]).items():
                self.shares[Cell(variant, order, freq_bin)] = shares
            self._add_chance(moments, order, freq_bin)
            self._add_draws(replicates[0, :, number], order, freq_bin)
            if freq_bin == "all":
                self.held_by_top[order] = moments.held_by_top(self.proxy, order)
        self._add_tokens(tokens, freq_bin)

    def _add_counts(self, freq_bin: str, tokens: ObservedTokens, moments: GroupMoments) -> None:
        """Add how many tokens the bin has, and how many tokens and sequences it has in effect."""
        by_sequence = tokens.energy.new_zeros(tokens.n_sequences).index_add_(0, tokens.sequences, tokens.energy)
        self.n_tokens[freq_bin] = len(tokens.energy)
        self.effective_tokens[freq_bin] = effective_number(tokens.energy)
        self.effective_sequences[freq_bin] = effective_number(by_sequence)
        self.energy[freq_bin] = moments.energy.cpu()

    def _by_variant(self, shares: Float[Tensor, "replicates subspaces"]) -> dict[str, Tensor]:
        """Return the shares of the proxy and of each control: of its fit, the mean of its draws, or in closed form."""
        by_name: dict[str, list[Tensor]] = {}
        for name, column in zip(self.subspaces, shares.unbind(dim=1), strict=True):
            by_name.setdefault(self.drawn.get(name, name), []).append(column)
        means = {name: torch.stack(columns).mean(dim=0) for name, columns in by_name.items()}
        proxy, rank, dim = means[self.name], self.proxy.rank, self.proxy.dim
        # The means of these controls, in closed form; docs/measures/alignment.md, 'Chance'.
        means["random"] = torch.full_like(proxy, rank / dim)
        means["permuted"] = permuted_mean(means[_ONES], self.proxy)
        means["normal"] = (1 - proxy) * rank / (dim - rank)
        return {name: means[name] for name in (self.name, *self.controls)}

    def _add_chance(self, moments: GroupMoments, order: float, freq_bin: str) -> None:
        """Add the distributions and p-values of the controls in closed form."""
        if not set(CLOSED_FORM) & set(self.controls):
            return
        matrix = moments.power(order)
        random, normal = chance_beside(matrix, self.proxy)
        self._add_law("random", random, random, order, freq_bin)
        # The ratio to the mean of `normal` is an increasing function of the share alone, so the distribution of
        # `random` gives the p-value of both (docs/measures/alignment.md, 'Tests').
        self._add_law("normal", normal, random, order, freq_bin)
        if "permuted" in self.controls:
            self.sums[order, freq_bin] = PairSums.of(matrix)

    def _add_permuted(self) -> None:
        """Add the distributions and p-values of the proxy with permuted coordinates, those of all bins at once."""
        laws = Permutations(self.proxy, self.seed).chances(list(self.sums.values())) if self.sums else []
        for (order, freq_bin), law in zip(self.sums, laws, strict=True):
            self._add_law("permuted", law, law, order, freq_bin)

    def _add_law(
        self, control: str, chance: Chance | Permuted, law: Chance | Permuted, order: float, freq_bin: str
    ) -> None:
        """Add the distribution of a control in closed form, if it is wanted, and the p-value that a law gives it."""
        if control in self.controls:
            self.chances[Cell(control, order, freq_bin)] = chance
            share = float(self.shares[Cell(self.name, order, freq_bin)][0])
            self.p_values[Cell(control, order, freq_bin)] = law.p_value(share)

    def _add_draws(self, shares: Float[Tensor, "subspaces"], order: float, freq_bin: str) -> None:
        """Add the p-values of the drawn controls, from a Beta distribution fitted to their draws."""
        for control in dict.fromkeys(self.drawn.values()):
            draws = torch.stack(
                [share for name, share in zip(self.subspaces, shares, strict=True) if self.drawn.get(name) == control]
            )
            distribution = Chance(mean=float(draws.mean()), std=float(draws.std()), total=1.0)
            self.p_values[Cell(control, order, freq_bin)] = distribution.p_value(
                float(self.shares[Cell(self.name, order, freq_bin)][0])
            )

    def _add_tokens(self, tokens: ObservedTokens, freq_bin: str) -> None:
        """Add the token shares of one frequency bin, if its gradients come from at least 2 sequences."""
        tokenwise = tokens.inside / tokens.energy[:, None]
        replicates, n_sequences = bootstrap_means(tokenwise, tokens.sequences, self.seed)
        if n_sequences < 2:
            return
        self.n_sequences[freq_bin] = n_sequences
        for variant, shares in self._by_variant(replicates.cpu()).items():
            self.token_shares[TokenCell(variant, freq_bin)] = shares

    def result(self, n_bins: int) -> TangentTest:
        """Return the finished test."""
        self._add_permuted()
        return TangentTest(
            proxy=self.name,
            rank=self.proxy.rank,
            dim=self.proxy.dim,
            shares=self.shares,
            n_tokens=self.n_tokens,
            energy=self.energy,
            n_bins=n_bins,
            token_shares=self.token_shares,
            n_sequences=self.n_sequences,
            effective_tokens=self.effective_tokens,
            effective_sequences=self.effective_sequences,
            held_by_top=self.held_by_top,
            rms=self.rms,
            anisotropy=self.anisotropy,
            chances=self.chances,
            p_values=self.p_values,
            subspaces={name: q for name, q in self.subspaces.items() if name not in self.drawn and name != _ONES},
        )
