"""What the lens costs, as ratios of the bare training step, all measured side by side in one run."""

import shutil
import tempfile
import time
from collections.abc import Callable

import torch

from tangentlens import Lens
from tangentlens.models.small import small_model

ROUNDS = 15


def main() -> None:
    print("model                        bare step   between due steps   a due step")
    for layers, width in ((6, 128), (8, 256)):
        compare(layers, width)


def compare(layers: int, width: int, vocabulary: int = 2048, batch: int = 32, length: int = 64) -> None:
    tokens = torch.randint(2, vocabulary, (batch, length))
    counts = tokens.flatten().bincount(minlength=vocabulary)
    folder = tempfile.mkdtemp()
    steps: dict[str, Callable[[], None]] = {}
    for name, every in (("bare", None), ("watched", [10**9]), ("due", 1)):
        model = small_model("decoder", vocabulary, layers, width, length, mask=1, seed=0)
        optimizer = torch.optim.AdamW(model.parameters())
        lens = None if every is None else Lens(model, every=every, run=f"{folder}/{name}", counts=counts).__enter__()
        steps[name] = lambda model=model, optimizer=optimizer, lens=lens: train_step(model, optimizer, lens, tokens)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(ROUNDS):
        # Every one is first equally often, and the best of its times is what the machine did not disturb.
        for name in sorted(steps, key=lambda name: (list(steps).index(name) + turn) % len(steps)):
            start = time.perf_counter()
            steps[name]()
            times[name].append(time.perf_counter() - start)
    bare = min(times["bare"])
    print(
        f"decoder, {layers} x {width:<4} {batch * length} tokens   1.00        "
        f"{min(times['watched']) / bare:<19.2f} {min(times['due']) / bare:.2f}"
    )
    shutil.rmtree(folder)


def train_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, lens: Lens | None, tokens: torch.Tensor
) -> None:
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if lens is not None:
        lens.step()


if __name__ == "__main__":
    main()
