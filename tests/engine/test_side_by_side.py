"""Parts that are done at once give what they give one by one, and nothing of the caller's process changes."""

import subprocess
import sys
import threading
from functools import partial

import pytest
import torch

from tangentlens.engine import side_by_side as module
from tangentlens.engine.side_by_side import at_once, side_by_side
from tangentlens.lazy import cached_property

CPU = torch.device("cpu")


@pytest.fixture
def three_at_once(monkeypatch):
    """Three parts at once, each with one thread, as all of the tests have."""
    monkeypatch.setattr(module, "at_once", lambda device: 3 if device.type == "cpu" else 1)


def test_results_come_in_the_order_of_works_and_of_their_parts(three_at_once):
    last = threading.Event()
    # The first part of all ends last.
    first = [lambda: last.wait(30) and "a", lambda: "b"]
    works = [first, [lambda: "c"], [], [lambda: last.set() or "d", lambda: "e"]]
    assert list(side_by_side(works, CPU)) == [["a", "b"], ["c"], [], ["d", "e"]]


def test_works_are_taken_when_there_is_room(three_at_once):
    taken, going, free = [], threading.Semaphore(0), threading.Semaphore(0)

    def part():
        going.release()
        assert free.acquire(timeout=30)

    def works():
        for number in range(20):
            taken.append(number)
            yield [part, part]

    results = threading.Thread(target=lambda: list(side_by_side(works(), CPU)))
    results.start()
    for _ in range(3):
        assert going.acquire(timeout=30)
    # Three parts are being done, and one waits for whichever ends first.
    assert len(taken) == 2
    for _ in range(40):
        free.release()
    results.join(timeout=30)
    assert len(taken) == 20


def test_an_error_is_raised_after_what_had_begun_has_ended(three_at_once):
    ended, began = [], threading.Event()

    def slow():
        began.set()
        threading.Event().wait(0.2)
        ended.append("slow")

    def fails():
        assert began.wait(30)
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        list(side_by_side([[fails], [slow], *([partial(ended.append, "late")] for _ in range(20))], CPU))
    assert "slow" in ended
    assert len(ended) < 21


def test_gradients_are_off_where_they_are_off_for_the_caller(three_at_once):
    def modes():
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    for caller in (torch.no_grad(), torch.enable_grad(), torch.inference_mode()):
        with caller:
            assert list(side_by_side([[modes]], CPU)) == [[modes()]]


def test_a_gpu_does_one_after_the_other_in_the_thread_of_the_caller(three_at_once):
    there = list(side_by_side([[threading.get_ident], [threading.get_ident]], torch.device("cuda")))
    assert there == [[threading.get_ident()]] * 2


def test_at_most_four_at_once_however_many_threads(monkeypatch):
    for threads, expected in ((1, 1), (2, 2), (3, 3), (64, 4)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert at_once(CPU) == expected
        assert at_once(torch.device("cuda")) == 1


# In processes of their own, because the number of threads belongs to a process.
THREADS = """
import threading, time, torch
from tangentlens.engine.side_by_side import side_by_side

x = torch.randn(1024, 1024)

def inside():
    own, all_of_them = time.thread_time(), time.process_time()
    for _ in range(4):
        x @ x
    # All time of the process is that of this thread if products use no other.
    return torch.get_num_threads(), (time.thread_time() - own) / (time.process_time() - all_of_them) > 0.8

def elsewhere():
    found = []
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    return found[0]

SET
((found,),) = side_by_side([[inside]], torch.device("cpu"))
print(*found, torch.get_num_threads(), elsewhere())
"""


@pytest.mark.parametrize("before", ["", "torch.set_num_threads(2)"])
def test_only_the_threads_that_work_have_fewer(before):
    code = THREADS.replace("SET", before)
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={"OMP_NUM_THREADS": "2", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["1", "True", "2", "2"]


def test_a_property_is_computed_for_two_objects_at_once():
    both = threading.Barrier(2, timeout=30)

    class Slow:
        @cached_property
        def number(self):
            both.wait()
            return 1

    objects, found = [Slow(), Slow()], []
    threads = [threading.Thread(target=lambda one=one: found.append(one.number)) for one in objects]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1, 1]
    # Not computed again: nobody else is at the barrier.
    assert [one.number for one in objects] == [1, 1]
    assert isinstance(Slow.number, cached_property)
