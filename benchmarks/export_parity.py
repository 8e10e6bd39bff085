"""Both engines on the same sentences: whether they agree, and how fast they are.

    python -m benchmarks.export_parity runs/tatoeba --sentences dev.tsv

Exports the run to CTranslate2 in float32 and in int8, and prints how many of the best
translations equal those of our own search on torch, greedy and with a beam of 4; each
difference, with both scores; what int8 costs in chrF on all of the file, where it has
references; sentences per second; and the cold start of `translate.py`, with `import
torch` beside it. Exits with 1 where fewer than 99.5% agree.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from data.metrics import score
from data.text import normalise, read_file
from explain.translator import Translation, Translator
from model.command import parse, run
from model.export import Quantization, export_ctranslate2
from model.memory import tune_memory

BAR = 0.995
SENTENCE = "I love machine learning"


@dataclass(frozen=True)
class Arguments:
    """Compare an exported model with its run."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run directory."""
    sentences: Path
    """A file of sentences, one a line, or of sentence TAB reference."""
    count: int = 1_000
    """How many sentences both engines translate, from the first on."""
    starts: int = 5
    """How often each cold start is timed; the median counts."""


def _main() -> int:
    arguments = parse(Arguments, None, "-m benchmarks.export_parity")
    tune_memory()  # as translate.py does
    rows = [line.split("\t") for line in read_file(arguments.sentences)]
    rows = [row for row in rows if normalise(row[0])]
    texts = [row[0] for row in rows[: arguments.count]]
    with tempfile.TemporaryDirectory() as folder:
        engines = {"torch": Translator.load(arguments.run)}
        names: tuple[Quantization, ...] = ("float32", "int8")
        for name in names:
            out = Path(folder, name)
            export_ctranslate2(arguments.run, out, name)
            engines[name] = Translator.load(out, engine="ctranslate2")
        agree = [_compare(engines, texts, beam) for beam in (1, 4)]
        _print_quality(engines, [row for row in rows if len(row) > 1])
        _print_starts(arguments, Path(folder, "float32"))
    return int(min(agree) < BAR)


def _compare(engines: dict[str, Translator], texts: Sequence[str], beam: int) -> float:
    """Print how the engines compare; return the share of float32 that agrees."""
    found, speed = {}, {}
    for name, translator in engines.items():
        translator.translate(texts[:50], beam)
        began = time.perf_counter()
        found[name] = [ranked[0] for ranked in translator.translate(texts, beam)]
        speed[name] = len(texts) / (time.perf_counter() - began)
    print(f"beam {beam}, {len(texts):,} sentences:")
    same = {}
    for name in engines:
        pairs = list(zip(texts, found["torch"], found[name], strict=True))
        unlike = [
            pair for pair in pairs if pair[1].hypothesis.ids != pair[2].hypothesis.ids
        ]
        same[name] = len(texts) - len(unlike)
        print(
            f"  {name:<8} {same[name]:>6,} as torch's   {speed[name]:7,.0f} sentences/s"
            f"   {speed[name] / speed['torch']:.2f} times torch's"
        )
        if name == "float32":
            _print_differences(unlike)
    return same["float32"] / len(texts)


def _print_differences(
    unlike: Sequence[tuple[str, Translation, Translation]],
) -> None:
    """Print each difference, with the score that each engine gave to its own."""
    for text, ours, theirs in unlike:
        print(f"    {text}")
        for name, one in (("torch", ours), ("float32", theirs)):
            print(f"      {name:<8} {one.hypothesis.score:9.5f}  {one.text}")


def _print_quality(
    engines: dict[str, Translator], rows: Sequence[Sequence[str]]
) -> None:
    """Print what int8 costs, where there are references."""
    if not rows:
        return
    print(f"chrF on {len(rows):,} sentences:")
    references = [row[1] for row in rows]
    for beam in (1, 4):
        chrf = {}
        for name in ("float32", "int8"):
            texts = engines[name].best([row[0] for row in rows], beam)
            chrf[name] = score(texts, references, engines[name].languages[1]).chrf
        loss = chrf["float32"] - chrf["int8"]
        print(
            f"  beam {beam}: float32 {chrf['float32']:.2f}, int8 {chrf['int8']:.2f}: "
            f"a loss of {loss:.2f}"
        )


def _print_starts(arguments: Arguments, exported: Path) -> None:
    """Print the seconds from nothing to a translation, in alternated turns."""
    script = [sys.executable, "translate.py", SENTENCE, "--model"]
    commands = {
        "import torch": [sys.executable, "-c", "import torch"],
        "torch": [*script, str(arguments.run)],
        "ctranslate2": [*script, str(exported), "--engine", "ctranslate2"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(arguments.starts + 1):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - began)
    print(f"cold start, medians of {arguments.starts}:")
    for name, times in seconds.items():
        print(f"  {name:<13}{statistics.median(times[1:]):5.2f} s")


if __name__ == "__main__":
    sys.exit(run(_main, "benchmarks.export_parity"))
