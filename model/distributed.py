"""Several processes that train one model together, on PyTorch's own engine.

`torchrun` starts them and tells each its number; every one of them reads the same
batches, takes its share of each, and has the same weights after each step: gradients
are averaged by `torch.nn.parallel.DistributedDataParallel` (Li et al. 2020, "PyTorch
Distributed").
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]


class ProcessLost(ValueError):
    """Another process of the training has ended, and so this one cannot go on."""


@dataclass(frozen=True)
class Processes:
    """Which process this is, of how many; alone, everything here does nothing."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that validates, saves and speaks."""
        return self.rank == 0

    def part(self, rows: Tensor, piece: int, pieces: int) -> Tensor:
        """Return this process's rows of one of the pieces that a batch is cut into.

        A batch's rows are in order of length, so that every n-th of them makes
        parts of about as many tokens.
        """
        return rows[self.rank * pieces + piece :: self.count * pieces]

    def total(self, value: float) -> float:
        """Return the sum of all processes' values."""
        if self.count == 1:
            return value
        found = torch.tensor([value], dtype=torch.float64)
        held = sys.getrefcount(found)
        with lost_process():
            distributed.all_reduce(found)
        # A thread of gloo's lets go of it a moment later, and for that waits for the
        # interpreter: once that is being shut down, the thread would abort the process.
        for _ in range(1_000):
            if sys.getrefcount(found) <= held:
                break
            time.sleep(0.001)
        return float(found)

    def from_first(self, value: float) -> float:
        """Return the first process's value."""
        return self.total(value if self.is_first else 0.0)

    def seed_step(self, seed: int, step: int) -> None:
        """Let this process's part of a step draw what no other draws.

        Alone it does nothing: random numbers go on from step to step.
        """
        if self.count > 1:
            torch.manual_seed(hash((seed, step, self.rank)) % 2**63)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Let the first process go through a block before all others."""
        if not self.is_first:
            self.total(0.0)
        yield
        if self.is_first:
            self.total(0.0)


ALONE = Processes()


def started_as() -> Processes:
    """Return which process `torchrun` has started this one as; without it, `ALONE`."""
    # Some clusters set WORLD_SIZE for a process that torchrun did not start.
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ or count == 1:
        return ALONE
    return Processes(int(os.environ["RANK"]), count)


@contextmanager
def joined_processes(device: str = "cpu") -> Iterator[Processes]:
    """Join the processes that `torchrun` started; without it, give `ALONE`.

    On `cuda` each has a GPU of its own. Raises `ValueError` where it has none, and for
    any other device than `cpu` and `cuda`.
    """
    processes = started_as()
    if processes.count == 1:
        yield processes
        return
    if device not in {"cpu", "cuda"}:
        raise ValueError(
            f"--device {device} is not for several processes: give cpu, or cuda, where "
            "each takes a GPU of its own"
        )
    # Gloo carries what is on the CPU, NCCL the gradients on GPUs.
    backend = "gloo"
    if device == "cuda":
        number, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if number >= gpus:
            fewer = f"torchrun --nproc-per-node {gpus}, or " if gpus else ""
            raise ValueError(
                f"no GPU for process {number + 1} of this machine: start {fewer}"
                "a training with --device cpu"
            )
        torch.cuda.set_device(number)
        backend = "cpu:gloo,cuda:nccl"
    with lost_process():
        distributed.init_process_group(
            backend,
            store=_agent_store(),
            rank=processes.rank,
            world_size=processes.count,
        )
    try:
        yield processes
    finally:
        distributed.destroy_process_group()


def _agent_store() -> Any:
    """Return where processes find each other, where torchrun itself keeps that.

    Its own way does so, too, but after a restart finds the addresses of the processes
    that have died (torch 2.13), and waits for them in vain.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    store = TCPStore(host, port, is_master=False)
    return PrefixStore(f"restart-{restarts}", store)


def is_restart() -> bool:
    """Return whether `torchrun` has started these processes anew after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def lost_process() -> Iterator[None]:
    """Raise `ProcessLost` where the other processes cannot be reached."""
    try:
        yield
    except RuntimeError as error:
        # Gloo and NCCL have no class of their own for this.
        said = str(error).lower()
        if not any(word in said for word in ("gloo", "nccl", "connection", "peer")):
            raise
        raise ProcessLost(
            "another process of this training has ended: see what it said; go on from "
            "the last save with torchrun … train.py --resume, or let torchrun do it "
            "with --max-restarts"
        ) from None
