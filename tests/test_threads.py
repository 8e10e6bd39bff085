"""Threads that share out what is asked: their processors, their order, their end."""

import os
import signal
import time
from threading import Barrier, Event, Thread, current_thread
from typing import Any

import pytest
import torch

from model import threads
from model.threads import compute_apart


@pytest.mark.usefixtures("two_threads")
def test_each_thread_computes_on_one_processor() -> None:
    both = Barrier(2)

    def compute(number: int) -> tuple[int, int, str]:
        both.wait(10)
        return number, torch.get_num_threads(), current_thread().name

    for _ in range(2):
        found = compute_apart(compute, [5, 6, 7, 8], 2, Event())
        assert [one[:2] for one in found] == [(n, 1) for n in (5, 6, 7, 8)]
        assert len({name for *_, name in found}) == 2
    seen: list[int] = []  # by a thread that nobody told
    other = Thread(target=lambda: seen.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert seen == [torch.get_num_threads()] == [2]


@pytest.mark.usefixtures("two_threads")
def test_a_single_thread_is_the_callers_own() -> None:
    def compute(_: int) -> tuple[int, str]:
        return torch.get_num_threads(), current_thread().name

    assert (
        compute_apart(compute, [1, 2], 1, Event()) == [(2, current_thread().name)] * 2
    )


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("failing", [0, 1])
def test_one_that_fails_stops_the_others_and_waits_for_them(failing: int) -> None:
    stop, both = Event(), Barrier(2)
    ended: list[int] = []

    def compute(number: int) -> None:
        if number < 2:
            both.wait(10)
        if number == failing:
            raise ValueError("no")
        assert number > 1 or stop.wait(10)
        time.sleep(0.01)
        ended.append(number)

    with pytest.raises(ValueError, match="no"):
        compute_apart(compute, range(1_000), 2, stop)
    count = len(ended)
    assert 1 - failing in ended and count < 500  # most were never begun
    assert torch.get_num_threads() == 2
    time.sleep(0.05)
    assert len(ended) == count


@pytest.mark.usefixtures("two_threads")
def test_after_ctrl_c_all_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, begun = Event(), Barrier(3)
    ended: list[int] = []

    def compute(number: int) -> None:
        begun.wait(10)
        assert stop.wait(10)
        ended.append(number)

    original = threads.wait

    def wait(running: Any, **more: Any) -> None:
        monkeypatch.setattr(threads, "wait", original)
        begun.wait(10)
        signal.raise_signal(signal.SIGINT)  # while the main thread waits
        original(running, **more)

    monkeypatch.setattr(threads, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        compute_apart(compute, [0, 1], 2, stop)
    assert sorted(ended) == [0, 1]
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_threads_of_its_own() -> None:
    assert compute_apart(str, [1, 2], 2, Event()) == ["1", "2"]
    if not (child := os.fork()):
        code = 1
        try:
            code = int(compute_apart(str, [1, 2], 2, Event()) != ["1", "2"])
        finally:
            os._exit(code)
    for _ in range(200):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.05)
    else:
        os.kill(child, 9)
    assert (pid, status) == (child, 0)
