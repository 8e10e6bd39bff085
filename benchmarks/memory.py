"""Peak memory of training with the small preset, and of translation.

    python -m benchmarks.memory --corpus pairs.tsv

The bars are 1,500 MB and 700 MB (of 10^6 bytes). Exits with 1 above them. Linux only:
there a process's peak is counted in kilobytes.
"""

import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.long_input import sentences
from model.command import parse, run


@dataclass(frozen=True)
class Arguments:
    """Measure peak memory."""

    corpus: str = "starter"
    """What to train on."""
    steps: int = 600
    """How long to train; memory is level after a few hundred steps."""
    lines: int = 1_000
    """How many lines to translate, of many lengths, with a beam of 4."""


def peak(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> float:
    """Return the peak resident memory of a command, in MB."""
    with multiprocessing.Pool(
        1
    ) as pool:  # a parent of its own, which has no other child
        return pool.apply(_peak, (list(command), dict(environment)))


def _peak(command: list[str], environment: dict[str, str]) -> float:
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ran.returncode:
        said = ran.stderr.strip().rsplit("\n", 1)[-1]
        raise ValueError(f"{command[1]} ended with {ran.returncode}: {said}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return used * 1024 / 1e6


def _main() -> int:
    arguments = parse(Arguments, None, "-m benchmarks.memory")
    with tempfile.TemporaryDirectory() as folder:
        out, text = os.path.join(folder, "run"), Path(folder, "lines.txt")
        lines = "".join(f"{line}\n" for line in sentences(arguments.lines))
        text.write_text(lines, "utf-8")
        python = [sys.executable]
        train = [*python, "train.py", "--corpus", arguments.corpus, "--preset", "small"]
        train += ["--steps", str(arguments.steps), "--validations", "2", "--out", out]
        translate = [*python, "translate.py", "--model", out, "--beam", "4"]
        translate += ["--input", str(text), "--output", os.devnull]
        # Preparing the corpus belongs to a training.
        nothing_kept = os.environ | {"HF_DATASETS_CACHE": os.path.join(folder, "cache")}
        found = {
            "training": (peak(train, nothing_kept), 1_500),
            "translation": (peak(translate), 700),
        }
    for name, (used, bar) in found.items():
        print(f"{name:<12} {used:7,.0f} MB at its peak (bar {bar:,})")
    return int(any(used > bar for used, bar in found.values()))


if __name__ == "__main__":
    sys.exit(run(_main, "benchmarks.memory"))
