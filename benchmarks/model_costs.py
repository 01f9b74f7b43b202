"""What `test` and `audit` cost, as multiples of the bare forward and backward pass of the same tokens.

`model_costs.py [MODEL]`. The bare pass is what a user would run: the whole model with the gradients of all weights, on
the same batches of windows. `test` looks at four sites spread over depth. `audit` looks at the site half-way, which is
its default, and the next. Both are timed as they report their progress. Of several rounds, in which each has its turn,
the fastest counts.

`model_costs.py memory WHAT FOLDER` does one of the three on a random network of width 2,048 with two blocks and prints
the peak of resident memory in GiB; the rest calls it, each in a process of its own. `model_costs.py memory` does
only that part.
"""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoConfig

from profiles import SMOLLM2, random_model
from tangentlens.capture.sites import find_sites
from tangentlens.runs.progress import Progress, Watch, unwatched
from tangentlens.studies.audit import AuditPlan, run_audit
from tangentlens.studies.subjects import Backward, Subject, model_subject
from tangentlens.studies.tangent import TestPlan, run_test

ROUNDS = 2
WIDTH = 2048


def subject_of(model: str) -> Subject:
    """The model with the batches of windows that `test` and `audit` run it on."""
    return model_subject(model, Backward.of(TestPlan(model, device="cpu")), unwatched)


def bare(subject: Subject) -> float:
    """Seconds of the forward and backward passes of all batches."""
    start = time.perf_counter()
    for batch in subject.batches:
        subject.model(**batch).loss.backward()
        subject.model.zero_grad(set_to_none=True)
    return time.perf_counter() - start


def tested(model: str) -> tuple[float, float]:
    """Seconds of the gradients of `test` and of one site."""
    return _parts(lambda out, watch: run_test(TestPlan(model, sites="resid:4", device="cpu"), out, watch))


def audited(model: str) -> tuple[float, float]:
    """Seconds of the gradients of `audit`, the model's and those of its two nulls, and of one site."""
    half = AutoConfig.from_pretrained(model).num_hidden_layers // 2
    plan = AuditPlan(model, sites=(f"resid.{half}", f"resid.{half + 1}"), device="cpu")
    return _parts(lambda out, watch: run_audit(plan, out, watch))


def _parts(run: Callable[[Path, Watch], object]) -> tuple[float, float]:
    """Seconds until the first site can be measured, and of a site: the mean over all but the first."""
    # The first time that so many sites were done.
    stamps: dict[int, float] = {}

    def watch(progress: Progress) -> None:
        stamps.setdefault(progress.done, time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder) / "run", watch)
    last = max(stamps)
    site = (stamps[last] - stamps[1]) / (last - 1)
    return stamps[1] - stamps[0] - site, site


def compare(model: str) -> None:
    subject = subject_of(model)
    n_sites = len(find_sites(subject.model, "resid"))
    rounds = [(bare(subject), *tested(model), *audited(model)) for _ in range(ROUNDS)]
    alone, test_passes, test_site, audit_passes, audit_site = map(min, zip(*rounds, strict=True))
    print(f"{Path(model).name}, {torch.get_num_threads()} threads; the bare pass takes {alone:.1f} s")
    print(f"{'':8} gradients   a site   in all")
    print(_row("test", f"{n_sites} sites", alone, test_passes, test_site, n_sites))
    print(_row("audit", "1 site", alone, audit_passes, audit_site, 1), flush=True)


def _row(name: str, sites: str, alone: float, passes: float, site: float, count: int) -> str:
    return f"{name:8} {passes / alone:9.2f} {site / alone:8.3f} {(passes + count * site) / alone:8.2f} ({sites})"


def print_memory(what: str, model: str) -> None:
    """Print the peak of resident memory of one of the three, in GiB."""
    if what == "bare":
        bare(subject_of(model))
    else:
        {"test": tested, "audit": audited}[what](model)
    print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 2**20)


def compare_memory() -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = random_model(folder, WIDTH, layers=2)
        peaks = {}
        for what in ("bare", "test", "audit"):
            command = [sys.executable, __file__, "memory", what, model]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            peaks[what] = float(told.split()[-1])
            print(
                f"width {WIDTH:,}, peak memory, {what:6} {peaks[what]:.2f} GiB, {peaks[what] - peaks['bare']:+.2f}",
                flush=True,
            )


def main() -> None:
    if sys.argv[1:2] == ["memory"]:
        print_memory(*sys.argv[2:]) if sys.argv[2:] else compare_memory()
        return
    model = sys.argv[1] if len(sys.argv) > 1 else str(SMOLLM2)
    if not Path(model).exists():
        sys.exit(f"{model} is not there; `make smollm2` makes the one that this benchmark is about")
    compare(model)
    compare_memory()


if __name__ == "__main__":
    main()
