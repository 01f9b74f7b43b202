"""How benchmarks take time: the least of several rounds, all actions in turn, so that a disturbance hits all alike."""

import time
from collections.abc import Callable


def best(actions: dict[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """Seconds of each action."""
    times = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            times[name] = min(times[name], time.perf_counter() - start)
    return times
