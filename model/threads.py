"""Threads that each compute some of what is asked, on a processor of their own."""

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from threading import Event
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def compute_apart(
    compute: Callable[[T], R], asked: Sequence[T], threads: int, stop: Event
) -> list[R]:
    """Return what compute returns for each one asked, by several threads on a CPU.

    Where operations are small, as those of a search, processors that wait for each
    other after every one take longer than each does over work of its own. Ends once all
    threads have: `stop` is set where one fails, which is then raised, and after a
    Ctrl-C. There are as many as processors, or as asked for where these are more; a
    single one is the caller's own, with all processors.
    """
    if threads == 1:
        return [compute(one) for one in asked]
    usual = torch.get_num_threads()
    running: list[Future[R]] = []
    try:
        for one in asked:
            running.append(_pool(max(threads, usual)).submit(compute, one))
        wait(running, return_when=FIRST_EXCEPTION)
        stop.set()
        return [found.result() for found in running]
    finally:
        stop.set()
        for future in running:
            future.cancel()
        wait(running)
        torch.set_num_threads(usual)  # what a thread has set is everyone's


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, initializer=_compute_alone)


def _compute_alone() -> None:
    """Let this thread's operations use no other."""
    torch.set_num_threads(1)
    torch.get_num_threads()  # else its first operation would ask for the usual number


if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
