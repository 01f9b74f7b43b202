"""Sweeps on Ray nodes of this machine: the same numbers, whatever is killed in the middle."""

import random
import signal
import subprocess
import sys
import time

import pytest

import tangentlens as tl
from checkpoints import SETTINGS, assert_same, sweep_plan
from tangentlens.engine import Machines, OnRay
from tangentlens.studies import STUDIES
from tangentlens.studies.study import Inputs
from tangentlens.studies.sweep import run_sweep

ray = pytest.importorskip("ray")
# Ray leaves sockets and files open in a process that it was started from.
pytestmark = pytest.mark.filterwarnings("ignore")


def sweep_command(trained, out, *options):
    settings = [
        f"--{name}={','.join(value) if isinstance(value, tuple) else value}" for name, value in SETTINGS.items()
    ]
    text = ["--text", str(trained.parent / "text.txt")]
    return [
        sys.executable,
        "-c",
        "from tangentlens.cli import main; main()",
        "sweep",
        str(trained),
        *settings,
        *text,
        "--out",
        str(out),
        *options,
    ]


@pytest.mark.calibration
def test_it_gives_the_numbers_of_a_sweep_in_one_process(trained, swept, tmp_path):
    run = run_sweep(sweep_plan(trained), tmp_path / "sweep", machines=Machines(OnRay(), site_groups=2))
    assert_same(run.records, swept.records)


def killed_when(command, out, parts, how):
    """Start a sweep, wait until so many parts are written, and call `how` with the process."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if out.exists() and len(list((out / "records").glob("[!.]*.parquet"))) >= parts:
            break
        time.sleep(0.02)
    how(process)
    return process.wait(timeout=120)


@pytest.mark.calibration
def test_a_killed_command_is_continued_without_a_cluster(trained, swept, tmp_path):
    out = tmp_path / "sweep"
    code = killed_when(sweep_command(trained, out, "--ray", "--quiet"), out, 1, lambda process: process.kill())
    assert code == -signal.SIGKILL
    # What tells the story of an unfinished sweep can be read.
    assert tl.open_run(out).records.height
    run = run_sweep(sweep_plan(trained), out)
    assert_same(run.records, swept.records)


@pytest.mark.calibration
def test_commands_that_are_killed_at_random_lose_and_double_nothing(trained, swept, tmp_path):
    out, chance = tmp_path / "sweep", random.Random(0)
    for more in (0, 1, 0, 2, 1):

        def kill_soon(process):
            time.sleep(chance.uniform(0, 2))
            process.kill()

        # A command needs some time to begin, and is killed only once it has come further than the one before.
        parts = len(list((out / "records").glob("[!.]*.parquet"))) + more
        groups = f"--site-groups={1 + more}"
        killed_when(sweep_command(trained, out, groups, "--ray", "--quiet"), out, parts, kill_soon)
    run = run_sweep(sweep_plan(trained), out)
    assert_same(run.records, swept.records)


@pytest.mark.calibration
def test_a_head_that_goes_away_ends_the_command_and_the_sweep_continues(trained, swept, tmp_path):
    from ray.cluster_utils import Cluster

    out = tmp_path / "sweep"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    command = sweep_command(trained, out, "--ray", cluster.address, "--quiet")
    code = killed_when(command, out, 1, lambda process: cluster.head_node.kill_all_processes())
    assert code != 0
    run = run_sweep(sweep_plan(trained), out)
    assert_same(run.records, swept.records)


@pytest.mark.calibration
def test_a_study_on_a_cluster_gives_the_numbers_of_one_process(tmp_path):
    study = STUDIES["demo"]
    (whole,) = study.run("smoke", Inputs(tmp_path / "whole"))
    (apart,) = study.run("smoke", Inputs(tmp_path / "apart"), machines=Machines(OnRay()))
    assert_same(apart.records, whole.records)
