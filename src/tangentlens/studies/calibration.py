"""Is the tangent test calibrated? Simulations with a known answer: `python -m tangentlens.studies.calibration`.

Unrelated: gradients know nothing of activations, so a test at 5% should reject 5% of replicates. Planted: gradients
prefer the directions in which activations vary, and their second moment is known, so a 95% interval should cover the
share in 95%. Tokens of a sequence depend on each other, or do not.
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
from tangentlens.alignment.share import ORDERS, moment_shares
from tangentlens.alignment.tangent_result import Cell, TangentTest
from tangentlens.alignment.tangent_test import tangent_test

CONTROLS = ("random", "normal", "pca")


@dataclass(frozen=True)
class Setting:
    """Sizes of a simulation, and how far it is from independent tokens.

    `dependence` is the share of a token's variance that its whole sequence has in common; `loudness` the standard
    deviation of the logarithm of a sequence's scale, as gradients of hard and easy sequences differ.
    """

    dependence: float = 0.0
    loudness: float = 0.0
    dim: int = 48
    rank: int = 6
    n_sequences: int = 128
    length: int = 16


SETTINGS = (Setting(), Setting(dependence=0.5), Setting(dependence=0.5, loudness=1.0))


def calibrate(n_replicates: int = 400, settings: Sequence[Setting] = SETTINGS) -> pl.DataFrame:
    """Rates over replicates: of rejections at 5% where nothing is related, of coverage where a share is planted."""
    rows = []
    for setting in settings:
        found = [dict(_outcomes(setting, seed)) for seed in range(n_replicates)]
        for what in found[0]:
            rate = sum(outcome[what] for outcome in found) / n_replicates
            rows.append({"dependence": setting.dependence, "loudness": setting.loudness, "what": what, "rate": rate})
    return pl.DataFrame(rows)


def _outcomes(setting: Setting, seed: int) -> Iterator[tuple[str, bool]]:
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
        _rows(replace(setting, dependence=0.0, loudness=0.0, n_sequences=30_000 // setting.length), axes, make),
    )


def _spectrum(setting: Setting) -> Float[Tensor, "d"]:
    return torch.arange(1, setting.dim + 1, dtype=torch.float64) ** -0.7


def _moment(setting: Setting, axes: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    return axes * _spectrum(setting) @ axes.T


def _rows(setting: Setting, axes: Float[Tensor, "d d"], make: torch.Generator) -> Float[Tensor, "n d"]:
    """Rows with the second moment above, up to its scale, whatever their dependence."""
    own = torch.randn(setting.n_sequences, setting.length, setting.dim, generator=make, dtype=torch.float64)
    common = torch.randn(setting.n_sequences, 1, setting.dim, generator=make, dtype=torch.float64)
    mixed = setting.dependence**0.5 * common + (1 - setting.dependence) ** 0.5 * own
    loud = (setting.loudness * torch.randn(setting.n_sequences, 1, 1, generator=make, dtype=torch.float64)).exp()
    return (loud * mixed).flatten(0, 1) * _spectrum(setting).sqrt() @ axes.T


def _rejections(test: TangentTest, gradients: Float[Tensor, "n d"]) -> Iterator[tuple[str, bool]]:
    proxy = test.subspaces[test.proxy]
    for order in ORDERS:
        yield f"unrelated, {ORDERS[order]}: rejects", test.p_values[Cell("random", order, "all")] < 0.05
    beside = chance(gradients, proxy.rank, 1, within=proxy.complement()).p_value(test.share().value)
    yield "unrelated, energy: rejects by the law of one normal draw (not used)", beside < 0.05


def _coverages(
    test: TangentTest, moment: Float[Tensor, "d d"], fresh: Float[Tensor, "n d"]
) -> Iterator[tuple[str, bool]]:
    fitted = {name: test.subspaces[name] for name in (test.proxy, "pca")}
    truth = moment_shares(moment, fitted, tuple(ORDERS))
    for number, order in enumerate(ORDERS):
        proxy, pca = truth[:, number].tolist()
        share, ratio = test.share(order=order), test.log_ratio("pca", order)
        yield f"planted, {ORDERS[order]}: covers the share", share.ci_low <= proxy <= share.ci_high
        yield f"planted, {ORDERS[order]}: covers proxy / pca", ratio.ci_low <= math.log(proxy / pca) <= ratio.ci_high
    # The mean over tokens has no closed form; that of many fresh tokens stands for it.
    inside = (fitted[test.proxy].project(fresh).square().sum(dim=1) / fresh.square().sum(dim=1)).mean()
    share = test.token_share()
    yield "planted, token by token: covers the share", bool(share.ci_low <= inside <= share.ci_high)


if __name__ == "__main__":
    n_replicates = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    with pl.Config(tbl_rows=-1, fmt_str_lengths=100, tbl_hide_dataframe_shape=True):
        print(calibrate(n_replicates))  # noqa: T201
