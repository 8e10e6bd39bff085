"""Starts and memory of a training on a corpus of a million pairs.

    python -m benchmarks.large_corpus

The corpus is made of the starter corpus's sentences, two to a pair, and is deleted
afterwards, with all that was prepared of it. The bars are 1,500 MB (of 10^6 bytes) for
each process and 10 s for the second start. Exits with 1 above them. Linux only: there
the system counts what each process has used.
"""

import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from data.starter.compose import compose
from model.command import parse, run

MOST_MEGABYTES, MOST_SECONDS = 1_500, 10.0


@dataclass(frozen=True)
class Arguments:
    """Measure a training on a large corpus."""

    pairs: int = 1_000_000
    """How many pairs the corpus has, all different."""
    steps: int = 600
    """How long the first training goes on; the second takes ten steps."""


@dataclass
class Usage:
    """What a command took."""

    seconds_to_step: float
    """Until it had recorded a step, on the clock …"""
    computing: float
    """… and spent by its processes, whatever else the machine did meanwhile."""
    main: float
    """Most memory of its own process, in MB, shared memory counted …"""
    worker: float
    """… and of the largest process that it started."""


def composed(count: int) -> Iterator[tuple[str, str]]:
    """Yield different pairs, each of two sentences of the starter corpus."""
    train = [(pair.source, pair.target) for pair in compose(seed=1).train]
    products = len(train) ** 2
    for number in random.Random(1).sample(range(products), count):
        (a, b), (c, d) = (train[place] for place in divmod(number, len(train)))
        yield f"{a} {c}", f"{b}{d}"


def measure(
    command: Sequence[str], metrics: Path, environment: dict[str, str]
) -> Usage:
    """Run a command to its end and watch it, ten times a second."""
    began, peaks = time.perf_counter(), dict[int, float]()
    first = computing = 0.0
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        os.set_blocking(process.stderr.fileno(), False)  # type: ignore[union-attr]
        said = b""
        while process.poll() is None:
            peaks |= {pid: megabytes for pid, megabytes in _peaks(process.pid)}
            if not first and metrics.is_file():
                first = time.perf_counter() - began
                computing = _computing(process.pid)
            said = (said + (process.stderr.read() or b""))[-2_000:]  # type: ignore[union-attr]
            time.sleep(0.1)
    if process.returncode:
        raise ValueError(f"{' '.join(command)} failed: {said.decode()}")
    workers = [peak for pid, peak in peaks.items() if pid != process.pid]
    return Usage(first, computing, peaks[process.pid], max(workers, default=0.0))


def _computing(pid: int) -> float:
    """Return the seconds that a process and those it has waited for have computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _peaks(pid: int) -> Iterator[tuple[int, float]]:
    """Yield a process and all that it started, each with its peak memory in MB."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has just ended
        return
    if found := re.search(r"VmHWM:\s+(\d+) kB", status):
        yield pid, int(found[1]) * 1024 / 1e6
    yield from itertools.chain.from_iterable(_peaks(int(child)) for child in children)


def _main() -> int:
    arguments = parse(Arguments, None, "-m benchmarks.large_corpus")
    with tempfile.TemporaryDirectory() as folder:
        corpus, out = Path(folder, "pairs.tsv"), Path(folder, "run")
        with corpus.open("w", encoding="utf-8") as file:
            file.writelines(f"{a}\t{b}\n" for a, b in composed(arguments.pairs))
        environment = os.environ | {"HF_DATASETS_CACHE": str(Path(folder, "cache"))}
        command = [sys.executable, "train.py", "--corpus", str(corpus), "--overwrite"]
        command += ["--preset", "small", "--validations", "1", "--out", str(out)]
        found = {}
        for name, steps in (("first start", arguments.steps), ("second start", 10)):
            more = ["--steps", str(steps)]
            found[name] = measure([*command, *more], out / "metrics.jsonl", environment)
            assert json.loads((out / "config.json").read_text())["steps"] == steps
            (out / "metrics.jsonl").unlink()
    print(f"{' '.join(command)}, {arguments.pairs:,} pairs")
    for name, usage in found.items():
        print(
            f"{name:<13} {usage.seconds_to_step:6.1f} s to step 10 "
            f"({usage.computing:.1f} s computing)   "
            f"{usage.main:7,.0f} MB   largest worker {usage.worker:7,.0f} MB"
        )
    print(f"(bars: {MOST_MEGABYTES:,} MB, second start {MOST_SECONDS:.0f} s)")
    memory = max(max(usage.main, usage.worker) for usage in found.values())
    late = found["second start"].seconds_to_step > MOST_SECONDS
    return int(memory > MOST_MEGABYTES or late)


if __name__ == "__main__":
    sys.exit(run(_main, "benchmarks.large_corpus"))
