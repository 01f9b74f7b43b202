"""What a profile costs, as a multiple of the bare forward pass of the same tokens: `profiles.py [MODEL]`.

The bare pass is what a user would run: the whole model, without gradients, on the same windows. The profile runs the
model without its head, measures every site as it is reached, and writes each result to disk. Both are timed in turn, in
one process; of several rounds the fastest counts. The last column is a limit that no profile with exact neighbours is
below on this machine: the pass without the head, half of the product X X^T at each site for the neighbours, and X^T X
with its eigenvalues, with and without massive rows where there are any.

Without a model, networks of one shape with random weights show how the cost grows with width, depth and tokens.
"""

import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tangentlens.geometry.measures import NAMES, USUAL
from tangentlens.geometry.rows import gram
from tangentlens.models.load import load_language_model
from tangentlens.models.loading import Loading
from tangentlens.runs.progress import Progress
from tangentlens.studies.profile import Profile, run_profile

SMOLLM2 = Path("models/SmolLM2-135M-Instruct")
ROUNDS = 3
LENGTH = 128


def bare(model: torch.nn.Module, tokens: int) -> float:
    """Seconds of a model on as many tokens, in windows of `LENGTH`."""
    make = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (tokens // LENGTH, LENGTH), generator=make)
    start = time.perf_counter()
    with torch.no_grad():
        for some in ids.split(max(1, 2048 // LENGTH)):
            model(input_ids=some, attention_mask=torch.ones_like(some), use_cache=False)
    return time.perf_counter() - start


def profiled(model: str, tokens: int, measures: tuple[str, ...]) -> tuple[float, int, int]:
    """Seconds of one batch of a profile, the number of sites, and at how many of them there are massive rows."""
    stamps = []
    with tempfile.TemporaryDirectory() as folder:
        plan = Profile(
            (model,), measures=measures, batches=2, batch_tokens=tokens, length=LENGTH, device="cpu", dtype="float32"
        )

        def watch(progress: Progress) -> None:
            stamps.append((progress.done, time.perf_counter()))

        run = run_profile(plan, Path(folder) / "run", watch)
        rows = run.records.filter(metric="massive_rows")
    sites = rows["site"].n_unique()
    # From the end of the first batch to the end of the second: the pass, every site, and the summary.
    times = dict(stamps)
    return times[2 * sites] - times[sites], sites, rows.filter(rows["value"] > 0).height


def least_seconds(sites: int, massive: int, tokens: int, width: int) -> float:
    """Seconds of the products and eigenvalues without which there is no neighbour and no spectrum."""
    x = torch.randn(tokens, width)
    # oneDNN's and MKL's: which of them is faster depends on the processor.
    ways = [[part.to_mkldnn() for part in x.split(512)], list(x.split(512))]
    best = []
    for _ in range(ROUNDS):
        neighbours = min(half_of_products(parts) for parts in ways)
        start = time.perf_counter()
        product = gram(x)
        moments = time.perf_counter() - start
        start = time.perf_counter()
        torch.linalg.eigvalsh(product.double())
        best.append((neighbours, moments, time.perf_counter() - start))
    neighbours, moments, eigenvalues = map(min, zip(*best, strict=True))
    return sites * (neighbours + moments + eigenvalues) + massive * eigenvalues


def compare(name: str, model: str, tokens: int, measures: tuple[str, ...] = USUAL) -> None:
    network = load_language_model(model, Loading("cpu", "float32")).model
    alone, without_head, together = [], [], []
    for _ in range(ROUNDS):
        alone.append(bare(network, tokens))
        without_head.append(bare(network.base_model, tokens))
        seconds, sites, massive = profiled(model, tokens, measures)
        together.append(seconds)
    limit = min(without_head) + least_seconds(sites, massive, tokens, network.config.hidden_size)
    ratio, least = min(together) / min(alone), limit / min(alone)
    print(f"{name:44} {min(alone):8.2f} s   {ratio:5.2f} x   {least:5.2f} x", flush=True)


def half_of_products(parts: list[torch.Tensor]) -> float:
    """Seconds of the products of each part of the rows with itself and those before it."""
    start = time.perf_counter()
    for number, part in enumerate(parts):
        for other in parts[: number + 1]:
            torch.nn.functional.linear(part, other)
    return time.perf_counter() - start


def random_model(folder: str, width: int, layers: int) -> str:
    """A decoder in the shape of SmolLM2, with random weights."""
    path, heads = Path(folder) / f"{width}-{layers}", width // 64
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        # A third of them, as in SmolLM2, or the largest number below that divides them.
        num_key_value_heads=max(count for count in range(1, max(heads // 3, 1) + 1) if heads % count == 0),
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(path)
    AutoTokenizer.from_pretrained(SMOLLM2).save_pretrained(path)
    return str(path)


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else str(SMOLLM2)
    if not Path(model).exists():
        sys.exit(f"{model} is not there; `make smollm2` makes the one that this benchmark is about")
    print(f"{'':44} bare pass    profile   limit ({torch.get_num_threads()} threads)")
    compare(f"{Path(model).name}, 4,096 tokens", model, 4096)
    compare(f"{Path(model).name}, 4,096 tokens, --all", model, 4096, NAMES)
    if len(sys.argv) > 1:
        return
    for tokens in (1024, 8192):
        compare(f"{Path(model).name}, {tokens:,} tokens", model, tokens)
    with tempfile.TemporaryDirectory() as folder:
        for width, layers in ((576, 4), (576, 8), (1024, 4), (2048, 4)):
            compare(f"random, width {width}, {layers} blocks", random_model(folder, width, layers), 4096)


if __name__ == "__main__":
    main()
