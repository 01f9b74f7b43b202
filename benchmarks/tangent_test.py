"""The tangent test beside the fit of its proxy and the floor of such fits, as ratios in one run.

The floor is one product X^T X and one eigendecomposition. Then chance in closed form beside drawing it.
"""

import torch

from tangentlens import SemiNMF, chance, share, tangent_test
from tangentlens.lens.measures import WATCHED
from tangentlens.proxies.random import random
from tangentlens.proxies.semi_nmf import SPAN_TOL
from timing import best

DRAWS = 1000


def main() -> None:
    make = torch.Generator().manual_seed(0)
    n, d = 16_384, 768
    scale = torch.arange(1, d + 1) ** -0.8
    activations = torch.randn(n, d, generator=make).relu() @ torch.randn(d, d, generator=make) * scale / d**0.5
    gradients = torch.randn(n, d, generator=make) * torch.arange(1, d + 1) ** -0.5
    sequences = torch.arange(n) // 128
    floor, part, whole, cheap, all_controls = best(
        {
            "floor": lambda: torch.linalg.eigh((activations[: n // 2].T @ activations[: n // 2]).double()),
            "part": lambda: SemiNMF(16, tol=SPAN_TOL).fit(activations[: n // 2]),
            "whole": lambda: SemiNMF(16, tol=SPAN_TOL).fit(activations),
            "cheap": lambda: tangent_test(activations, gradients, sequences, controls=WATCHED),
            "all": lambda: tangent_test(activations, gradients, sequences),
        }
    ).values()
    print(f"one site, {n} tokens, d = {d}, r = 16; {torch.get_num_threads()} threads; beside it X^T X and eigh of half")
    print("                        / floor   / fit on the half that it fits   / fit on all")
    for name, time in (
        ("fit on the half", part),
        ("lens's five controls", cheap),
        ("all nine controls", all_controls),
    ):
        print(f"{name:<23} {time / floor:<9.1f} {time / part:<30.1f} {time / whole:.1f}")
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
