"""What making the explorer page adds to a translation, in seconds.

    python -m benchmarks.page --model runs/starter

The bars are 1 s without and 5 s with what each head changes. Exits with 1 above them.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from explain.translator import Translator
from model.command import parse, run
from model.memory import tune_memory

BARS = {"page without what-if": 1.0, "page with what-if": 5.0}


@dataclass(frozen=True)
class Arguments:
    """Time the making of a page."""

    model: Path = Path("runs/starter")
    """The run directory."""
    sentence: str = "I love machine learning"
    """What to translate."""
    turns: int = 5
    """How often each is timed; the median counts."""


def seconds(action: Callable[[], object], turns: int) -> float:
    """Return the median time of an action, which is run once before it is timed."""
    action()
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _main() -> int:
    arguments = parse(Arguments, None, "-m benchmarks.page")
    tune_memory()
    translator = Translator.load(arguments.model)
    text = arguments.sentence
    [[best]] = translator.translate([text])

    def page(what_if: bool) -> str:
        trace = translator.trace(text, best.hypothesis.ids, best.hypothesis.complete)
        return translator.page([trace], what_if=what_if)

    print(f"translation {seconds(lambda: translator.translate([text]), 5):.3f} s")
    missed = False
    for (name, bar), what_if in zip(BARS.items(), (False, True), strict=True):
        took = seconds(lambda what_if=what_if: page(what_if), arguments.turns)
        size = len(page(what_if).encode()) / 1e6
        print(f"{name} {took:.3f} s more (bar {bar}), {size:.2f} MB")
        missed = missed or took > bar
    return int(missed)


if __name__ == "__main__":
    sys.exit(run(_main, "benchmarks.page"))
