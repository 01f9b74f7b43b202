"""What each rank runs in the tests: `python ranks.py RANK FOLDER WRAP[-WHAT-STEP] ...`, one training after another."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from loops import PROBE, SETTINGS, batches
from tangentlens import Lens
from tiny import tiny_model


def wrapped(model, how):
    if how == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def resumed(lens, model, folder):
    """The lens of another process that goes on from what the first rank has saved."""
    saved = [lens.state_dict()]
    lens.__exit__(None, None, None)
    dist.broadcast_object_list(saved)
    lens = Lens(model, run=f"{folder}/run", moments_every=1, step=lens.current, probe=PROBE, **SETTINGS)
    lens.load_state_dict(saved[0])
    return lens.__enter__()


def train(rank, folder, lens_on, how, happens="", at=-1):
    model = wrapped(tiny_model(), how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Sharded matrices are refused.
    settings = (SETTINGS if how == "ddp" else SETTINGS | {"updates": ()}) | {"probe": PROBE}
    lens = Lens(model, run=f"{folder}/run", moments_every=1, **settings).__enter__() if lens_on else None
    losses = []
    for step, batch in enumerate(batches()):
        now = happens if step == int(at) else ""
        if now == "dies" and rank == 1 and lens is not None:
            os._exit(1)
        if now == "resumes" and lens is not None:
            lens = resumed(lens, model, folder)
        blocks = model.module.model.layers if how == "ddp" else None
        if now == "drops" and rank == 1:
            model.module.model.layers = blocks[:1]
        half = {name: tokens.chunk(2)[rank] for name, tokens in batch.items()}
        loss = model(**half).loss
        overflows = happens == "overflows" and step <= int(at)
        (loss * torch.inf if overflows and rank == 1 else loss).backward()
        if now == "drops":
            model.module.model.layers = blocks
        if not overflows:
            optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if lens is not None:
            lens.skip("tried") if now == "skips" else lens.step(loss)
    if lens is not None:
        lens.__exit__(None, None, None)
    return losses


def main():
    rank, folder, *trainings = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=int(rank), world_size=2)
    for training in trainings:
        alone, watched = (train(int(rank), f"{folder}/{training}", on, *training.split("-")) for on in (False, True))
        sys.stdout.write(f"{training} {alone == watched}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
