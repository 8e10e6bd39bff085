"""`train.py` under torchrun: shared batches, exact resumes, one message for a death."""

import json
from pathlib import Path

import pytest
import torch

from model.checkpoint import load_state
from tests.conftest import SMALL, pairs, write_tsv
from tests.test_distributed import torchrun

STEPS = 40
FLAGS = [*SMALL, "--width=16", f"--steps={STEPS}", "--validations=2",
         "--dropout=0.1", "--precision=fp32"]  # fmt: skip
DYING = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
sys.argv = ["train.py", *{argv!r}]
import train
from model.training import TrainingState
step, rank = TrainingState.train_step, os.environ.get("RANK")
def dying(state, *batch, **more):
    marker = Path({marker!r})
    if state.step == 25 and rank == "1" and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.{kind})
    return step(state, *batch, **more)
TrainingState.train_step = dying
sys.exit(train.main())
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tsv(tmp_path_factory.mktemp("corpus") / "tiny.tsv", pairs())


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nothing interrupted."""
    run = tmp_path_factory.mktemp("whole") / "run"
    ran = torchrun(2, "train.py", "--corpus", corpus, *FLAGS, "--out", run)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Done in") == 1  # one process speaks
    return run


def _losses(run: Path) -> list[tuple[int, float]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


def _dying(tmp_path: Path, argv: list[str], kind: str) -> Path:
    script = tmp_path / "dying.py"
    root, marker = str(Path(__file__).parent.parent), str(tmp_path / "died")
    text = DYING.format(root=root, argv=argv, marker=marker, kind=kind)
    script.write_text(text, "utf-8")
    return script


def test_two_processes_are_stopped_and_go_on_bit_for_bit(
    corpus: Path, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    argv = ["--corpus", str(corpus), *FLAGS, "--out", str(run)]
    # Asked of one process, all of them stop after the same step.
    ran = torchrun(2, _dying(tmp_path, argv, "SIGTERM"))
    assert f"Stopped after 26 of {STEPS} steps" in ran.stdout
    assert load_state(run)[0]["step"] == 26
    ran = torchrun(2, "train.py", "--resume", run)
    assert ran.returncode == 0, ran.stderr
    assert _losses(run) == _losses(whole)
    ours, theirs = (load_state(r)[0]["state"]["model"] for r in (run, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_torchrun_goes_on_from_the_last_save_after_a_death(
    corpus: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    argv = ["--corpus", str(corpus), *FLAGS, "--out", str(run)]
    script = _dying(tmp_path, argv, "SIGKILL")
    ran = torchrun(2, "--max-restarts=1", script)
    assert ran.returncode == 0, ran.stderr
    # The process that is left may be ended before it says that the other one is gone.
    said = [line for line in ran.stderr.splitlines() if line.startswith("train.py: ")]
    assert all("another process" in line for line in said)
    assert _losses(run)[-1][0] == STEPS
    # One process alone goes on from what two saved, and it is the same training.
    other = tmp_path / "other"
    argv = ["--corpus", str(corpus), *FLAGS, "--out", str(other)]
    (tmp_path / "died").unlink()
    torchrun(2, _dying(tmp_path, argv, "SIGTERM"))
    ran = torchrun(1, "train.py", "--resume", other)
    assert ran.returncode == 0, ran.stderr
    assert [step for step, _ in _losses(other)] == [step for step, _ in _losses(run)]
