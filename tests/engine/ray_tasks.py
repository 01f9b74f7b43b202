"""Tasks for a cluster, in a module that its processes can import."""

import os
import signal
import time
from pathlib import Path

from tangentlens.errors import InputError, StorageError


def attempted(folder, name):
    """Note an attempt, and return how many there were."""
    path = Path(folder) / f"{name}.attempts"
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")
    return len(path.read_text().split())


def write(folder, name):
    """Note an attempt, and write the result."""
    attempted(folder, name)
    (Path(folder) / f"{name}.result").write_text(name)


def write_when_allowed(folder, name):
    """Note an attempt, and write the result as soon as there is a file `go`."""
    attempted(folder, name)
    deadline = time.monotonic() + 60
    while not (Path(folder) / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    (Path(folder) / f"{name}.result").write_text(name)


def write_threads(folder, name):
    """Write how many threads PyTorch would use."""
    import torch

    (Path(folder) / f"{name}.result").write_text(str(torch.get_num_threads()))


def die_once(folder, name):
    """Kill the own process at the first attempt, as the system does if memory runs out."""
    if attempted(folder, name) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    (Path(folder) / f"{name}.result").write_text(name)


def fail(reason):
    raise InputError(reason)


def full():
    raise StorageError("could not write: no space left on device")
