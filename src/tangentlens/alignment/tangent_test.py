"""The tangent test: a proxy fitted on some sequences against the gradients of others, beside controls of its rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tangentlens.alignment.chance import chance
from tangentlens.alignment.frequency import N_BINS, FrequencyBins
from tangentlens.alignment.intervals import (
    Interval,
    group_products,
    jackknife,
    leave_one_out,
    replicate,
    sequence_groups,
    share_jackknife,
)
from tangentlens.alignment.share import moment_share
from tangentlens.errors import InputError
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.rows import as_rows
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies import PROXIES

PROXY = "semi_nmf"
CONTROLS = ("normal", "random", "pca")
ORDERS = (1.0, 2.0)


class Cell(NamedTuple):
    """One number of the test: which subspace, at which order, on the gradients of which tokens."""

    variant: str
    order: float
    freq_bin: str


@dataclass(frozen=True, eq=False)
class TangentTest:
    """Shares of the proxy and its controls: `table` has every number with its interval, `verdict()` the words."""

    rank: int | None
    dim: int
    shares: Mapping[Cell, Float[Tensor, "g_plus_1"]]
    p_values: Mapping[Cell, float]
    n_tokens: Mapping[str, int]
    present: Mapping[str, Bool[Tensor, "g"]]
    n_bins: int
    subspaces: Mapping[str, Subspace]

    def share(self, variant: str = PROXY, order: float = 1.0, freq_bin: str = "all") -> Interval:
        """The share with its 95% interval over test sequences."""
        return share_jackknife(self.shares[Cell(variant, order, freq_bin)], self.present[freq_bin])

    def log_ratio(self, control: str, order: float = 1.0, freq_bin: str = "all") -> Interval:
        """ln(share of the proxy / share of the control) with its 95% interval over test sequences."""
        proxy, other = (self.shares[Cell(variant, order, freq_bin)] for variant in (PROXY, control))
        return jackknife(_log(proxy) - _log(other), self.present[freq_bin])

    @property
    def fitted(self) -> list[str]:
        """The variants that were fitted to activations, the proxy first; the others are known in closed form."""
        return [name for name in PROXIES if Cell(name, 1.0, "all") in self.shares]

    def frequency_log_ratio(self, kind: str = "target", order: float = 1.0, variant: str = PROXY) -> Interval | None:
        """ln(share on the most frequent tokens / share on the rarest); None if it was not binned so."""
        rarest, most = (Cell(variant, order, f"{kind}.{end}") for end in (0, self.n_bins - 1))
        if rarest not in self.shares or most not in self.shares:
            return None
        present = self.present[most.freq_bin] | self.present[rarest.freq_bin]
        return jackknife(_log(self.shares[most]) - _log(self.shares[rarest]), present)

    @property
    def table(self) -> pl.DataFrame:
        """One row per variant, order and frequency bin."""
        rows = []
        for cell in self.shares:
            share = self.share(*cell)
            ratio = None if cell.variant == PROXY else self.log_ratio(*cell)
            rows.append(
                {
                    **cell._asdict(),
                    "value": share.value,
                    "ci_low": share.low,
                    "ci_high": share.high,
                    "ci_over": share.over,
                    "log_ratio": ratio and ratio.value,
                    "log_ratio_low": ratio and ratio.low,
                    "log_ratio_high": ratio and ratio.high,
                    "p_value": self.p_values.get(cell),
                    "n": self.n_tokens[cell.freq_bin],
                }
            )
        return pl.DataFrame(rows, infer_schema_length=None)

    def verdict(self) -> str:
        """What the intervals allow to be said, one sentence an order and control."""
        lines = []
        for order, what in ((1.0, "energy"), (2.0, "anisotropy")):
            lines.append(
                f"The proxy (rank {self.rank} of {self.dim}) takes {self.share(order=order)} of the gradient's {what}."
            )
            for control in sorted({cell.variant for cell in self.shares} - {PROXY}):
                lines.append(f"  {compare(control, self.log_ratio(control, order))}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"TangentTest(rank={self.rank}, dim={self.dim}, tokens={self.n_tokens['all']})\n{self.verdict()}"


def compare(control: str, log_ratio: Interval) -> str:
    """Above, below, or not told apart: the log-ratio of proxy to control in words."""
    word = "above it" if log_ratio.low > 0 else "below it" if log_ratio.high < 0 else "not told apart from it"
    return f"{log_ratio.exp()} times the {control} control: {word}"


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
        controls: Which of `normal`, `random`, `pca`.
        bins: Frequency bins; by default from the counts of `tokens` (or `targets`) themselves.
        n_groups: Groups of sequences for the jackknife.
        seed: Of the proxy's fit.

    >>> make = torch.Generator().manual_seed(0)
    >>> rows, sequences = torch.randn(800, 12, generator=make), torch.arange(800) // 20
    >>> rows[:, :3] *= 5
    >>> print(tangent_test(rows, rows.sin(), sequences, rank=3, controls=["normal"]).verdict())
    The proxy (rank 3 of 12) takes 0.279 [0.269, 0.289] of the gradient's energy.
      1.16 [1.11, 1.22] times the normal control: above it
    The proxy (rank 3 of 12) takes 0.310 [0.288, 0.334] of the gradient's anisotropy.
      1.35 [1.21, 1.50] times the normal control: above it
    """
    rows, grads = as_rows(activations), as_rows(gradients)
    ids = torch.as_tensor(sequences, device=rows.device)
    kinds = {"input": tokens, "target": targets}
    binned = {kind: torch.as_tensor(of, device=rows.device) for kind, of in kinds.items() if of is not None}
    _check(rows, grads, {"sequences": ids, **binned}, rank, controls)
    fit = first_half(ids)
    proxy = PROXIES[PROXY](rows[fit], rank, seed)
    fitted = {PROXY: proxy} | {name: PROXIES[name](rows[fit], proxy.rank, seed) for name in controls if name in PROXIES}
    groups = sequence_groups(ids[~fit], n_groups)
    binned = {kind: of[~fit] for kind, of in binned.items()}
    shares: dict[Cell, Tensor] = {}
    n_tokens, present = {}, {}
    for freq_bin, chosen in _selections(binned, bins, len(groups), ids.device):
        parts = group_products(grads[~fit][chosen], groups[chosen], int(groups.max()) + 1)
        present[freq_bin] = parts.diagonal(dim1=1, dim2=2).sum(dim=1) > 0
        n_tokens[freq_bin] = int(chosen.sum())
        if int(present[freq_bin].sum()) >= 2:
            cells = _shares(leave_one_out(parts), fitted, controls)
            shares |= {Cell(variant, order, freq_bin): values for (variant, order), values in cells.items()}
    if not any(cell.freq_bin == "all" for cell in shares):
        raise InputError(
            "the gradients of at least 2 groups of test sequences must not be zero, but fewer are; "
            "check that this site is in the loss, or pass more sequences"
        )
    p_values = _p_values(grads[~fit], shares, proxy, controls)
    n_bins = bins.n_bins if bins else N_BINS
    return TangentTest(proxy.rank, proxy.dim, shares, p_values, n_tokens, present, n_bins, fitted)


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
    return TangentTest(rank, tests[0].dim, shares, {}, tests[0].n_tokens, present, tests[0].n_bins, {})


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


def _shares(
    totals: Float[Tensor, "g_plus_1 d d"], fitted: Mapping[str, Subspace], controls: Sequence[str]
) -> dict[tuple[str, float], Float[Tensor, "g_plus_1"]]:
    """Replicates for every variant and order."""
    rank, dim = fitted[PROXY].rank, fitted[PROXY].dim
    found = {}
    for order in ORDERS:
        for name, subspace in fitted.items():
            found[name, order] = replicate(partial(moment_share, q=subspace, order=order), totals)
        # The means of the random and the normal control, in closed form; docs/concepts.md, 'Chance'.
        proxy = found[PROXY, order]
        if "random" in controls:
            found["random", order] = torch.full_like(proxy, rank / dim)
        if "normal" in controls:
            found["normal", order] = (1 - proxy) * rank / (dim - rank)
    return found


def _p_values(
    grads: Float[Tensor, "n d"], shares: Mapping[Cell, Tensor], proxy: Subspace, controls: Sequence[str]
) -> dict[Cell, float]:
    moments = Moments.of(grads)
    found = {}
    for control, within in (("random", None), ("normal", proxy.complement())):
        for order in ORDERS if control in controls else ():
            taken = float(shares[Cell(PROXY, order, "all")][0])
            found[Cell(control, order, "all")] = chance(moments, proxy.rank, order, within).p_value(taken)
    return found


def _log(share: Tensor) -> Tensor:
    return share.clamp_min(1e-12).log()
