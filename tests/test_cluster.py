"""What starts a sweep on a cluster: the script for Slurm, on one machine, and the manifest for Kubernetes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import tangentlens as tl
from tangentlens.cli import app
from tiny import save_tiny

ROOT = Path(__file__).parents[1]
SCRIPT, MANIFEST = ROOT / "docs" / "cluster" / "slurm.sh", ROOT / "docs" / "cluster" / "rayjob.yaml"


def options(words):
    """The options of the command `sweep` that appear in a command line."""
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def test_the_manifest_is_a_ray_job_whose_command_exists():
    job = yaml.safe_load(MANIFEST.read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    words = job["spec"]["entrypoint"].split()
    assert words[:2] == ["tangentlens", "sweep"]
    known = {name for one in _sweep().params for name in one.opts}
    assert options(words) <= known
    groups = [job["spec"]["rayClusterSpec"]["headGroupSpec"], *job["spec"]["rayClusterSpec"]["workerGroupSpecs"]]
    for group in groups:
        spec = group["template"]["spec"]
        mounted = {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}


def _sweep():
    import typer.main

    return typer.main.get_command(app).commands["sweep"]


def test_the_script_is_one_that_bash_can_read():
    assert subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True).returncode == 0


@pytest.mark.calibration
def test_the_script_runs_a_sweep_where_slurm_is_stood_in_for(tmp_path):
    """Both nodes of the job are this machine; the second one joins the cluster as a node of its own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    stand_ins = {
        "scontrol": 'printf "one\\ntwo\\n"',
        # Drops the options of srun and runs the rest.
        "srun": 'while [[ "$1" == --* ]]; do shift; done\n[ "$1" = hostname ] && echo 127.0.0.1 || exec "$@"',
    }
    for name, body in stand_ins.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (programs / name).chmod(0o755)
    for step in (1, 2):
        save_tiny(tmp_path / "model" / f"step{step}", seed=step)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "one,two",
        "SLURM_CPUS_PER_TASK": "1",
        "RAY_PORT": "6391",
    }
    small = ["--sites=resid.1", "--controls=random", "--rank=4", "--tokens=256", "--length=16", "--quiet"]
    command = ["bash", str(SCRIPT), "sweep", str(tmp_path / "model"), *small, "--out", str(tmp_path / "run")]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        assert sorted(tl.open_run(tmp_path / "run").records["step"].unique()) == [1, 2]
    finally:
        subprocess.run([shutil.which("ray", path=environment["PATH"]) or "ray", "stop", "--force"], capture_output=True)
