"""Trainings that are killed, or lose the power, at any moment: nothing is lost.

The moments are found by watching a run (see kill_harness.py), never by sleeping.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL, pairs, write_tsv
from test_resume import assert_equal_runs

from model.checkpoint import read_config

ROOT = Path(__file__).parents[1]
SHORT = (*SMALL, "--width=16", "--steps=18", "--validations=3", "--dropout=0.1")
MOMENTS = {"start": 10, "steps": 11, "validation": 12, "save": 12, "end": 5}
"""How many of the 50 moments are in which part of a training."""
RESUMED = 6
"""Of these runs, so many are killed once more while they resume."""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def _run(folder: Path, trials: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Make a run for each trial: the numbers of the events at which to kill it."""
    dev = write_tsv(folder / "dev.tsv", pairs()[::8])
    rest = [pair for pair in pairs() if pair not in pairs()[::8]]
    corpus = write_tsv(folder / "corpus.tsv", rest)
    flags = ["--corpus", str(corpus), "--dev", str(dev), *SHORT]
    first = sum(path.is_dir() for path in folder.iterdir())
    plan = {"flags": flags, "folder": str(folder), "first": first, "trials": trials}
    (folder / "plan.json").write_text(json.dumps(plan), "utf-8")
    command = [sys.executable, "tests/kill_harness.py", str(folder / "plan.json")]
    subprocess.run([*command, str(folder / "result.json")], cwd=ROOT, check=True,
                   env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    return list(json.loads((folder / "result.json").read_text("utf-8")))


def _events(run: str | Path) -> list[list[str]]:
    return list(json.loads(Path(f"{run}.events").read_text("utf-8")))


def _moments(events: Sequence[Sequence[str]], part: str, count: int) -> list[int]:
    """Return the numbers of events of a part, the first, the last and between."""
    numbers = [n for n, (found, _) in enumerate(events, start=1) if found == part]
    last = max(count - 1, 1)
    return [numbers[i * (len(numbers) - 1) // last] for i in range(count)]


def _check(results: Sequence[dict[str, Any]], whole: Path) -> None:
    for result in results:
        run = Path(result["run"])
        said = Path(f"{run}.said").read_text("utf-8")
        assert "Traceback" not in said, said
        for kill in result["kills"]:
            assert kill["code"] == -9, result
            if kill["found"]:  # else it loads
                no_model = "has not saved a model yet" if kill["there"] else "no model"
                assert no_model in kill["found"]
        finished = "is finished: nothing is left to do" in said
        assert result["code"] == (2 if finished else 0), said
        assert_equal_runs(run, whole)
        names = [{path.name for path in folder.iterdir()} for folder in (run, whole)]
        assert names[0] == names[1]  # nothing half-written stays
        assert [path.name for path in run.parent.glob(".*")] == []
        read_config(run)


def _kill(folder: Path, moments: dict[str, int], resumed: int) -> Counter[str]:
    """Kill trainings, check what becomes of each, and count the kills by part."""
    [whole] = _run(folder, [[]])
    events = _events(whole["run"])
    numbers = {part: _moments(events, part, count) for part, count in moments.items()}
    trials = [[number] for found in numbers.values() for number in found]
    assert len(trials) == len({number for [number] in trials})
    results = _run(folder, trials)
    _check(results, Path(whole["run"]))
    survived = Counter(events[number - 1][0] for [number] in trials)
    if resumed:
        [middle], resumption = trials[len(trials) // 2], results[len(trials) // 2]
        again = _moments(_events(resumption["run"]), "resume", resumed)
        results = _run(folder, [[middle, number] for number in again])
        _check(results, Path(whole["run"]))
        survived["resume"] = resumed
    return survived


def test_some_kills_lose_nothing(tmp_path: Path) -> None:
    moments = {"start": 1, "steps": 2, "validation": 1, "save": 2}
    assert sum(_kill(tmp_path, moments, 0).values()) == 6


@pytest.mark.long
def test_fifty_kills_lose_nothing(tmp_path: Path) -> None:
    survived = _kill(tmp_path, MOMENTS, RESUMED)
    print(f"kills survived: {sum(survived.values())} ({dict(survived)})")
    assert sum(survived.values()) == 50 + RESUMED
