"""Semi-NMF beside its floor (one product X^T X, one eigendecomposition) and beside overcomplete, as ratios in one run.

overcomplete needs an environment of its own: `make peers` builds it; without it that column is left out.
"""

import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch

from tangentlens import SemiNMF
from timing import best

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".peers" / "bin" / "python"


def main() -> None:
    print(f"{torch.get_num_threads()} threads; 8192 x 768 rows; overcomplete 0.3.0 at its defaults")
    print(
        "rows      centred   k    fit / floor   turns   warm / floor   overcomplete / fit   error     its error   best"
    )
    for name, x in (("power", power_law()), ("planted", planted()), ("noisy", noisy())):
        for center in (False, True):
            for k in (16, 64):
                compare(name, x, center, k)


def power_law(n: int = 8192, d: int = 768) -> torch.Tensor:
    """Gaussian and rectified directions with a power-law spectrum."""
    make = torch.Generator().manual_seed(0)
    scale = torch.arange(1, d + 1) ** -0.8
    x = torch.randn(n, d, generator=make) * scale
    return x + torch.randn(n, d, generator=make).relu() @ torch.randn(d, d, generator=make) * scale / d**0.5


def planted(n: int = 8192, d: int = 768, k: int = 64) -> torch.Tensor:
    """Sparse non-negative mixtures of 64 directions of falling length, and 2% noise."""
    make = torch.Generator().manual_seed(0)
    codes = torch.rand(n, k, generator=make) * (torch.rand(n, k, generator=make) < 0.3)
    x = codes @ (torch.randn(k, d, generator=make) / torch.arange(1, k + 1)[:, None])
    return x + 0.02 * x.std() * torch.randn(n, d, generator=make)


def noisy(n: int = 8192, d: int = 768, k: int = 16) -> torch.Tensor:
    """Non-negative codes of falling scale for as many directions as are sought, and noise of a tenth of the energy."""
    make = torch.Generator().manual_seed(0)
    codes = torch.rand(n, k, generator=make) * torch.arange(1, k + 1) ** -0.5
    x = codes @ torch.randn(k, d, generator=make)
    return x + (x.square().mean() / 9).sqrt() * torch.randn(n, d, generator=make)


def compare(name: str, x: torch.Tensor, center: bool, k: int) -> None:
    fit = SemiNMF(k, center=center).fit(x)
    moved = x + 0.05 * x.std() * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    floor, ours, warm = best(
        {
            "floor": lambda: torch.linalg.eigh((x.T @ x).double()),
            "fit": lambda: SemiNMF(k, center=center).fit(x),
            "warm": lambda: SemiNMF(k, center=center).fit(moved, init=fit),
        }
    ).values()
    rows = x - x.mean(dim=0) if center else x
    values = torch.linalg.svdvals(rows) ** 2
    least = float(values[k:].sum() / values.sum())
    ratio, error = "-", float("nan")
    if PEERS.exists():
        with tempfile.NamedTemporaryFile(suffix=".npy") as file:
            np.save(file.name, rows.numpy())
            told = subprocess.run(
                [PEERS, ROOT / "benchmarks" / "peers.py", f"overcomplete_{k}", file.name],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
        ratio, error = f"{float(told[0]) / ours:.1f}", float(told[1])
    print(
        f"{name:<9} {center!s:<9} {k:<4} {ours / floor:<13.1f} {fit.n_iter_:<7} {warm / floor:<14.1f} {ratio:<20} "
        f"{fit.error_:.5f}   {error:.5f}     {least:.5f}"
    )


if __name__ == "__main__":
    main()
