"""The tangent test beside the fit of its proxy, and chance in closed form beside drawing it, as ratios in one run."""

import torch

from tangentlens import SemiNMF, chance, share, tangent_test
from tangentlens.measures import WATCHED
from tangentlens.proxies.random import random
from timing import best

DRAWS = 1000


def main() -> None:
    make = torch.Generator().manual_seed(0)
    n, d = 16_384, 768
    scale = torch.arange(1, d + 1) ** -0.8
    activations = torch.randn(n, d, generator=make).relu() @ torch.randn(d, d, generator=make) * scale / d**0.5
    gradients = torch.randn(n, d, generator=make) * torch.arange(1, d + 1) ** -0.5
    sequences = torch.arange(n) // 128
    part, whole, cheap, all_controls = best(
        {
            "part": lambda: SemiNMF(16).fit(activations[: n // 2]),
            "whole": lambda: SemiNMF(16).fit(activations),
            "cheap": lambda: tangent_test(activations, gradients, sequences, controls=WATCHED),
            "all": lambda: tangent_test(activations, gradients, sequences),
        }
    ).values()
    print(f"one site, {n} tokens, d = {d}, r = 16; {torch.get_num_threads()} threads")
    print(
        f"test with the lens's controls / fit on the half that it fits: {cheap / part:.1f}, on all: {cheap / whole:.1f}"
    )
    print(f"test with all controls / fit on the half: {all_controls / part:.1f}, on all: {all_controls / whole:.1f}")
    moment = gradients.T @ gradients
    closed, drawn = best(
        {
            "closed": lambda: chance(moment, 16),
            "drawn": lambda: [share(moment, random(d, 16, seed)) for seed in range(DRAWS // 10)],
        }
    ).values()
    print(f"chance by {DRAWS} draws / in closed form: {10 * drawn / closed:.0f}")


if __name__ == "__main__":
    main()
