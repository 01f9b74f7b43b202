"""What the lens costs, as ratios of the bare training step, measured side by side in one run.

A GPT-2-like model of 17 M parameters (8 blocks of width 384), 2,048 tokens a step, unless said. `lens.py memory NAME`
trains in one way and prints the peak of its memory; the rest calls it.
"""

import copy
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from tangentlens import Lens, Moments
from tangentlens.capture.sites import find_sites
from timing import best

ROUNDS, EVERY = 7, 100
VOCABULARY, LAYERS, WIDTH, BATCH, LENGTH = 8192, 8, 384, 16, 128


class Training:
    """A model in training, step by step, with something around each step."""

    def __init__(
        self, layers: int = LAYERS, width: int = WIDTH, batch: int = BATCH, lens: Callable[..., Lens] | None = None
    ) -> None:
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_layer=layers,
            n_embd=width,
            n_head=width // 64,
            n_positions=LENGTH,
            bos_token_id=0,
            eos_token_id=0,
        )
        self.model = transformers.GPT2LMHeadModel(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.tokens = torch.randint(2, VOCABULARY, (batch, LENGTH))
        self.lens = None if lens is None else lens(self.model).__enter__()

    def step(self) -> None:
        """Train one step."""
        self.model(input_ids=self.tokens, labels=self.tokens).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.lens is not None:
            self.lens.step()


def bare_products(training: Training) -> Callable[[], None]:
    """The training step, and X^T X of as many rows as all sites have, of activations and of gradients."""
    sites = 2 * len(find_sites(training.model, "resid"))
    rows = torch.randn(training.tokens.numel(), training.model.config.n_embd)
    return lambda: (training.step(), [rows.T @ rows for _ in range(sites)])[0]


def plain_hooks(training: Training) -> Callable[[], None]:
    """The same with forward hooks that multiply what they see, and nothing else."""
    for site in find_sites(training.model, "resid"):

        def on(module: object, args: object, output: torch.Tensor) -> None:
            output.register_hook(multiply)
            multiply(output)

        site.module.register_forward_hook(on)
    return training.step


def multiply(hidden: torch.Tensor) -> None:
    rows = hidden.detach().flatten(0, 1)
    _ = rows.T @ rows


def second_copy(training: Training) -> Callable[[], None]:
    """How the closest peer gets gradients: a copy of the model runs the batch again."""

    def step() -> None:
        training.step()
        other = copy.deepcopy(training.model)
        other(input_ids=training.tokens, labels=training.tokens).loss.backward()

    return step


def by_themselves(training: Training) -> None:
    """What moments of every step add, without the training: differences of steps drown in the machine's noise."""
    n, d = training.tokens.numel(), training.model.config.n_embd
    sites = 2 * len(find_sites(training.model, "resid"))
    rows = [torch.randn(n, d) for _ in range(sites)]
    kept = [Moments(d) for _ in range(sites)]
    times = best(
        {
            "step": training.step,
            "products": lambda: [x.T @ x for x in rows],
            "moments": lambda: [moments.update(x) for moments, x in zip(kept, rows, strict=True)],
        },
        rounds=ROUNDS,
    )
    for name in ("products", "moments"):
        print(f"{sites} {name} by themselves         {times[name] / times['step']:.4f} of a step")


def measured(ways: dict[str, Callable[[], None]], rounds: int = ROUNDS) -> dict[str, float]:
    """The time of a step in each way over that of the first: the median over rounds, in which each way has a turn."""
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(rounds):
        times = {name: _seconds(way) for name, way in ways.items()}
        for name, seconds in times.items():
            ratios[name].append(seconds / next(iter(times.values())))
    return {name: statistics.median(found) for name, found in ratios.items()}


def _seconds(way: Callable[[], None]) -> float:
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def lenses(folder: str, sites: str | list[str] = "resid") -> dict[str, Callable[[torch.nn.Module], Lens]]:
    """Between due steps; moments of every step; a due step, with counts and without."""
    never = [10**9]
    # The frequencies with which tokens are drawn, so that each bin has as many of them.
    counts = torch.ones(VOCABULARY)
    ways = {
        "between due steps": {"every": never},
        "moments of every step": {"every": never, "moments_every": 1},
        "a due step": {"every": 1},
        "a due step, 8 frequency bins": {"every": 1, "counts": counts},
    }
    return {name: lambda model, name=name: Lens(model, sites, run=f"{folder}/{name}", **ways[name]) for name in ways}


def main() -> None:
    folder = tempfile.mkdtemp()
    print(f"{torch.get_num_threads()} threads; {LAYERS} blocks of width {WIDTH}, {BATCH * LENGTH} tokens a step")
    watched = {name: Training(lens=lens).step for name, lens in lenses(folder).items()}
    bare = Training()
    cheap = {
        "bare": bare.step,
        "bare products": bare_products(Training()),
        "plain hooks": plain_hooks(Training()),
        **{name: watched.pop(name) for name in ("between due steps", "moments of every step")},
    }
    found = measured(cheap, rounds=4 * ROUNDS)
    found |= measured({"bare": bare.step, "second copy": second_copy(Training()), **watched})
    for name, ratio in found.items():
        print(f"{name:<30} {ratio:.3f}")
    by_themselves(bare)
    for name in ("a due step", "a due step, 8 frequency bins"):
        # The step before has its rows copied, which is less than adding up their moments.
        average = 1 + (found[name] - 1 + max(found["moments of every step"] - 1, 0)) / EVERY
        print(f"{name}, one in {EVERY}: {average:.3f} on average")
    peaks = {name: memory(name) for name in ("bare", "moments of every step", "a due step")}
    for name, peak in peaks.items():
        print(f"peak memory, {name:<21} {peak / peaks['bare']:.3f}")
    shutil.rmtree(folder)
    print("\nhow it grows                   moments of every step   a due step")
    for name, shape in {
        "width 192": {"width": 192},
        "width 768": {"width": 768},
        "4 blocks": {"layers": 4},
        "16 blocks": {"layers": 16},
        "1,024 tokens": {"batch": 8},
        "4,096 tokens": {"batch": 32},
        "1 site": {"sites": "resid.4"},
        "25 sites": {"sites": ["resid", "attn", "mlp"]},
    }.items():
        folder = tempfile.mkdtemp()
        chosen = lenses(folder, shape.pop("sites", "resid"))
        found = measured(
            {
                "bare": Training(**shape).step,
                **{key: Training(lens=chosen[key], **shape).step for key in ("moments of every step", "a due step")},
            },
            rounds=4,
        )
        print(f"{name:<30} {found['moments of every step']:<23.3f} {found['a due step']:.2f}")
        shutil.rmtree(folder)


def memory(name: str) -> float:
    """Peak of resident memory of some steps, in a process of their own."""
    told = subprocess.run([sys.executable, __file__, "memory", name], capture_output=True, text=True, check=True).stdout
    return float(told.split()[-1])


def print_memory(name: str) -> None:
    folder = tempfile.mkdtemp()
    training = Training(lens=lenses(folder).get(name))
    for _ in range(4):
        training.step()
    print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
    shutil.rmtree(folder)


if __name__ == "__main__":
    print_memory(sys.argv[2]) if sys.argv[1:2] == ["memory"] else main()
