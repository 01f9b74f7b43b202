"""The geometry kernel beside its floor (bare matrix products) and beside peers, as ratios measured in one run.

Peers need environments of their own: `make peers` builds them, and those that are missing are left out.
"""

import resource
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

import tangentlens as tl
from timing import best

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".peers" / "bin" / "python"
DADAPY = ROOT / ".peers-dadapy" / "bin" / "python"
CENTRED = (
    tl.anisotropy,
    tl.participation_ratio,
    tl.effective_rank,
    tl.entropy_rank,
    tl.stable_rank,
    tl.isoscore,
    tl.alpha_req,
)


def main() -> None:
    print(f"torch uses {torch.get_num_threads()} threads; ratios above 1 are slower than what stands after the slash\n")
    memory()
    big, small = rows(20_000, 768), rows(4_096, 768)
    floors(big)
    neighbours(big)
    peers(big, small)


def rows(n: int, d: int) -> torch.Tensor:
    """A power-law spectrum around an offset, as activations have."""
    make = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=make) * torch.arange(1, d + 1) ** -0.5 + 0.3


def floors(x: torch.Tensor) -> None:
    matrix = (x.T @ x).double()
    moments, short = tl.Moments(x.shape[1]), x.bfloat16()
    times = best(
        {
            "product": lambda: x.T @ x,
            "eigvalsh": lambda: torch.linalg.eigvalsh(matrix),
            "update": lambda: moments.update(x),
            "update bf16": lambda: moments.update(short),
            "all": lambda: all_spectral(x, (*CENTRED, tl.rankme)),
            "centred": lambda: all_spectral(x, CENTRED),
        }
    )
    print(f"Moments.update, fp32 / bare X.T @ X                       {times['update'] / times['product']:.2f}")
    print(f"Moments.update, bf16 / bare X.T @ X of the same in fp32   {times['update bf16'] / times['product']:.2f}")
    floor = times["product"] + times["eigvalsh"]
    print(f"all centred spectral measures / (X.T @ X + eigvalsh)      {times['centred'] / floor:.2f}")
    print(f"and rankme, which has a spectrum of its own               {times['all'] / floor:.2f}\n")


def all_spectral(x: torch.Tensor, measures: Sequence[Callable[[tl.Moments], float]]) -> list[float]:
    moments = tl.Moments.of(x)
    return [measure(moments) for measure in measures]


def neighbours(x: torch.Tensor) -> None:
    times = best(
        {
            "product": lambda: [part @ x.T for part in x.split(2048)],
            "twonn": lambda: tl.intrinsic_dimension(x),
        },
        rounds=3,
    )
    print(f"TwoNN, 20000 x 768 / bare X @ X.T, in blocks              {times['twonn'] / times['product']:.2f}\n")


def peers(big: torch.Tensor, small: torch.Tensor) -> None:
    rivals = [
        ("TwoNN, 20000 x 768", "faiss_neighbours", PEERS, big, tl.intrinsic_dimension, 3),
        ("TwoNN, 20000 x 768", "scikit_dimension", PEERS, big, tl.intrinsic_dimension, 1),
        ("TwoNN, 20000 x 768", "dadapy", DADAPY, big, tl.intrinsic_dimension, 1),
        ("TwoNN, 4096 x 768", "llm_microscope_dimension", PEERS, small, tl.intrinsic_dimension, 1),
        ("anisotropy, 20000 x 768", "llm_microscope_anisotropy", PEERS, big, tl.anisotropy, 3),
        ("IsoScore, 20000 x 768", "isoscore", PEERS, big, tl.isoscore, 1),
    ]
    for what, task, python, x, ours, rounds in rivals:
        if not python.exists():
            print(f"{what:<24} {task:<26} left out; `make peers` builds what it needs")
            continue
        try:
            theirs, value = min(theirs_of(python, task, x) for _ in range(rounds))
        except subprocess.CalledProcessError as error:
            print(f"{what:<24} {task:<26} ended with code {error.returncode} (-9: out of memory)")
            continue
        mine = best({"ours": lambda ours=ours, x=x: ours(x)}, rounds=3)["ours"]
        result = ours(x)
        found = f"{getattr(result, 'value', result):.4f}, theirs {value:.4f}"
        print(f"{what:<24} {task:<26} takes {theirs / mine:6.1f} times as long   (ours {found})")


def theirs_of(python: Path, task: str, x: torch.Tensor) -> tuple[float, float]:
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file.name, x.numpy())
        script = Path(__file__).with_name("peers.py")
        done = subprocess.run([python, script, task, file.name], capture_output=True, text=True, check=True)
    seconds, value = done.stdout.split()[-2:]
    return float(seconds), float(value)


def memory() -> None:
    """What a process holds at most, beyond what it held before."""
    moments, part = tl.Moments(768), rows(4_096, 768)

    def stream() -> None:
        for _ in range(-(-1_000_000 // len(part))):
            moments.update(part)

    print(f"\na million rows x 768 through Moments, 4,096 at a time: {grown(stream):.0f} MiB more than before")
    many = rows(60_000, 768)
    size = many.nbytes / 2**20
    print(f"TwoNN, 60000 x 768 ({size:.0f} MiB of rows): {grown(lambda: tl.intrinsic_dimension(many)):.0f} MiB more")


def grown(action: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    action()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


if __name__ == "__main__":
    main()
