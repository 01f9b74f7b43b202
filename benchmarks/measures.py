"""What each measure costs, in units of one bare product X^T X of the same rows: 4,096 rows of width 768.

`measures.py --write` puts the numbers into docs/which-measure.md, where the words `COST_name` stand.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch

import tangentlens as tl
from timing import best

N, DIM = 4096, 768
ROUNDS = 3


def main() -> None:
    make = torch.Generator().manual_seed(0)
    spectrum = torch.arange(1, DIM + 1) ** -0.5
    # Rows near a curved surface of 5 dimensions: curvature has to exist for its measures to be taken.
    bent = torch.tanh(torch.randn(N, 5, generator=make) @ torch.randn(5, DIM, generator=make))
    rows = bent * spectrum + 0.001 * torch.randn(N, DIM, generator=make)
    gradients = torch.randn(N, DIM, generator=make) * spectrum
    later = rows + 0.1 * torch.randn(N, DIM, generator=make) * spectrum
    sequences = torch.arange(N) // 64
    classes = torch.randint(4, (N,), generator=make)
    of_rows = (
        *("anisotropy", "mean_cosine", "rogue_dimensions", "participation_ratio", "isoscore", "alpha_req"),
        *("intrinsic_dimension", "manifold_entropy", "local_anisotropy", "local_geometry", "massive_rows"),
    )
    ways: dict[str, Callable[[], object]] = {
        "bare": lambda: rows.T @ rows,
        **{name: lambda name=name: getattr(tl, name)(rows) for name in of_rows},
        "tangent_test": lambda: tl.tangent_test(rows, gradients, sequences),
        "active_concepts": lambda: tl.active_concepts(rows, gradients, sequences),
        "audit": lambda: tl.audit(rows, gradients, sequences),
        "movement": lambda: tl.movement(rows, later, sequences),
        "linear_probe": lambda: tl.linear_probe(rows, classes, sequences),
    }
    times = best(ways, rounds=ROUNDS)
    ratios = {name: times[name] / times["bare"] for name in list(ways)[1:]}
    for name, ratio in ratios.items():
        print(f"{name:<22} {ratio:.2g}")
    if sys.argv[1:] == ["--write"]:
        page = Path(__file__).parents[1] / "docs" / "which-measure.md"
        text = page.read_text()
        for name, ratio in ratios.items():
            text = text.replace(f"COST_{name} |", f"{float(f'{ratio:.2g}'):g} |")
        page.write_text(text)


if __name__ == "__main__":
    main()
