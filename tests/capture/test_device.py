"""Runs the tests on a simulated device, in a process of their own: to register a device cannot be undone."""

import subprocess
import sys
from pathlib import Path


def test_on_a_simulated_device():
    file = Path(__file__).parents[1] / "on_simulated_device.py"
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", file], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
