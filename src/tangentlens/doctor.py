"""Checks of the machine: what would not work here, and why."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tangentlens.models.device import find_device

_REQUIRED = ("tangentlens", "torch", "transformers", "tokenizers", "safetensors", "polars", "plotly", "scipy", "numpy")
_LEAST_FREE = 200 * 2**20


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: What was checked.
        ok: Whether tangentlens will work with it.
        found: What was found and, if it is not ok, what to do.
    """

    name: str
    ok: bool
    found: str


def examine() -> list[Check]:
    """Return the results of all checks, in a fixed order."""
    machine = [_threads(), _device(), _disk(), _working_folder(), _arithmetic(), _short_format()]
    return [_python(), *map(_package, _REQUIRED), *machine]


def _python() -> Check:
    """Check the version of Python."""
    return Check("python", sys.version_info >= (3, 11), f"{platform.python_version()} on {platform.platform()}")


def _package(name: str) -> Check:
    """Check that a package is installed."""
    try:
        return Check(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(name, False, "missing; reinstall tangentlens with its dependencies")


def _threads() -> Check:
    """Check that PyTorch uses no more threads than there are cores."""
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    hint = "" if threads <= cores else "; more threads than cores are slow, unset OMP_NUM_THREADS"
    return Check("threads", threads <= cores, f"{threads} on {cores} cores{hint}")


def _device() -> Check:
    """Name the device that `--device auto` is."""
    device = find_device()
    if device.type == "cpu":
        return Check("device", True, "CPU (PyTorch sees no accelerator)")
    name = getattr(torch.get_device_module(device), "get_device_name", str)(device)
    return Check("device", True, f"{device}, {name}")


def _disk() -> Check:
    """Check that there is room on disk for a run and its report."""
    free = shutil.disk_usage(Path.cwd()).free
    hint = "" if free >= _LEAST_FREE else "; make room, a run and its report need about 200 MB"
    return Check("disk", free >= _LEAST_FREE, f"{free / 2**30:.1f} GiB free here{hint}")


def _working_folder() -> Check:
    """Check that the working directory can be written to."""

    def write() -> None:
        with tempfile.TemporaryFile(dir=Path.cwd()):
            pass

    return _tried("folder", write, "this folder can be written to", "write elsewhere with --out")


def _arithmetic() -> Check:
    """Check that PyTorch computes the eigenvalues of a simple matrix correctly."""

    def decompose() -> None:
        matrix = torch.eye(8, dtype=torch.float64)
        if not torch.allclose(torch.linalg.eigvalsh(matrix @ matrix), torch.ones(8, dtype=torch.float64)):
            raise RuntimeError("eigenvalues of the identity are not 1")

    return _tried("linear algebra", decompose, "float64 eigenvalues are correct", "reinstall PyTorch")


def _short_format() -> Check:
    """Check that PyTorch multiplies in bfloat16 on the CPU, in a process of its own: a failure may end it."""

    def multiply() -> None:
        program = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode
        if ended:
            raise RuntimeError(f"a product in bfloat16 ends the process with code {ended}")

    # Some virtual machines announce instructions (AMX) that they do not have.
    hint = "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment, or use float32 only"
    return _tried("bfloat16", multiply, "products in bfloat16 work on the CPU", hint)


def _tried(name: str, action: Callable[[], None], found: str, hint: str) -> Check:
    """Return a check that is ok if the action raises no error; `hint` says what to do otherwise."""
    try:
        action()
    except (OSError, RuntimeError) as error:
        return Check(name, False, f"{error}; {hint}")
    return Check(name, True, found)
