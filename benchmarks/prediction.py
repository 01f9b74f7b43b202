"""What it saves to predict later gradients from activations alone: a proxy of activations needs no backward pass.

Times of a forward pass, of a forward and backward pass, and of what is fitted at all residual sites, as ratios to the
forward pass in one run.
"""

import torch
from torch import Tensor

from tangentlens.alignment.prediction import leading_gradients
from tangentlens.capture.sites import find_sites
from tangentlens.capture.step import Capture
from tangentlens.models.small import small_model
from tangentlens.proxies import DEFAULT, PROXIES
from timing import best

RANK, VOCABULARY = 16, 2048
# Blocks, width, sequences and their length.
SIZES = ((6, 128, 32, 64), (6, 384, 32, 128), (12, 768, 8, 256))


def measure(blocks: int, width: int, batch: int, length: int) -> dict[str, float]:
    """Seconds of each part."""
    model = small_model("decoder", VOCABULARY, blocks, width, length, mask=1, seed=0)
    tokens = torch.randint(2, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0))
    sites = find_sites(model, "resid")
    with Capture(model, sites) as capture:
        model(input_ids=tokens, labels=tokens).loss.backward()
    rows = [capture.rows(site) for site in sites]

    def forward() -> Tensor:
        with torch.no_grad():
            return model(input_ids=tokens, labels=tokens).loss

    def both() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        model.zero_grad()

    return best(
        {
            "forward pass": forward,
            "forward and backward pass": both,
            "proxy of activations": lambda: [PROXIES[DEFAULT].fit(one.activations, RANK, 0) for one in rows],
            "pca of activations": lambda: [PROXIES["pca"].fit(one.activations, RANK, 0) for one in rows],
            "leading gradients": lambda: [leading_gradients(one.gradients, RANK) for one in rows],
        }
    )


def main() -> None:
    for size in SIZES:
        times = measure(*size)
        print("{} blocks of width {}, {} x {} tokens; forward passes".format(*size))
        for name, seconds in times.items():
            print(f"  {name:<28} {seconds / times['forward pass']:.2f}")


if __name__ == "__main__":
    main()
