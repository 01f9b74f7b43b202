"""Is the tangent test calibrated? Simulations with a known answer: `python -m tangentlens.studies.calibration`.

In 'unrelated' simulations, gradients are independent of activations, so a test at the 5% level should reject in 5% of
replicates. In 'planted' ones, gradients prefer the directions in which activations vary and their second moment is
known, so a 95% interval should cover the true share in 95% of replicates. Tokens of a sequence are independent or
dependent. Results are in docs/calibration.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.alignment.chance import chance
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.share import BINNED_ORDERS, ORDERS, moment_shares, replicate_shares
from tangentlens.alignment.tangent_result import Cell, TangentTest
from tangentlens.alignment.tangent_test import tangent_test
from tangentlens.geometry.subspace import Subspace
from tangentlens.statistics.jackknife import share_jackknife

CONTROLS = ("random", "normal", "pca")


@dataclass(frozen=True)
class Setting:
    """The size of a simulation, and how far its tokens are from independent.

    Attributes:
        dependence: The fraction of a token's variance that is common to its sequence.
        loudness: The standard deviation of the logarithm of a sequence's scale; gradients of hard and of easy sequences
            differ in scale.
        token_loudness: The same for the scale of each token.
        dim: The width of the site.
        rank: The rank of the proxy.
        n_sequences: The number of sequences, half of which test.
        length: The number of tokens in a sequence.
    """

    dependence: float = 0.0
    loudness: float = 0.0
    token_loudness: float = 0.0
    dim: int = 48
    rank: int = 6
    n_sequences: int = 128
    length: int = 16


SETTINGS = (
    Setting(),
    Setting(dependence=0.5),
    Setting(dependence=0.5, loudness=1.0),
    *(Setting(dependence=0.5, n_sequences=n) for n in (16, 32)),
    *(Setting(dependence=0.5, token_loudness=1.0, n_sequences=n) for n in (16, 32, 128)),
)


def calibrate(n_replicates: int = 400, settings: Sequence[Setting] = SETTINGS) -> pl.DataFrame:
    """Return the rates of rejection at the 5% level and of coverage by 95% intervals, over replicates.

    Args:
        n_replicates: The number of replicates of each simulation.
        settings: The settings to simulate.

    Returns:
        One row per setting and outcome, with columns `dependence`, `loudness`, `token_loudness`, `tested` (the number
        of test sequences), `what` and `rate`.
    """
    rows = []
    for setting in settings:
        replicates = [dict(_outcomes(setting, seed)) for seed in range(n_replicates)]
        for what in replicates[0]:
            rate = sum(outcomes[what] for outcomes in replicates) / n_replicates
            about = {name: getattr(setting, name) for name in ("dependence", "loudness", "token_loudness")}
            rows.append({**about, "tested": setting.n_sequences // 2, "what": what, "rate": rate})
    return pl.DataFrame(rows)


def _outcomes(setting: Setting, seed: int) -> Iterator[tuple[str, bool]]:
    """Yield the outcomes of one replicate: which tests rejected, and which intervals covered the truth."""
    make = torch.Generator().manual_seed(seed)
    axes, other_axes = (
        torch.linalg.qr(torch.randn(setting.dim, setting.dim, generator=make, dtype=torch.float64)).Q for _ in range(2)
    )
    sequences = torch.arange(setting.n_sequences).repeat_interleave(setting.length)
    activations = _rows(setting, axes, make)
    unrelated, related = _rows(setting, other_axes, make), _rows(setting, axes, make)
    test = tangent_test(activations, unrelated, sequences, rank=setting.rank, controls=CONTROLS)
    yield from _rejections(test, unrelated[len(unrelated) // 2 :])
    test = tangent_test(activations, related, sequences, rank=setting.rank, controls=CONTROLS)
    yield from _coverages(
        test,
        _moment(setting, axes),
        _rows(
            replace(setting, dependence=0.0, loudness=0.0, token_loudness=0.0, n_sequences=30_000 // setting.length),
            axes,
            make,
        ),
    )
    tested = TokenRows.of(activations, related, sequences).halves()[1]
    yield from _plain_coverages(tested, test.subspaces[test.proxy], _moment(setting, axes))


def _spectrum(setting: Setting) -> Float[Tensor, "d"]:
    """Return the eigenvalues of the second moment, a power law."""
    return torch.arange(1, setting.dim + 1, dtype=torch.float64) ** -0.7


def _moment(setting: Setting, axes: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """Return the true second moment of rows with these axes, up to its scale."""
    return axes * _spectrum(setting) @ axes.T


def _rows(setting: Setting, axes: Float[Tensor, "d d"], make: torch.Generator) -> Float[Tensor, "n d"]:
    """Return random rows whose second moment is `_moment`, up to its scale, whatever their dependence."""
    own = torch.randn(setting.n_sequences, setting.length, setting.dim, generator=make, dtype=torch.float64)
    common = torch.randn(setting.n_sequences, 1, setting.dim, generator=make, dtype=torch.float64)
    mixed = setting.dependence**0.5 * common + (1 - setting.dependence) ** 0.5 * own
    loud = (setting.loudness * torch.randn(setting.n_sequences, 1, 1, generator=make, dtype=torch.float64)).exp()
    shape = (setting.n_sequences, setting.length, 1)
    loud = loud * (setting.token_loudness * torch.randn(shape, generator=make, dtype=torch.float64)).exp()
    return (loud * mixed).flatten(0, 1) * _spectrum(setting).sqrt() @ axes.T


def _rejections(test: TangentTest, gradients: Float[Tensor, "n d"]) -> Iterator[tuple[str, bool]]:
    """Yield, for each order, whether a test at the 5% level rejects unrelated gradients."""
    proxy = test.subspaces[test.proxy]
    for order in ORDERS:
        yield f"unrelated, {ORDERS[order]}: rejects", test.p_values[Cell("random", order, "all")] < 0.05
    beside = chance(gradients, proxy.rank, 1, within=proxy.complement()).p_value(test.share().value)
    yield "unrelated, energy: rejects by the law of one normal draw (not used)", beside < 0.05


def _coverages(
    test: TangentTest, moment: Float[Tensor, "d d"], fresh: Float[Tensor, "n d"]
) -> Iterator[tuple[str, bool]]:
    """Yield, for each order, whether the 95% intervals cover the true share and the true ratio to pca."""
    fitted = {name: test.subspaces[name] for name in (test.proxy, "pca")}
    truth = moment_shares(moment, fitted, tuple(ORDERS))
    for number, order in enumerate(ORDERS):
        proxy, pca = truth[:, number].tolist()
        share, ratio = test.share(order=order), test.log_ratio("pca", order)
        yield f"planted, {ORDERS[order]}: covers the share", share.ci_low <= proxy <= share.ci_high
        yield f"planted, {ORDERS[order]}: covers proxy / pca", ratio.ci_low <= math.log(proxy / pca) <= ratio.ci_high
    # The expected token share has no closed form, so the mean over many fresh tokens is used as the truth.
    inside = (fitted[test.proxy].project(fresh).square().sum(dim=1) / fresh.square().sum(dim=1)).mean()
    share = test.token_share()
    yield "planted, token by token: covers the share", bool(share.ci_low <= inside <= share.ci_high)


def _plain_coverages(tested: TokenRows, q: Subspace, moment: Float[Tensor, "d d"]) -> Iterator[tuple[str, bool]]:
    """Yield whether intervals cover that square the noise of the sample and count all groups alike."""
    truth = moment_shares(moment, {"q": q}, BINNED_ORDERS)[0].tolist()
    plain = replicate_shares(tested.second_moments(), {"q": q}, BINNED_ORDERS)["q"].unbind(dim=1)
    for order, true, shares in zip(BINNED_ORDERS, truth, plain, strict=True):
        interval = share_jackknife(shares)
        what = f"planted, {ORDERS[order]}: the plug-in with G - 1 degrees of freedom covers the share (not used)"
        yield what, interval.ci_low <= true <= interval.ci_high


if __name__ == "__main__":
    n_replicates = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    with pl.Config(tbl_rows=-1, fmt_str_lengths=100, tbl_hide_dataframe_shape=True):
        print(calibrate(n_replicates))  # noqa: T201
