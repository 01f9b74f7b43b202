"""Tasks on a Ray cluster: on this machine, or on one that is running elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tangentlens.engine.task import Ended, Needs, Task, attempt
from tangentlens.errors import InputError, MissingExtra, StorageError

# The address that starts a cluster on this machine, for as long as it is needed.
LOCAL = "local"
# How often a task is begun again whose process or machine has died.
_RETRIES = 5
# Tasks that are handed to the cluster for each one that it can do at once: none waits for the next one to be sent.
_AHEAD = 2
# Seconds after which the number of machines is looked at again.
_LOOK = 5.0


@dataclass(frozen=True)
class OnRay:
    """Does tasks on a Ray cluster. One whose process or machine dies is begun again, elsewhere if need be.

    Attributes:
        address: The address of a cluster, `auto` for one that this machine is part of, or `local` to start one here.
    """

    address: str = LOCAL

    def run(self, tasks: Iterable[Task], ended: Ended) -> None:
        """Do all tasks, as many at once as the cluster has room for.

        Args:
            tasks: The tasks; they are asked for one by one, as there is room.
            ended: Told of each task that has ended.
        """
        with _cluster(self.address) as ray:
            send = ray.remote(max_retries=_RETRIES)(_attempt_there)
            waiting, running, possible = iter(tasks), dict[Any, Task](), set[Needs]()
            while True:
                for task in islice(waiting, max(0, _AHEAD * _room(ray, running.values()) - len(running))):
                    if task.needs not in possible:
                        _check_possible(ray, task.needs)
                        possible.add(task.needs)
                    running[_sent(send, task)] = task
                if not running:
                    return
                ready, _ = ray.wait(list(running), timeout=_LOOK)
                for reference in ready:
                    task = running.pop(reference)
                    ended(task, _outcome(ray, reference))


def _attempt_there(work: Callable[[], None], threads: int) -> str:
    """Do the work of a task in a process of the cluster, which may have done one with another number of cores."""
    import torch

    torch.set_num_threads(threads)
    return attempt(work)


def _sent(send: Any, task: Task) -> Any:
    """Hand a task to the cluster and return the reference to its outcome."""
    needs = task.needs
    memory = {"memory": needs.memory} if needs.memory else {}
    placed = send.options(name=task.key, num_cpus=needs.cpus, num_gpus=needs.gpus, **memory)
    return placed.remote(task.work, max(1, int(needs.cpus)))


def _outcome(ray: Any, reference: Any) -> str:
    """Return why a task failed, or an empty text; what concerns every task is raised."""
    try:
        return str(ray.get(reference))
    except ray.exceptions.RayTaskError as error:
        cause = error.as_instanceof_cause()
        if isinstance(cause, StorageError):
            raise StorageError(str(error.cause)) from error
        raise cause from error
    # Its process or machine died, again and again: memory ran out there, or it brings down whatever does it.
    except ray.exceptions.RayError as error:
        first = next(iter(str(error).splitlines()), "")
        return f"{type(error).__name__} after {_RETRIES} retries: {first}"


def _room(ray: Any, tasks: Iterable[Task]) -> int:
    """Return how many tasks the cluster can do at once, by the least that one of them needs."""
    cores = float(ray.cluster_resources().get("CPU", 0.0))
    least = min((task.needs.cpus for task in tasks), default=1.0)
    return max(1, int(cores / max(least, 0.01)))


def _check_possible(ray: Any, needs: Needs) -> None:
    """Raise if no machine of the cluster has what a task needs: it would wait for ever."""
    wanted = {"CPU": needs.cpus, "GPU": needs.gpus, "memory": needs.memory}
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(has.get(name, 0) >= amount for name, amount in wanted.items()) for has in machines):
        most = {name: max((has.get(name, 0) for has in machines), default=0) for name in wanted}
        there = Needs(most["CPU"], most["GPU"], int(most["memory"]))
        raise InputError(
            f"a machine of the Ray cluster must have what a task needs ({needs}), but none of {len(machines)} has; the "
            f"most there is: {there}; ask for fewer cpus or gpus, or less memory, or add a machine"
        )


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    """Connect to a cluster, and leave it, or end it if it was started here."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(
            "a cluster must have Ray to run on, but it is not installed; pip install 'tangentlens[ray]'"
        ) from error
    if ray.is_initialized():
        # A program that has connected by itself stays connected.
        yield ray
        return
    try:
        ray.init(address=address, include_dashboard=False if address == LOCAL else None, **_quietly())
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(
            f"a Ray cluster must be reachable, but {address!r} is not: {reason}; `ray start --head` begins one, and "
            f"ray={LOCAL} one on this machine alone"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _quietly() -> dict[str, Any]:
    """Return the settings with which Ray prints nothing between the progress of a command."""
    return {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
