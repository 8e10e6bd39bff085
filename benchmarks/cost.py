"""How the cost grows: an epoch with the corpus, a translation with the sentence.

    python -m benchmarks.cost

Corpora of 1,000, 10,000 and 100,000 pairs, two sentences of the starter corpus to a
pair, each trained on for one epoch with the small preset in a process of its own; and
sentences of 5 to 200 tokens, each translated alone by a model of random weights that
writes as many tokens as it reads. Beside the figures stands the exponent e of size^e
that fits them best. Linux only: there a process's peak is counted in kilobytes.
"""

import json
import math
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.large_corpus import composed
from benchmarks.processes import figures_of
from data.batching import make_batch, plan_batches
from data.preparation import prepare
from model.command import parse, run
from model.config import ModelConfig
from model.hardware import hardware_precisions
from model.memory import tune_memory
from model.presets import PRESETS
from model.search import search
from model.training import TrainingState
from model.transformer import Transformer

PAIRS = (1_000, 10_000, 100_000)
LENGTHS = (5, 10, 20, 50, 100, 200)
REPEATS = 7


@dataclass(frozen=True)
class Arguments:
    """Measure how the cost grows."""

    only: Path | None = None
    """Prepare this corpus, train on it for one epoch, and print the figures."""


def _epoch(corpus: Path) -> dict[str, float]:
    """Return the seconds of preparing and of an epoch, and the peak memory in MB."""
    tune_memory()
    began = time.perf_counter()
    preset = PRESETS["small"]
    material = prepare(
        [str(corpus)], None, None, reverse=False, vocabulary=preset.shape.vocabulary,
        max_length=128, seed=1, say=lambda _: None,
    )  # fmt: skip
    prepared = time.perf_counter()
    state = TrainingState(
        Transformer(preset.shape.config(len(material.source), len(material.target))),
        preset.recipe,
        hardware_precisions("cpu")[-1],
    )
    budget, chance = preset.recipe.batch_tokens, np.random.default_rng(1)
    for rows in plan_batches(material.train, budget, chance):
        batch = make_batch(material.train, rows, padding=0)
        state.train_step(batch.source, batch.target_in, batch.target_out, 10**6)
    return {
        "prepare": prepared - began,
        "epoch": time.perf_counter() - prepared,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
    }


def _config(source: int, target: int, max_length: int) -> ModelConfig:
    return replace(PRESETS["small"].shape, max_length=max_length).config(source, target)


def _exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return e of the size^e that fits best, by least squares on the logarithms."""
    x, y = np.log(sizes), np.log(costs)
    return float(np.polyfit(x, y, 1)[0])


def _print_epochs() -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for count in PAIRS:
            corpus = Path(folder, f"{count}.tsv")
            with corpus.open("w", encoding="utf-8") as file:
                file.writelines(f"{a}\t{b}\n" for a, b in composed(count))
            # What is prepared of these corpora is of no use to anybody later.
            os.environ["HF_DATASETS_CACHE"] = str(Path(folder, "cache"))
            found.append(figures_of("benchmarks.cost", "--only", str(corpus)))
            figures = found[-1]
            print(
                f"{count:>8,} pairs: prepared in {figures['prepare']:6.1f} s, an epoch "
                f"{figures['epoch']:7.1f} s, {figures['memory']:6,.0f} MB",
                flush=True,
            )
    for name in ("prepare", "epoch", "memory"):
        exponent = _exponent(PAIRS, [figures[name] for figures in found])
        print(f"  {name}: pairs^{exponent:.2f}")


def _print_sentences() -> None:
    tune_memory()
    torch.manual_seed(1)
    model = Transformer(_config(4_000, 4_000, 256)).eval()
    costs = []
    for length in LENGTHS:
        source = torch.randint(4, 4_000, (1, length))
        source[0, -1] = model.config.end_id
        seconds = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            [[best]] = search(model, source, max_steps=length)
            seconds.append(time.perf_counter() - began)
        assert math.isfinite(best.score)
        costs.append(statistics.median(seconds))
        print(f"{length:>4} tokens, {len(best.ids)} written: {1e3 * costs[-1]:6.1f} ms")
    print(f"  time: tokens^{_exponent(LENGTHS, costs):.2f}")


def _main() -> int:
    arguments = parse(Arguments, None, "-m benchmarks.cost")
    if arguments.only is not None:
        print(json.dumps(_epoch(arguments.only)))
        return 0
    _print_epochs()
    _print_sentences()
    return 0


if __name__ == "__main__":
    sys.exit(run(_main, "benchmarks.cost"))
