"""A writer is killed at random moments; whatever it had said was written must be there, whole, once."""

import multiprocessing
import random
import signal
import time

import crash_writer
from tangentlens import open_run
from tangentlens.runs.records import KEY


def check(path, acknowledged):
    records = open_run(path).records
    by_step = {step: rows for (step,), rows in records.group_by("step")}
    assert acknowledged <= set(by_step), "a part that was acknowledged is gone"
    for step, rows in by_step.items():
        assert sorted(rows["value"]) == [step + i / 100 for i in range(crash_writer.ROWS)], "a part is not whole"
    assert not records.select(KEY).is_duplicated().any()
    return set(by_step)


def test_kill_at_random_moments(tmp_path):
    # Writers are forked from a server that has imported everything and started nothing.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tangentlens.runs.run"])
    clock = random.Random(0)
    kills = 0
    for attempt in range(2):
        path = str(tmp_path / f"run-{attempt}")
        acknowledged, seen = set(), set()
        while len(seen) < crash_writer.PARTS:
            ours, theirs = context.Pipe(duplex=False)
            writer = context.Process(target=crash_writer.write, args=(path, theirs))
            writer.start()
            theirs.close()
            assert ours.recv() == "ready"
            time.sleep(clock.uniform(0, 0.04))
            writer.kill()
            writer.join()
            kills += writer.exitcode == -signal.SIGKILL
            acknowledged |= drain(ours)
            seen = check(path, acknowledged)
    assert kills >= 10, f"only {kills} writers were killed in the middle; shorten the sleep"


def test_processes_that_describe_one_run_lose_nothing_of_each_other(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tangentlens.runs.run"])
    path = str(tmp_path / "run")
    writers = [context.Process(target=crash_writer.describe, args=(path, name)) for name in ("one", "two", "three")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    known = open_run(path).manifest["models"]
    assert len(known) == 3 * crash_writer.FACTS


def drain(pipe):
    said = set()
    try:
        while True:
            said.add(pipe.recv())
    except EOFError:
        return said
    finally:
        pipe.close()
