"""An interrupted training that goes on ends as one that was never interrupted."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL, pairs, write_tsv
from torch import Tensor

import train
from model.checkpoint import load_state
from model.command import check_device
from model.training import TrainingState

FLAGS = (*SMALL, "--width=16", "--steps=100", "--validations=4", "--dropout=0.1",
         "--subword-dropout=0.1")  # fmt: skip
RECIPES = {
    "adamw": ("--optimizer=adamw",),
    "muon": ("--optimizer=muon", "--precision=bf16"),
}


@contextmanager
def signals_at(steps: dict[int, tuple[signal.Signals, ...]]) -> Iterator[None]:
    """Send this process real signals in the middle of some steps."""
    original = TrainingState.train_step

    def train_step(state: TrainingState, *batch: Any, **more: Any) -> float:
        loss = original(state, *batch, **more)
        for number in steps.get(state.step, ()):
            os.kill(os.getpid(), number)
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingState, "train_step", train_step)
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tsv(tmp_path_factory.mktemp("resume") / "corpus.tsv", pairs())


@pytest.fixture(scope="module", params=RECIPES)
def recipe(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return RECIPES[request.param]


@pytest.fixture(scope="module")
def whole(corpus: Path, recipe: tuple[str, ...]) -> Path:
    """A run that nothing interrupted."""
    out = corpus.parent / f"whole-{recipe[0][-4:]}"
    argv = ["--corpus", str(corpus), *FLAGS, *recipe, "--out", str(out)]
    assert train.main(argv) == 0
    return out


@pytest.fixture
def stopped(corpus: Path, recipe: tuple[str, ...], tmp_path: Path) -> Path:
    """The same run, asked to stop at step 60."""
    out = tmp_path / "run"
    argv = ["--corpus", str(corpus), *FLAGS, *recipe, "--out", str(out)]
    with signals_at({60: (signal.SIGINT,)}):
        assert train.main(argv) == 130
    return out


def _metrics(run: Path) -> list[dict[str, Any]]:
    """Return what metrics.jsonl says, but for what the clock says."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open("rb")]
    clock = {"seconds", "target_tokens_per_second"}
    return [{k: v for k, v in line.items() if k not in clock} for line in lines]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def assert_equal_runs(run: Path, whole: Path) -> None:
    assert _metrics(run) == _metrics(whole)
    weights = [(r / "model.safetensors").read_bytes() for r in (run, whole)]
    assert weights[0] == weights[1]
    states = [load_state(folder)[0] for folder in (run, whole)]
    for state in states:
        del state["seconds"]
    assert _same(*states)
    for name in ("source.spm", "target.spm", "source_words.txt"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()


def test_a_run_has_every_record(whole: Path) -> None:
    lines = _metrics(whole)
    assert lines[-1] == {"step": 100, "event": "finished"}
    losses = [line["step"] for line in lines if "loss" in line]
    assert losses == list(range(10, 101, 10))
    scored = [line for line in lines if "dev_loss" in line]
    assert [line["step"] for line in scored] == [25, 50, 75, 100]
    assert all({"dev_loss", "dev_chrf", "dev_bleu"} <= set(line) for line in scored)


def test_stopped_and_resumed_equals_uninterrupted(stopped: Path, whole: Path) -> None:
    (stopped / "README.md").write_text("Notes of the user's own.\n", "utf-8")
    assert _metrics(stopped)[-1]["step"] == 60
    assert load_state(stopped)[0]["step"] == 60
    assert _metrics(stopped) == _metrics(whole)[: len(_metrics(stopped))]
    assert train.main(["--resume", str(stopped)]) == 0
    assert_equal_runs(stopped, whole)


def test_a_run_may_be_stopped_often_and_moved(stopped: Path, whole: Path) -> None:
    moved = stopped.rename(stopped.parent / "moved")
    with signals_at({61: (signal.SIGTERM,)}):
        assert train.main([f"--resume={moved}"]) == 130
    with signals_at({99: (signal.SIGINT,)}):
        assert train.main(["--resume", str(moved)]) == 130
    assert train.main(["--resume", str(moved)]) == 0
    assert_equal_runs(moved, whole)


@pytest.mark.parametrize(("seconds", "steps"), [(1 / 256, 272), (1 / 32, 60)])
def test_minutes_are_planned_anew_by_the_first_steps(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    steps: int,
) -> None:
    """128 steps fit by the trial; after 16 there is time for 256 or for 32 more.

    Of 48 the warm-up would be shorter than the one that was begun, of 60 it is not.
    """
    monkeypatch.setattr("train._trial", lambda *_: 1 / 128)
    monkeypatch.setattr("train.seconds_for_steps", lambda *_: 1.0)
    monkeypatch.setattr("train.typical_step", lambda times: seconds)
    short = [flag for flag in FLAGS if not flag.startswith("--steps")]
    argv = ["--corpus", str(corpus), *short, "--optimizer=adamw", "--minutes=1"]
    run = tmp_path / "run"
    with signals_at({4: (signal.SIGINT,), 24: (signal.SIGINT,)}):
        assert train.main([*argv, "--out", str(run)]) == 130
        assert train.main(["--resume", str(run)]) == 130
    assert load_state(run)[0]["steps"] == steps
    monkeypatch.setattr("train.seconds_for_steps", lambda *_: 600.0)  # it is settled
    assert train.main(["--resume", str(run)]) == 0
    assert json.loads((run / "config.json").read_text("utf-8"))["steps"] == steps
    other = tmp_path / "other"
    argv[-1] = f"--steps={steps}"
    assert train.main([*argv, "--out", str(other)]) == 0
    ended, alike = (load_state(folder)[0] for folder in (run, other))
    assert ended["step"] == alike["step"] == steps
    for name, weights in alike["state"]["averaged"].items():
        assert torch.equal(ended["state"]["averaged"][name], weights)


def test_a_kill_after_the_second_plan_loses_no_record(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train._trial", lambda *_: 1 / 64)
    monkeypatch.setattr("train.seconds_for_steps", lambda *_: 1.0)
    monkeypatch.setattr("train.typical_step", lambda times: 1 / 64)
    monkeypatch.setattr("train.LOG_STEPS", 1)
    run, save = tmp_path / "run", train._save
    short = [flag for flag in FLAGS if not flag.startswith("--steps")]
    argv = ["--corpus", str(corpus), *short, "--minutes=1", "--out", str(run)]

    def killed(training: train.Training) -> None:
        save(training)
        if training.state.step:
            raise KeyboardInterrupt

    monkeypatch.setattr("train._save", killed)
    assert train.main(argv) == 130
    planned = load_state(run)[0]
    assert planned["step"] == 10 and planned["minutes"] is None
    monkeypatch.setattr("train._save", save)
    assert train.main(["--resume", str(run)]) == 0
    losses = [line["step"] for line in _metrics(run) if "loss" in line]
    assert losses == list(range(1, losses[-1] + 1)) and losses[-1] > 10


def test_a_run_that_is_on_another_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    line = _refused(["--resume", str(tmp_path / "run")], capsys)
    assert "no model in" in line  # a cluster may number a lone process
    monkeypatch.setenv("WORLD_SIZE", "2")
    line = _refused(["--resume", str(tmp_path / "run")], capsys)
    assert f"{tmp_path / 'run'} is not on this machine: put" in line


def test_bf16_without_hardware_is_doubted_once_more(
    stopped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    precision = load_state(stopped)[0]["state"]["precision"]
    monkeypatch.setattr("model.hardware.hardware_precisions", lambda _: ("fp32",))
    assert train.main(["--resume", str(stopped)]) == 0
    doubted = "cpu is not known to multiply bf16" in capsys.readouterr().err
    assert doubted == (precision == "bf16")


def test_a_device_that_is_not_here_is_named(
    stopped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stopped.rename(stopped.parent / "my run")
    before = _content(run)
    monkeypatch.setattr(train, "check_device", lambda _: check_device("cuda:99"))
    line = _refused(["--resume", str(run)], capsys)
    assert "was on cpu, which is not usable here" in line
    assert line.endswith(f"--init '{run}'")  # as a shell wants it
    assert _content(run) == before


def test_a_damaged_last_save_costs_its_steps_alone(
    stopped: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latest = stopped / "training_state.pt"
    content = latest.read_bytes()
    latest.unlink()  # the save before may be another name of the same file
    latest.write_bytes(content[: len(content) // 2])
    assert train.main(["--resume", str(stopped)]) == 0
    said = capsys.readouterr().out
    assert (
        f"The last save in {stopped} is damaged; going on from the one before" in said
    )
    assert_equal_runs(stopped, whole)


def test_records_of_steps_that_were_lost_are_done_again(
    stopped: Path, whole: Path
) -> None:
    """As after a crash: records and weights from later than the last save."""
    with (stopped / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 70, "seconds": 9, "loss": 1e9}\n{"step": 80, "los')
    best = (stopped / "model.safetensors").read_bytes()
    shutil.copy(whole / "model.safetensors", stopped)
    with signals_at({61: (signal.SIGINT,)}):
        assert train.main(["--resume", str(stopped)]) == 130
    assert (stopped / "model.safetensors").read_bytes() == best
    assert train.main(["--resume", str(stopped)]) == 0
    assert_equal_runs(stopped, whole)


def test_a_second_signal_insists(
    corpus: Path, recipe: tuple[str, ...], whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    argv = ["--corpus", str(corpus), *FLAGS, *recipe, "--out", str(out)]
    with signals_at({30: (signal.SIGINT, signal.SIGINT)}):
        assert train.main(argv) == 130
    assert load_state(out)[0]["step"] == 25  # of the last validation
    assert train.main(["--resume", str(out)]) == 0
    assert_equal_runs(out, whole)


def _refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert train.main(argv) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def _content(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.iterdir()}


def test_what_cannot_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = write_tsv(tmp_path / "corpus.tsv", pairs())
    run = tmp_path / "run"
    argv = ["--corpus", str(corpus), *FLAGS, "--out", str(run)]
    with signals_at({5: (signal.SIGINT,)}):
        assert train.main(argv) == 130
    said = capsys.readouterr().out
    assert f"5 of 100 steps. To go on: python train.py --resume {run}" in said
    before = _content(run)
    line = _refused(["--resume", str(tmp_path / "none")], capsys)
    assert "no model in" in line
    for extra in (["--steps", "200"], ["--overwrite"]):
        line = _refused(["--resume", str(run), *extra], capsys)
        assert "--resume takes no other flag" in line
    line = _refused([f"--resume={run}", "--overwrite"], capsys)
    assert "--resume takes no other flag" in line
    original = corpus.read_bytes()
    corpus.write_bytes(original + b"One more.\t\xe3\x81\x82\n")
    line = _refused(["--resume", str(run)], capsys)
    assert f"{corpus} has changed since {run} was started: start anew" in line
    corpus.unlink()
    assert str(corpus) in _refused(["--resume", str(run)], capsys)
    assert _content(run) == before
    corpus.write_bytes(original)
    for name in ("README.md", "attention.html"):  # a page of another sentence, say
        (run / name).write_text("Not the end of a training.\n", "utf-8")
    assert train.main(["--resume", str(run)]) == 0
    before = _content(run)
    (run / "README.md").unlink()
    assert train.main(["--resume", str(run)]) == 0
    for name in ("README.md", "model.safetensors"):
        assert _content(run)[name] == before[name]
    before = _content(run)
    line = _refused(["--resume", str(run)], capsys)
    assert f"{run} is finished: nothing is left to do" in line
    assert _content(run) == before
    for name in ("training_state.pt", "training_state.previous.pt"):
        (run / name).unlink()
    assert "no training to go on with" in _refused(["--resume", str(run)], capsys)


def test_tables_go_on_with_their_columns_and_are_watched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, run = tmp_path / "corpus.jsonl", tmp_path / "run"
    rows = [{"english": a, "other": {"ja": b}} for a, b in pairs()]
    original = "".join(json.dumps(row) + "\n" for row in rows)
    corpus.write_text(original, "utf-8")
    argv = ["--corpus", str(corpus), "--columns", "english", "other.ja", *FLAGS]
    with signals_at({5: (signal.SIGINT,)}):
        assert train.main([*argv, "--out", str(run)]) == 130
    corpus.write_text(original.replace("sea", "tea"), "utf-8")
    line = _refused(["--resume", str(run)], capsys)
    assert f"{corpus} has changed since {run} was started: start anew" in line
    corpus.write_text(original, "utf-8")
    assert train.main(["--resume", str(run)]) == 0
