"""Tasks on real Ray nodes, all on this machine: what dies is begun again, what fails is named, nothing is lost."""

import time
from functools import partial
from pathlib import Path

import pytest
import ray_tasks

from tangentlens.engine import Needs, OnRay, Task
from tangentlens.errors import InputError, StorageError

ray = pytest.importorskip("ray")
# Ray leaves sockets and files open in a process that it was started from.
pytestmark = pytest.mark.filterwarnings("ignore")
SMALL = {"object_store_memory": 100 * 2**20}


@pytest.fixture(scope="module")
def cluster():
    """A head without cores and a machine with two."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
    made.add_node(num_cpus=2, **SMALL)
    # Processes of the cluster must find the module of the tasks.
    paths = {"PYTHONPATH": str(Path(__file__).parent)}
    ray.init(address=made.address, runtime_env={"env_vars": paths}, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def outcomes(tasks, seen=None):
    ended = {} if seen is None else seen
    OnRay().run(tasks, lambda task, failure: ended.update({task.key: failure}))
    return ended


def names(folder, ending):
    return sorted(path.stem for path in folder.glob(f"*.{ending}"))


def test_every_task_is_done_once_and_few_are_asked_for_ahead(cluster, tmp_path):
    asked, ended = [], {}

    def tasks():
        for number in range(12):
            asked.append(len(asked) - len(ended))
            yield Task(str(number), partial(ray_tasks.write, str(tmp_path), str(number)))

    outcomes(tasks(), ended)
    assert ended == {str(number): "" for number in range(12)}
    assert names(tmp_path, "result") == sorted(ended)
    assert all(len(path.read_text().split()) == 1 for path in tmp_path.glob("*.attempts"))
    # Two cores, and two tasks for each that are sent ahead.
    assert max(asked) <= 4


def test_a_process_that_is_killed_is_replaced_and_a_failure_is_named(cluster, tmp_path):
    ended = outcomes(
        [
            Task("dies", partial(ray_tasks.die_once, str(tmp_path), "dies")),
            Task("fails", partial(ray_tasks.fail, "weights must\nbe finite")),
            Task("works", partial(ray_tasks.write, str(tmp_path), "works")),
        ]
    )
    assert ended == {"dies": "", "fails": "weights must be finite", "works": ""}
    assert names(tmp_path, "result") == ["dies", "works"]


def test_a_task_has_as_many_threads_as_cores(cluster, tmp_path):
    tasks = [Task(str(n), partial(ray_tasks.write_threads, str(tmp_path), str(n)), Needs(cpus=n)) for n in (1, 2)]
    assert outcomes(tasks) == {"1": "", "2": ""}
    assert [(tmp_path / f"{n}.result").read_text() for n in (1, 2)] == ["1", "2"]


def test_a_full_disk_ends_everything(cluster):
    with pytest.raises(StorageError, match="no space left"):
        outcomes([Task("full", ray_tasks.full)])


def test_what_no_machine_has_is_told_and_not_waited_for(cluster):
    with pytest.raises(InputError, match=r"a task needs \(1 cores, 8 GPUs\), but none of 2 has; the most there is: 2"):
        outcomes([Task("large", ray_tasks.full, Needs(gpus=8))])


@pytest.mark.calibration
def test_a_machine_that_dies_takes_nothing_with_it(cluster, tmp_path):
    """The tasks of a machine that is killed in the middle are done by another."""
    doomed = cluster.add_node(num_cpus=2, **SMALL)
    cluster.wait_for_nodes()
    ended = {}

    def tasks():
        for number in range(8):
            if number == 4:
                # Both machines are at work, each with two tasks.
                deadline = time.monotonic() + 60
                while len(names(tmp_path, "attempts")) < 4 and time.monotonic() < deadline:
                    time.sleep(0.1)
                cluster.remove_node(doomed, allow_graceful=False)
                # Its processes notice it soon, unlike those of a machine without power.
                time.sleep(3)
                (tmp_path / "go").touch()
            work = ray_tasks.write_when_allowed if number < 4 else ray_tasks.write
            yield Task(str(number), partial(work, str(tmp_path), str(number)))

    outcomes(tasks(), ended)
    assert ended == {str(number): "" for number in range(8)}
    assert names(tmp_path, "result") == sorted(ended)
    attempts = sum(len(path.read_text().split()) for path in tmp_path.glob("*.attempts"))
    assert attempts > 8, "the machine must have been at work when it died"
