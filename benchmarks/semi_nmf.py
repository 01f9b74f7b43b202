"""The semi-NMF fit against its floor: one product X^T X and one eigendecomposition."""

import time
from collections.abc import Callable
from statistics import median

import torch

from tangentlens import SemiNMF

ROUNDS = 3


def main() -> None:
    print("rows          k    fit / floor   sweeps   error     SVD floor at k")
    for n, d, k in ((2048, 128, 16), (8192, 768, 16), (8192, 768, 64)):
        make = torch.Generator().manual_seed(0)
        scale = torch.arange(1, d + 1) ** -0.8
        x = torch.randn(n, d, generator=make) * scale
        x = x + torch.randn(n, d, generator=make).relu() @ torch.randn(d, d, generator=make) * scale / d**0.5
        floor = seconds(lambda x=x: torch.linalg.eigh((x.T @ x).double()))
        fit = seconds(lambda x=x, k=k: SemiNMF(k).fit(x))
        found = SemiNMF(k).fit(x)
        values = torch.linalg.svdvals(x - x.mean(dim=0)) ** 2
        least = float(values[k:].sum() / values.sum())
        print(f"{n} x {d:<6} {k:<4} {fit / floor:<13.1f} {found.n_iter_:<8} {found.error_:.5f}   {least:.5f}")


def seconds(action: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return median(times)


if __name__ == "__main__":
    main()
