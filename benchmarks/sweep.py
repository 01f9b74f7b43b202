"""What a sweep on a cluster costs, as ratios measured in one run: two workers against one, and the cost of a task.

Everything runs on Ray nodes of this machine. A cluster is simulated by nodes with virtual cores, on which tasks of
known length only wait: they show at how many tasks a second the command itself becomes the limit.
"""

import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import ray
import torch
from ray.cluster_utils import Cluster
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tangentlens.corpora.text import builtin_text
from tangentlens.corpora.tokens import train_tokenizer
from tangentlens.engine import Machines, OnRay, Task
from tangentlens.studies.sweep import SweepPlan, run_sweep

CHECKPOINTS, LAYERS, WIDTH, VOCABULARY = 12, 6, 192, 2048
SMALL = {"object_store_memory": 100 * 2**20}


def checkpoints(folder: Path) -> Path:
    """Random checkpoints of a small decoder, with a tokenizer beside them."""
    text = builtin_text()
    (folder / "text.txt").write_text(text[:200_000], encoding="utf-8")
    tokenizer = Tokenizer.from_str(train_tokenizer(text[:200_000], VOCABULARY).to_str())
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=WIDTH // 32,
        max_position_embeddings=128,
    )
    for step in range(CHECKPOINTS):
        torch.manual_seed(step)
        LlamaForCausalLM(config).save_pretrained(folder / "model" / f"step{step}")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / "model")
    return folder / "model"


def swept(folder: Path, cores: int) -> float:
    """Seconds of a sweep with so many workers, without the start of the cluster and of its processes."""
    plan = SweepPlan((str(folder / "model"),), text=str(folder / "text.txt"), tokens=4096, length=64, device="cpu")
    stamps = []
    ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level="error", **SMALL)
    try:
        with tempfile.TemporaryDirectory() as out:
            run_sweep(
                plan,
                Path(out) / "run",
                lambda progress: stamps.append((progress.done, time.perf_counter())),
                Machines(OnRay()),
            )
    finally:
        ray.shutdown()
    # From the moment at which every worker has done its first checkpoint.
    ends = dict(stamps)
    return (ends[CHECKPOINTS] - ends[cores]) / (CHECKPOINTS - cores)


def waited(nodes: int, cores: int, tasks: int, seconds: float) -> float:
    """Tasks a second on so many nodes with so many virtual cores each, if each task waits for so long."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
    for _ in range(nodes):
        cluster.add_node(num_cpus=cores, **SMALL)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    try:
        run = OnRay().run
        run([Task(f"warm {number}", partial(time.sleep, 1.0)) for number in range(nodes * cores)], lambda *_: None)
        start = time.perf_counter()
        run([Task(str(number), partial(time.sleep, seconds)) for number in range(tasks)], lambda *_: None)
        return tasks / (time.perf_counter() - start)
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoints(Path(folder))
        one, two = (swept(Path(folder), cores) for cores in (1, 2))
        print(f"a sweep over {CHECKPOINTS} checkpoints: two workers are {one / two:.2f} times as fast as one")
    idle = waited(1, 2, 400, 0.0)
    print(f"a task that does nothing: {1000 / idle:.1f} ms")
    nodes, cores = 8, 3
    for seconds, tasks in ((1.0, 480), (0.2, 2000), (0.05, 4000), (0.0, 4000)):
        rate = waited(nodes, cores, tasks, seconds)
        ideal = f"{rate * seconds / (nodes * cores):6.1%} of the ideal" if seconds else ""
        print(
            f"{tasks} tasks of {seconds:g} s on {nodes} nodes of {cores} cores: {rate:7.1f} a second {ideal}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
