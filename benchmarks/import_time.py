"""What importing tangentlens adds to importing PyTorch, as a ratio. Run: python benchmarks/import_time.py.

Each import is timed in a process of its own, the two in turn, so that a machine that slows down slows down both.
"""

import subprocess
import sys
from statistics import median

REPEATS = 9
_TIMED = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def seconds(module: str) -> float:
    """Return how long one import takes in a fresh process."""
    script = _TIMED.format(module)
    return float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    # The first import of each reads from disk what the others find in memory.
    for module in ("torch", "tangentlens"):
        seconds(module)
    pairs = [(seconds("torch"), seconds("tangentlens")) for _ in range(REPEATS)]
    alone, both = (median(times) for times in zip(*pairs, strict=True))
    added = [with_it / without - 1 for without, with_it in pairs]
    print(f"import torch: {alone:.2f} s; import tangentlens: {both:.2f} s (medians of {REPEATS}, in turn)")
    print(f"tangentlens adds {median(added):.2f} of torch's time, {min(added):.2f} to {max(added):.2f} in single pairs")


if __name__ == "__main__":
    main()
