"""What each rank of a distributed training runs in the tests: `python ranks.py RANK FOLDER WRAP [dies|skips STEP]`."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from loops import SETTINGS, batches
from tangentlens import Lens
from tiny import tiny_model


def wrapped(model, how):
    if how == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    rank, folder, how, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=int(rank), world_size=2)
    losses = []
    for run in (None, f"{folder}/run"):
        model = wrapped(tiny_model(), how)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lens = None if run is None else Lens(model, run=run, moments_every=1, **SETTINGS).__enter__()
        losses.append([])
        for step, batch in enumerate(batches()):
            happens = lens is not None and rest[1:] == [str(step)] and rest[0]
            if happens == "dies" and rank == "1":
                os._exit(1)
            half = {name: tokens.chunk(2)[int(rank)] for name, tokens in batch.items()}
            loss = model(**half).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
            if happens == "skips":
                lens.skip("tried")
            elif lens is not None:
                lens.step(loss)
        if lens is not None:
            lens.__exit__(None, None, None)
    sys.stdout.write(str(losses[0] == losses[1]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
