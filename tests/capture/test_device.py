"""Runs the tests on a simulated device, in a process of their own: to register a device cannot be undone."""

import subprocess
import sys
from pathlib import Path


def test_on_a_simulated_device():
    file = Path(__file__).parents[1] / "on_simulated_device.py"
    # Types were checked where the same functions ran on the CPU.
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=--import-mode=importlib", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
