"""What a sweep over all of Pythia would take on GPUs, counted from unit costs that are measured here.

`sweep_costs.py [TERAFLOPS]`. The measures of one site are timed at several widths, on rows like those of a trained
model, and so is a bare matrix product. Their ratio says how many operations the measures are worth. A GPU is taken to
do so many operations a second in fp32 (10 by default, in units of 10^12), on passes and measures alike. Nobody has
timed this on a GPU: small operations may take longer there, and large products less.
"""

import heapq
import math
import sys
import time

import torch

from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.alignment.rows import TokenRows
from tangentlens.alignment.tangent_test import CONTROLS
from tangentlens.geometry.measures import USUAL
from tangentlens.lens.measures import WATCHED, Fitting, measure_site
from tangentlens.studies.sweep import SweepPlan
from tangentlens.studies.sweep.presets import FAMILIES

# Blocks and width of each size.
SHAPES = {
    "14m": (6, 128),
    "31m": (6, 256),
    "70m": (6, 512),
    "160m": (12, 768),
    "410m": (24, 1024),
    "1b": (16, 2048),
    "1.4b": (24, 2048),
    "2.8b": (32, 2560),
    "6.9b": (32, 4096),
    "12b": (36, 5120),
}
CHECKPOINTS, WIDTHS = 154, (256, 512, 1024, 2048)
GPUS = (1, 8, 64)
PLAN = SweepPlan(("model",))


def site_seconds(width: int, controls: tuple[str, ...]) -> float:
    """Seconds of the measures of one site, on rows whose variance falls as that of trained models does."""
    make = torch.Generator().manual_seed(0)
    scale = torch.arange(1, width + 1) ** -0.5
    activations, gradients = (torch.randn(PLAN.tokens, width, generator=make) * scale for _ in range(2))
    tokens = (torch.rand(PLAN.tokens, generator=make) ** 4 * 2000).long()
    sequences = torch.arange(PLAN.tokens) // PLAN.length
    rows = TokenRows.of(activations, gradients, sequences, tokens, tokens.roll(-1))
    bins = FrequencyBins.of(tokens.bincount(minlength=2000))
    fitting = Fitting("semi_nmf", PLAN.rank, bins, 0, controls, (1.0, 2.0, math.inf), PLAN.massive, USUAL)
    start = time.perf_counter()
    measure_site(rows, None, fitting)
    return time.perf_counter() - start


def product_rate() -> float:
    """Operations a second of a bare product in fp32."""
    x, best = torch.randn(2048, 2048), math.inf
    for _ in range(5):
        start = time.perf_counter()
        x @ x
        best = min(best, time.perf_counter() - start)
    return 2 * 2048**3 / best


def at_width(width: int, known: dict[int, float]) -> float:
    """Operations at a width, on the line through the two nearest ones that are known, in logarithms."""
    low, high = sorted(sorted(known, key=lambda other: abs(math.log(other / width)))[:2])
    slope = math.log(known[high] / known[low]) / math.log(high / low)
    return known[low] * (width / low) ** slope


def shared_out(seconds: list[float], workers: int) -> float:
    """The time at which the last worker ends, if each takes the longest task that is left."""
    ends = [0.0] * workers
    for task in sorted(seconds, reverse=True):
        heapq.heapreplace(ends, ends[0] + task)
    return max(ends)


def table(controls: tuple[str, ...], rate: float) -> None:
    known = {width: site_seconds(width, controls) * product_rate() for width in WIDTHS}
    print(f"\n{len(controls)} controls; a site is worth, in 10^12 operations:", end=" ")
    print(", ".join(f"{known[width] / 1e12:.2f} at width {width:,}" for width in WIDTHS))
    print("size  sites  passes  measures  weights   one checkpoint   hours for 154 on 1, 8, 64 GPUs")
    everything = []
    for model in FAMILIES["pythia"]:
        size = model.hub_id.rsplit("-", 1)[-1]
        blocks, width = SHAPES[size]
        # Forward, and backward without gradients of weights.
        passes = 4 * model.billions * 1e9 * PLAN.tokens
        measures = (blocks + 1) * at_width(width, known)
        seconds = (passes + measures) / rate
        tasks = [seconds] * CHECKPOINTS
        everything += tasks
        hours = ", ".join(f"{shared_out(tasks, gpus) / 3600:.2f}" for gpus in GPUS)
        print(
            f"{size:>5} {blocks + 1:6} {passes / 1e12:7.1f} {measures / 1e12:9.1f} {2 * model.billions:6.1f} GB "
            f"{seconds:14.1f} s   {hours}"
        )
    hours = ", ".join(f"{shared_out(everything, gpus) / 3600:.1f}" for gpus in GPUS)
    total = sum(2 * model.billions for model in FAMILIES["pythia"]) * CHECKPOINTS / 1000
    print(f"all sizes: {hours} hours; {total:.1f} TB of weights to download in fp16", flush=True)


def main() -> None:
    rate = 1e12 * float(sys.argv[1] if len(sys.argv) > 1 else 10)
    for controls in (CONTROLS, WATCHED):
        table(tuple(controls), rate)


if __name__ == "__main__":
    main()
