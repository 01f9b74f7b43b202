"""What a profile costs: the constants of the rule in `studies/profile/expected.py`, and a whole profile against it.

Seconds are those that one core computes for, the least of several rounds, which other work on the machine disturbs
little. `profile_cost.py CORES` says in addition how many times as fast so many cores are, by the clock: for that the
machine must be idle.
"""

import sys
import time
from collections.abc import Callable

import torch
from scipy.optimize import nnls
from transformers import BertConfig, BertModel

from tangentlens.geometry.measures import USUAL, chosen
from tangentlens.studies.profile.expected import typical_cloud
from tangentlens.studies.profile.results import measure_both_ways

SHAPES = ((2048, 384), (4096, 384), (2048, 768), (4096, 768), (8192, 768), (2048, 2048), (4096, 2048), (2048, 4096))
# Width, layers and width of the MLP.
MODELS = ((384, 6, 1536), (768, 12, 3072), (2048, 4, 8192))


def least(action: Callable[[], object], clock: Callable[[], float], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = clock()
        action()
        times.append(clock() - start)
    return min(times)


def measures(n: int, d: int, clock: Callable[[], float], rounds: int = 2) -> float:
    """Seconds of the usual measures, with the massive row and without it."""
    # What a cloud has computed once it keeps, so each round has its own.
    return least(lambda: measure_both_ways(typical_cloud(n, d), chosen(USUAL)), clock, rounds)


def forward(width: int, layers: int, inner: int, clock: Callable[[], float], rounds: int = 3) -> float:
    """Operations per second of a forward pass of 2,048 tokens through a model with random weights."""
    shape = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": inner}
    model = BertModel(BertConfig(**shape, num_attention_heads=width // 64)).eval()
    tokens = torch.randint(0, 30_000, (16, 128))
    with torch.no_grad():
        seconds = least(lambda: model(tokens), clock, rounds)
    return 2 * layers * (4 * width**2 + 2 * width * inner) * tokens.numel() / seconds


def main() -> None:
    torch.set_num_threads(1)
    for shape in MODELS:
        print(f"forward, width {shape[0]}: {forward(*shape, time.process_time) / 1e9:.0f} GFLOP/s", flush=True)
    terms, seconds = [], []
    for n, d in SHAPES:
        terms.append([n * n * d, n * d, d**3])
        seconds.append(measures(n, d, time.process_time))
        print(f"measures, {n} x {d}: {seconds[-1]:.2f} s", flush=True)
    # Relative errors count, so that wide sites do not decide alone.
    found, _ = nnls([[term / s for term in row] for row, s in zip(terms, seconds, strict=True)], [1.0] * len(seconds))
    print("for each n²d, nd and d³:", *(f"{value:.3g}" for value in found))
    for (n, d), row, s in zip(SHAPES, terms, seconds, strict=True):
        print(f"rule, {n} x {d}: {sum(a * b for a, b in zip(found, row, strict=True)) / s:.2f} of what was measured")
    if len(sys.argv) > 1:
        alone = measures(4096, 384, time.perf_counter, 5), forward(*MODELS[1], time.perf_counter, 5)
        torch.set_num_threads(int(sys.argv[1]))
        together = measures(4096, 384, time.perf_counter, 5), forward(*MODELS[1], time.perf_counter, 5)
        print(f"faster by: measures {alone[0] / together[0]:.2f}, forward {together[1] / alone[1]:.2f}")


if __name__ == "__main__":
    main()
