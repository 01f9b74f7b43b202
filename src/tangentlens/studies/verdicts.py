"""How often the audit's verdict is right, on manifolds with noise and gradients made to be something: a simulation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from tangentlens.alignment.audit_data import AuditData
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.tangent_planes import VERDICTS, Overlaps, judged
from tangentlens.geometry import manifolds
from tangentlens.geometry.manifolds import Manifold

N_TOKENS, LENGTH = 2000, 20
NOISES = (0.0, 0.01, 0.02, 0.05)
# Which verdicts are right for gradients of each kind; any other but 'unknown' is wrong. Normal gradients have a share
# below chance and below that in the planes of other places: both words are true.
RIGHT = {
    "tangent": {"tangent"},
    "normal, in the span": {"normal", "avoiding"},
    "normal, anywhere": {"normal", "avoiding"},
    "normal in 9 of 10 tokens": {"avoiding"},
    "tangent in half of the tokens": {"tangent"},
    "variance": {"variance"},
    "variance in half of the tokens": {"variance"},
    "isotropic": {"indifferent"},
    "unrelated": {"indifferent"},
}


@dataclass(frozen=True)
class Surface:
    """A manifold to draw rows from.

    Attributes:
        name: A function in `geometry/manifolds.py`.
        dimension: The dimension m of the manifold.
        dim: The dimension of the space around it.
    """

    name: str
    dimension: int
    dim: int

    def draw(self, noise: float, seed: int) -> Manifold:
        """Return a sample of the manifold.

        Args:
            noise: The standard deviation in every coordinate, in units of the rms distance of the rows from their mean.
            seed: The seed of the sample.
        """
        make = getattr(manifolds, self.name)
        size = {} if self.name == "swiss_roll" else {"dimension": self.dimension}
        clean = make(N_TOKENS, **size, dim=self.dim, seed=seed).rows
        unit = float((clean - clean.mean(dim=0)).norm(dim=1).square().mean().sqrt())
        return make(N_TOKENS, **size, dim=self.dim, noise=noise * unit, seed=seed)

    @property
    def flat(self) -> bool:
        """Whether all places have the same tangent plane; gradients along directions of variance are then tangent."""
        return self.name == "cube"


SURFACES = (
    Surface("sphere", 1, 16),
    Surface("sphere", 2, 64),
    Surface("sphere", 6, 128),
    Surface("torus", 2, 32),
    Surface("torus", 5, 64),
    Surface("swiss_roll", 2, 32),
    Surface("cylinder", 3, 64),
    Surface("quadratic", 3, 16),
    Surface("quadratic", 4, 128),
    Surface("cube", 3, 64),
)


def verdict_rates(
    n_replicates: int = 20, surfaces: Sequence[Surface] = SURFACES, noises: Sequence[float] = NOISES
) -> pl.DataFrame:
    """Return how often each verdict was given, for each manifold, noise and kind of gradients.

    Args:
        n_replicates: The number of draws of each cell.
        surfaces: The manifolds.
        noises: The standard deviations of the noise, relative to the size of the manifold.

    Returns:
        One row per cell, with columns `surface`, `dimension`, `dim`, `noise`, `gradients`, and rates: one for each
        verdict, and `right`, `not judged` and `wrong`.
    """
    rows = []
    for surface in surfaces:
        for noise in noises:
            said: dict[str, list[str]] = {}
            for seed in range(n_replicates):
                for kind, verdict in _verdicts(surface.draw(noise, seed), seed).items():
                    said.setdefault(kind, []).append(verdict)
            for kind, verdicts in said.items():
                rates = {verdict: verdicts.count(verdict) / n_replicates for verdict in VERDICTS}
                right = sum(verdict in right_verdicts(kind, surface) for verdict in verdicts)
                wrong = n_replicates - right - verdicts.count("unknown")
                summary = {"right": right / n_replicates, "not judged": rates["unknown"], "wrong": wrong / n_replicates}
                cell = {"surface": surface.name, "dimension": surface.dimension, "dim": surface.dim, "noise": noise}
                rows.append({**cell, "gradients": kind, **rates, **summary})
    return pl.DataFrame(rows)


def right_verdicts(kind: str, surface: Surface) -> set[str]:
    """Return which verdicts are right for gradients of a kind on a manifold."""
    right = set(RIGHT[kind])
    if surface.flat and kind.startswith("variance"):
        right.add("tangent")
    # A tangent gradient in one of ten tokens makes a share of a tenth.
    if kind == "normal in 9 of 10 tokens" and surface.dimension / surface.dim > 0.1:
        right.add("normal")
    return right


def gradients_of(drawn: Manifold, seed: int) -> dict[str, Float[Tensor, "n d"]]:
    """Return gradients of every kind that the manifold allows, with heavy-tailed lengths."""
    make = torch.Generator().manual_seed(seed + 1000)
    (n, d), frames = drawn.rows.shape, drawn.tangents(torch.arange(len(drawn.rows)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64)

    def off_the_planes(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return rows - torch.einsum("ndm,nm->nd", frames, torch.einsum("ndm,nd->nm", frames, rows))

    def in_some_tokens(share: float, one: Float[Tensor, "n d"], other: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return torch.where(torch.rand(n, 1, generator=make, dtype=torch.float64) < share, one, other)

    axes = torch.linalg.qr(normal(d, d)).Q
    around = drawn.rows - drawn.rows.mean(dim=0)
    isotropic = normal(n, d)
    tangent = torch.einsum("ndm,nm->nd", frames, normal(n, drawn.dimension))
    # Sums of many rows with random signs have the covariance of the rows.
    variance = normal(n, 256) @ around[torch.randperm(n, generator=make)[:256]]
    kinds = {
        "tangent": tangent,
        "normal, anywhere": off_the_planes(isotropic),
        "tangent in half of the tokens": in_some_tokens(0.5, normalize(tangent, dim=1), normalize(isotropic, dim=1)),
        "variance": variance,
        "variance in half of the tokens": in_some_tokens(0.5, normalize(variance, dim=1), normalize(isotropic, dim=1)),
        "isotropic": isotropic,
        "unrelated": normal(n, d) * torch.arange(1, d + 1, dtype=torch.float64) ** -1.0 @ axes.T,
    }
    if drawn.rotation.shape[1] > drawn.dimension:
        inside = normalize(off_the_planes(normal(n, drawn.rotation.shape[1]) @ drawn.rotation.T), dim=1)
        kinds["normal, in the span"] = inside
        kinds["normal in 9 of 10 tokens"] = in_some_tokens(0.9, inside, normalize(tangent, dim=1))
    return {kind: (2 * normal(n, 1)).exp() * normalize(rows, dim=1) for kind, rows in kinds.items()}


def _verdicts(drawn: Manifold, seed: int) -> dict[str, str]:
    """Return the verdict on gradients of every kind, for one sample of a manifold."""
    n = len(drawn.rows)
    # Planes do not depend on the gradients, so all kinds share them.
    fit, test = TokenRows.of(drawn.rows, torch.ones_like(drawn.rows), torch.arange(n) // LENGTH).halves()
    on = AuditData(fit, test, rank=1, dimension=None, seed=seed)
    overlaps, at = Overlaps.of(on), n // 2 + on.anchors
    return {
        kind: judged(on, gradients[at], overlaps).says or "unknown"
        for kind, gradients in gradients_of(drawn, seed).items()
    }


if __name__ == "__main__":
    n_replicates = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    rates = verdict_rates(n_replicates)
    pooled = rates.group_by("gradients", "noise", maintain_order=True).agg(
        pl.mean("right", "not judged", "wrong"), pl.max("wrong").alias("wrong in the worst cell")
    )
    with pl.Config(tbl_rows=-1, tbl_cols=-1, fmt_str_lengths=100, tbl_width_chars=200, tbl_hide_dataframe_shape=True):
        print(pooled)  # noqa: T201
        print(rates.filter(pl.col("wrong") > 0))  # noqa: T201
