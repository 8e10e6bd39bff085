"""Peak memory of translate.py on pipes of two lengths; it should not grow.

    python -m benchmarks.long_input [--attention]

Over the first 20,000 lines it does, a little: the largest batches of each kind come,
and each new shape of a product leaves a kernel behind. Exits with 1 where a line is
missing, or where memory grows by a tenth after that. Linux only: there a process's peak
is counted in kilobytes.
"""

import math
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from model.command import parse, run

PEOPLE = ("I", "You", "We", "They", "My friend", "The old teacher", "Nobody we know")
ACTIONS = ("love", "like", "see", "do not like", "want to study", "would never buy")
THINGS = ("machine learning", "music", "the red bird", "books", "cats", "tea", "ﾊﾝｶｸ")


@dataclass(frozen=True)
class Arguments:
    """Measure peak memory on pipes of two lengths."""

    model: Path = Path("runs/starter")
    """The run directory to translate with."""
    lines: tuple[int, ...] = (20_000, 100_000)
    """How many lines to pipe through."""
    attention: bool = False
    """Write the attention of every line to a .jsonl as well."""


def sentences(count: int) -> Iterator[str]:
    """Yield sentences of many lengths, one in fifty of them blank."""
    chance = random.Random(1)
    parts = (PEOPLE, ACTIONS, THINGS)
    for number in range(count):
        clauses = [" ".join(map(chance.choice, parts)) for _ in range(number % 3 + 1)]
        yield "" if number % 50 == 7 else f"{' and '.join(clauses)}."


def measure(model: Path, lines: int, attention: bool) -> tuple[float, int]:
    """Return the peak resident memory in MB, and how many lines came out."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        command = [sys.executable, "translate.py", "--model", str(model)]
        if attention:
            command += ["--attention", os.path.join(folder, "maps.jsonl")]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdin is not None and process.stdout is not None
        sink = process.stdin

        def feed() -> None:
            with suppress(BrokenPipeError), sink:
                for sentence in sentences(lines):
                    sink.write(f"{sentence}\n".encode())

        writer = threading.Thread(target=feed)
        writer.start()
        came = sum(1 for _ in process.stdout)
        writer.join()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            said = errors.read().decode().strip().rsplit("\n", 1)[-1]
            raise ValueError(f"{command[1]} ended with {process.returncode}: {said}")
    return usage.ru_maxrss * 1024 / 1e6, came


def _main() -> int:
    arguments = parse(Arguments, None, "-m benchmarks.long_input")
    peaks = []
    for lines in arguments.lines:
        peak, came = measure(arguments.model, lines, arguments.attention)
        print(f"{lines:9,} lines in, {came:9,} out: {peak:6,.0f} MB at the peak")
        peaks.append(peak if came == lines else float("inf"))
    return int(max(peaks) > 1.1 * peaks[0] or math.isinf(max(peaks)))


if __name__ == "__main__":
    sys.exit(run(_main, "benchmarks.long_input"))
