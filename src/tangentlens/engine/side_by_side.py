"""A few computations at once in this process, each with threads of its own."""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

from tangentlens.geometry.precision import full_precision

# The most parts at once: each of them holds its rows in several copies.
_MOST = 4


def at_once(device: torch.device) -> int:
    """Return how many parts `side_by_side` does at once on a device: on a GPU, one."""
    return min(torch.get_num_threads(), _MOST) if device.type == "cpu" else 1


def side_by_side(works: Iterable[Sequence[Callable[[], Any]]], device: torch.device) -> Iterator[list[Any]]:
    """Do works that consist of parts, and yield the results of the parts of each; on the CPU, a few parts at once.

    What is measured at a site is mostly made of operations that are too small for several threads, which then wait for
    each other. Parts with a thread each do not wait. Threads of the caller, and those of anybody else, stay as many as
    they are.

    Args:
        works: The parts of each work, which need nothing of each other. A work is taken when there is room for it, or
            will soon be.
        device: Where they compute. On a GPU they are done one after the other, as one of them keeps it busy.

    >>> list(side_by_side([[lambda: 1, lambda: 2], [lambda: 3]], torch.device("cpu")))
    [[1, 2], [3]]
    """
    # A generator that is left before its end leaves the context, too.
    with full_precision():
        yield from _side_by_side(works, at_once(device))


def _side_by_side(works: Iterable[Sequence[Callable[[], Any]]], workers: int) -> Iterator[list[Any]]:
    if workers == 1:
        yield from ([part() for part in work] for work in works)
        return
    with_grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def done(part: Callable[[], Any]) -> Any:
        # A new thread begins with these modes at their defaults.
        with torch.inference_mode(inference), torch.set_grad_enabled(with_grad):
            return part()

    pool = ThreadPoolExecutor(workers, "tangentlens", _use_threads, (max(1, torch.get_num_threads() // workers),))
    begun: deque[list[Future[Any]]] = deque()
    try:
        for work in works:
            begun.append([pool.submit(done, part) for part in work])
            while len(left := [part for parts in begun for part in parts if not part.done()]) > workers:
                wait(left, return_when=FIRST_COMPLETED)
            while begun and all(part.done() for part in begun[0]):
                yield [part.result() for part in begun.popleft()]
        while begun:
            yield [part.result() for part in begun.popleft()]
    finally:
        # After an error or Ctrl-C, parts that have begun come to their end, because they may be writing.
        pool.shutdown(cancel_futures=True)


def _use_threads(count: int) -> None:
    """Let operations of this thread, and of no other, use `count` threads.

    `torch.set_num_threads` would also set what threads to come begin with, those of a user's training among them.
    """
    # PyTorch sets the number itself when it is first asked in a thread.
    torch.get_num_threads()
    _libraries().limit(limits=count, user_api="openmp")
    _set_threads_of_mkl()(count)


@cache
def _libraries() -> ThreadpoolController:
    """Return the libraries of this process that have threads, which takes some time to find out."""
    return ThreadpoolController()


@cache
def _set_threads_of_mkl() -> Callable[[int], Any]:
    """Return what sets how many threads the products of one thread use, where PyTorch's products are MKL's.

    Once anybody has called `torch.set_num_threads`, MKL has a number of its own in every thread.
    """
    for library in (Path(torch.__file__).parent / "lib").glob("*torch_cpu*"):
        with contextlib.suppress(OSError, AttributeError):
            return ctypes.CDLL(str(library)).MKL_Set_Num_Threads_Local
    return lambda count: None
