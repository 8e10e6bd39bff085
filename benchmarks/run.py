"""All comparisons of speed and memory, one after another, on one machine.

    python -m benchmarks.run --model runs/tatoeba --sentences test.tsv

Prints what each benchmark prints, under its command. Takes about half an hour on two
cores, which should have nothing else to do. Exits with 1 where one of them does.
"""

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from model.command import parse, run

ON_ONE_THREAD = ("benchmarks.export_parity",)


@dataclass(frozen=True)
class Arguments:
    """Run all comparisons."""

    model: Path = Path("runs/tatoeba")
    """The run directory that decodes."""
    sentences: Path = Path("../shared/corpora/tatoeba/dev.tsv")
    """What it decodes: sentences, one a line, or sentence TAB reference."""
    corpus: str = "../shared/corpora/tatoeba/train.tsv"
    """What is trained on where memory is measured."""


def _main() -> int:
    arguments = parse(Arguments, None, "-m benchmarks.run")
    decoded = [str(arguments.model), "--sentences", str(arguments.sentences)]
    commands = [
        ["benchmarks.train_speed"],
        ["benchmarks.decode_speed", *decoded],
        ["benchmarks.export_parity", *decoded],
        ["benchmarks.cost"],
        ["benchmarks.memory", "--corpus", arguments.corpus],
        ["benchmarks.page", "--model", str(arguments.model)],
    ]
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, Python "
        f"{platform.python_version()}, torch {version('torch')}, "
        f"ctranslate2 {_version('ctranslate2')}, transformers "
        f"{_version('transformers')}"
    )
    failed = False
    for command in commands:
        threads = {"OMP_NUM_THREADS": "1"} if command[0] in ON_ONE_THREAD else {}
        shown = [*(f"{name}={value}" for name, value in threads.items()), "python -m"]
        print(f"\n$ {' '.join([*shown, *command])}", flush=True)
        ran = subprocess.run(
            [sys.executable, "-m", *command], check=False, env=os.environ | threads
        )
        failed |= ran.returncode != 0
    return int(failed)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise ValueError(
            f"{package} is not installed: pip install -c constraints.txt "
            "'.[bench,export,ja]'"
        ) from None


if __name__ == "__main__":
    sys.exit(run(_main, "benchmarks.run"))
