"""How often is the shape of a profile told rightly? Simulations: `python -m tangentlens.studies.shape_rates`.

Profiles of a known shape get noise as batches have it: common to neighbouring sites, with heavy tails, and unequal from
site to site. Results are in docs/measures/shape.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from tangentlens.statistics.shape import Kind, default_margin, profile_shape, shape_of

Depth = Float[Tensor, "s"]


@dataclass(frozen=True)
class Noise:
    """The noise of a simulation.

    Attributes:
        name: The name.
        heavy: Whether the noise follows Student's law with 3 degrees of freedom, as some batches are much noisier than
            others at all sites; otherwise it is normal.
        uneven: The standard deviation, over sites, of the logarithm of their noise.
        scale: The standard deviation in one batch at a typical site. Profiles have values between 0 and 1.
    """

    name: str
    heavy: bool = False
    uneven: float = 0.0
    scale: float = 0.02


NOISES = (Noise("normal"), Noise("heavy", heavy=True), Noise("uneven", heavy=True, uneven=0.8))
# At this distance in depth, the correlation of the noise of two sites falls to 1/e.
_CORRELATION = 0.2
# Of how many replicates the number of batches that would decide is looked at; it takes ten times as long as the rest.
_ASKED = 8


def _early_peak(depth: Depth) -> Depth:
    """Return a profile that jumps up after the first site and decays from there."""
    jump = 0.3 + 0.6 * (-3 * (depth - depth[1])).exp()
    return torch.where(depth == 0, 0.42, jump)


def _two_humps(depth: Depth) -> Depth:
    humps = [(-((depth - centre) / 0.15).square()).exp() for centre in (0.25, 0.75)]
    return 0.3 + 0.6 * (humps[0] + humps[1]).clamp(max=1)


def _zigzag(depth: Depth) -> Depth:
    up = torch.arange(len(depth)) % 2 == 1
    return torch.where(depth == 0, 0.0, torch.where(depth == 1, 1.0, torch.where(up, 0.9, 0.1)))


# Each profile with the shape that it has.
PROFILES: dict[str, tuple[Kind, Callable[[Depth], Depth]]] = {
    "level": ("flat", lambda depth: torch.full_like(depth, 0.6)),
    "bell": ("bell", lambda depth: 0.3 + 0.6 * (1 - (2 * depth - 1).square())),
    "slope": ("monotone", lambda depth: 0.3 + 0.6 * depth),
    "plateau": ("monotone", lambda depth: 0.3 + 0.6 * (2 * depth).clamp(max=1)),
    "decay": ("monotone", lambda depth: 0.3 + 0.6 * (-4 * depth).exp()),
    "early peak": ("irregular", _early_peak),
    "two humps": ("irregular", _two_humps),
    "zigzag": ("irregular", _zigzag),
}


def shape_rates(
    n_replicates: int = 200,
    n_batches: Sequence[int] = (2, 3, 5, 10),
    n_sites: Sequence[int] = (7, 13, 31),
    noises: Iterable[Noise] = NOISES,
) -> pl.DataFrame:
    """Return how often the shapes of simulated profiles are told rightly, wrongly, and not at all.

    Args:
        n_replicates: The number of replicates of each profile.
        n_batches: Numbers of batches.
        n_sites: Numbers of sites.
        noises: Kinds of noise.

    Returns:
        One row per cell, with columns `profile`, `noise`, `sites`, `batches`, the rates `right`, `wrong` and
        `undecided`, and `needed`, the median number of batches that undecided replicates (of the first 8) ask for.
    """
    rows = []
    for noise in noises:
        for sites in n_sites:
            for batches in n_batches:
                for name in PROFILES:
                    rates = _rates(name, noise, sites, batches, n_replicates)
                    rows.append({"profile": name, "noise": noise.name, "sites": sites, "batches": batches, **rates})
    return pl.DataFrame(rows, infer_schema_length=None)


def _rates(name: str, noise: Noise, sites: int, batches: int, n_replicates: int) -> dict[str, float | None]:
    """Return the rates of one cell."""
    kind, profile = PROFILES[name]
    depth = torch.linspace(0, 1, sites, dtype=torch.float64)
    make = torch.Generator().manual_seed(0)
    drawn = [profile(depth) + noise_of(noise, batches, sites, make) for _ in range(n_replicates)]
    told = [shape_of(values, depth, default_margin(values), batches).kind for values in drawn]
    right, undecided = told.count(kind), told.count("undecided")
    asked = [profile_shape(values, depth).batches_needed for values in drawn[:_ASKED]]
    needed = [n for n in asked if n is not None]
    return {
        "right": right / n_replicates,
        "wrong": (n_replicates - right - undecided) / n_replicates,
        "undecided": undecided / n_replicates,
        "needed": float(median(needed)) if needed else None,
    }


def noise_of(noise: Noise, batches: int, sites: int, make: torch.Generator) -> Float[Tensor, "b s"]:
    """Return the noise of batches, which is correlated over sites."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64)

    drawn, near = normal(batches, sites), math.exp(-1 / (_CORRELATION * (sites - 1)))
    for site in range(1, sites):
        drawn[:, site] = near * drawn[:, site - 1] + math.sqrt(1 - near**2) * drawn[:, site]
    if noise.heavy:
        # Student's t with 3 degrees of freedom, over its standard deviation, the root of 3.
        drawn = drawn / normal(batches, 3).norm(dim=1, keepdim=True)
    return noise.scale * drawn * (noise.uneven * normal(sites)).exp()


def summary(rates: pl.DataFrame) -> pl.DataFrame:
    """Return the table of the docs, by profile and number of batches, over all kinds of noise and numbers of sites."""

    def percent(rate: pl.Expr) -> pl.Expr:
        return (100 * rate).round(1)

    return rates.group_by("profile", "batches", maintain_order=True).agg(
        percent(pl.min("right")).alias("right, least"),
        percent(pl.mean("right")).alias("right, mean"),
        percent(pl.mean("undecided")).alias("undecided, mean"),
        percent(pl.max("wrong")).alias("wrong, most"),
        pl.median("needed").alias("batches needed"),
    )


if __name__ == "__main__":
    found = shape_rates(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=120, tbl_hide_dataframe_shape=True):
        print(summary(found))  # noqa: T201
        print(found.sort("wrong", descending=True).head(5))  # noqa: T201
