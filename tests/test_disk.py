"""Disks that are full, read-only or gone, and two trainings into one directory."""

import copy
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from conftest import SMALL, pairs, write_tsv
from sealing import change_config, seal
from test_resume import assert_equal_runs, signals_at

import train
from data.batching import Ragged
from explain.translator import Translator
from model.checkpoint import load_state, read_config
from model.folders import lock_run
from model.training import TrainingState

ROOT = Path(__file__).parents[1]
FLAGS = (*SMALL, "--width=16", "--steps=20", "--validations=2", "--optimizer=adamw")

Said = pytest.CaptureFixture[str]


def _argv(corpus: Path, run: Path, *more: str) -> list[str]:
    return ["--corpus", str(corpus), *FLAGS, "--out", str(run), *more]


def _last_line(capsys: Said) -> str:
    """Return the one line of an error; before it is the bar, if a training began."""
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return said.err.splitlines()[-1]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tsv(tmp_path_factory.mktemp("disk") / "corpus.tsv", pairs())


@pytest.fixture(scope="module")
def whole(corpus: Path) -> Path:
    """A run that nothing disturbed."""
    run = corpus.parent / "whole"
    assert train.main(_argv(corpus, run)) == 0
    return run


@pytest.fixture
def stopped(corpus: Path, tmp_path: Path) -> Path:
    """The same run, stopped at step 15."""
    run = tmp_path / "run"
    with signals_at({15: (signal.SIGTERM,)}):
        assert train.main(_argv(corpus, run)) == 130
    return run


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let something happen to a training in the middle of a step."""
    original = TrainingState.train_step

    def set_up(step: int, act: Callable[[], object]) -> None:
        def train_step(state: TrainingState, *batch: Any, **more: Any) -> float:
            if state.step + 1 == step:
                act()
            return original(state, *batch, **more)

        monkeypatch.setattr(TrainingState, "train_step", train_step)

    return set_up


# ------------------------------------------------------------------------------- mounts


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own, 4 MB."""
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command here")
    folder = tmp_path / "disk"
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _fill(disk: Path, leave: int) -> Path:
    """Fill a disk but for so many bytes."""
    path = disk / "filling"
    free = shutil.disk_usage(disk).free
    path.write_bytes(bytes(free - leave))
    return path


@pytest.mark.parametrize("leave", [0, 50_000, 500_000])
def test_a_disk_that_fills_up_loses_nothing(
    disk: Path, corpus: Path, whole: Path, at_step: Callable[..., None], capsys: Said,
    leave: int,
) -> None:  # fmt: skip
    run, filling = disk / "run", disk / "filling"
    at_step(12, lambda: filling.exists() or _fill(disk, leave))
    assert train.main(_argv(corpus, run)) == 2
    line = _last_line(capsys)
    assert "No space left on device; the last save is whole: mend this, then" in line
    assert line.endswith(f"python train.py --resume {run}")
    assert load_state(run)[0]["step"] == 10
    assert len(list(run.glob(".*"))) == 1  # the lock: nothing half-written
    Translator.load(run)
    assert train.main(["--resume", str(run)]) == 2
    assert "No space left on device" in _last_line(capsys)
    filling.unlink()
    filling.mkdir()
    assert train.main(["--resume", str(run)]) == 0
    assert_equal_runs(run, whole)


@pytest.mark.parametrize("leave", [0, 20_000, 100_000, 200_000])
def test_a_disk_that_is_full_from_the_start(
    disk: Path, corpus: Path, capsys: Said, leave: int
) -> None:
    _fill(disk, leave)
    assert train.main(_argv(corpus, disk / "run")) == 2
    line = _last_line(capsys)
    assert "No space left on device: make room on that disk" in line
    assert [path.name for path in disk.iterdir()] == ["filling"]


@pytest.mark.parametrize("leave", [0, 8_192, 24_576])
def test_a_cache_that_fills_up_while_ids_are_written(
    disk: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: Said, leave: int,
) -> None:  # fmt: skip
    """The ids of 20,000 bytes find no room, or two pages, or room for themselves."""
    write = Ragged.write

    def fill_and_write(ragged: Ragged, folder: Path, order: np.ndarray) -> None:
        _fill(disk, leave)
        write(Ragged([range(5_000)]), folder, np.array([0]))

    monkeypatch.setattr(Ragged, "write", fill_and_write)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", disk)
    assert train.main(_argv(corpus, tmp_path / "run")) == 2
    line = _last_line(capsys)
    assert f"{disk}/tiny-enja: No space left on device: make room on that disk" in line
    assert not list((disk / "tiny-enja").glob(".*"))
    assert list(tmp_path.iterdir()) == [disk]


def test_a_read_only_folder(
    disk: Path, corpus: Path, stopped: Path, whole: Path, capsys: Said
) -> None:
    run = disk / "run"
    shutil.copytree(stopped, run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    _mount("-o", "remount,ro", str(disk))
    for argv in (["--resume", str(run)], _argv(corpus, run, "--overwrite"),
                 _argv(corpus, disk / "new")):  # fmt: skip
        assert train.main(argv) == 2
        line = _last_line(capsys)
        assert "Read-only file system: name a folder that can be written to" in line
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    Translator.load(run)
    _mount("-o", "remount,rw", str(disk))
    assert train.main(["--resume", str(run)]) == 0
    assert_equal_runs(run, whole)


@pytest.mark.parametrize("step", [5, 20])
def test_a_folder_that_is_deleted(
    corpus: Path, tmp_path: Path, at_step: Callable[..., None], capsys: Said, step: int
) -> None:
    run = tmp_path / "run"
    at_step(step, lambda: shutil.rmtree(run))
    assert train.main(_argv(corpus, run)) == 2
    assert f"{run} was deleted while training: start anew" in _last_line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_second_names(
    corpus: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, to: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "hardlink_to", refused)
    assert train.main(_argv(corpus, tmp_path / "run")) == 0
    assert_equal_runs(tmp_path / "run", whole)
    assert load_state(tmp_path / "run")[0]["step"] == 20
    (tmp_path / "run" / "training_state.pt").unlink()
    assert load_state(tmp_path / "run")[0]["step"] == 10


# --------------------------------------------------------------------- two at one place


def test_the_second_training_is_refused(
    corpus: Path, stopped: Path, whole: Path, capsys: Said
) -> None:
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    lock = lock_run(stopped)
    for argv, way_out in (
        (["--resume", str(stopped)], "wait for it to end"),
        (
            _argv(corpus, stopped, "--overwrite"),
            "wait for it to end, or give another --out",
        ),
    ):
        assert train.main(argv) == 2
        line = _last_line(capsys)
        assert line.endswith(f"another training is at work in {stopped}: {way_out}")
    lock.release()
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before
    assert train.main(["--resume", str(stopped)]) == 0
    assert_equal_runs(stopped, whole)


def test_a_real_training_holds_the_lock_and_its_death_frees_it(
    corpus: Path, stopped: Path, whole: Path, capsys: Said
) -> None:
    """The other training is a process that lives until it is killed."""
    waits = (
        "import sys, time, train\n"
        "train._train = lambda *_: (print('at work', flush=True), time.sleep(600))\n"
        "train.main(['--resume', sys.argv[1]])\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", waits, str(stopped)], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert other.stdout is not None
    assert any("at work" in line for line in other.stdout)
    assert train.main(["--resume", str(stopped)]) == 2
    assert "another training is at work in" in _last_line(capsys)
    other.kill()
    other.communicate()
    assert train.main(["--resume", str(stopped)]) == 0
    assert_equal_runs(stopped, whole)


def test_two_that_begin_at_once(corpus: Path, tmp_path: Path, capsys: Said) -> None:
    """The first still reads its corpus; it has no directory of its own name yet."""
    beside = tmp_path / ".run.1.tmp"
    beside.mkdir()
    lock = lock_run(beside)
    assert train.main(_argv(corpus, tmp_path / "run")) == 2
    assert "another training prepares" in _last_line(capsys)
    lock.release()  # it died: what it left goes
    assert train.main(_argv(corpus, tmp_path / "run")) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_what_took_the_name_meanwhile_stays(
    corpus: Path,
    tmp_path: Path,
    capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
    more: tuple[str, ...],
) -> None:
    run, save = tmp_path / "run", train._save

    def late(training: train.Training) -> None:
        run.mkdir()
        (run / "precious").touch()
        save(training)

    monkeypatch.setattr("train._save", late)
    assert train.main(_argv(corpus, run, *more)) == 2
    assert "run is there by now: give another --out" in _last_line(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert [path.name for path in run.iterdir()] == ["precious"]


def test_a_run_is_back_whose_successor_died_when_it_took_its_name(
    corpus: Path, tmp_path: Path, capsys: Said
) -> None:
    old, new = tmp_path / ".run.1.old.tmp", tmp_path / ".run.1.tmp"
    of_another = tmp_path / ".run.v2.1.tmp"
    for folder in (old, new, of_another):
        folder.mkdir()
    config = '{"format": 2, "model": {}}'
    (old / "config.json").write_text(config)
    assert train.main(_argv(corpus, tmp_path / "run")) == 2
    assert "run is there already: give --overwrite" in _last_line(capsys)
    assert (tmp_path / "run" / "config.json").read_text() == config
    assert train.main([*_argv(corpus, tmp_path / "run"), "--overwrite"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"run", of_another.name}
    assert (tmp_path / "run" / "README.md").is_file()


# ------------------------------------------------------------------------ what changed


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"feed_forward": 32}, "feed_forward changed since"),
        ({"heads": 2, "max_length": 31}, "heads and max_length changed since"),
    ],
)
def test_a_changed_shape_is_named(
    stopped: Path, capsys: Said, change: dict[str, int], named: str
) -> None:
    config = read_config(stopped)
    change_config(stopped, model=config["model"] | change)
    assert train.main(["--resume", str(stopped)]) == 2
    assert named in _last_line(capsys)


def test_a_changed_vocabulary_is_named(
    stopped: Path, tmp_path: Path, capsys: Said
) -> None:
    (stopped / "source.spm").write_bytes((stopped / "target.spm").read_bytes())
    assert train.main(["--resume", str(stopped)]) == 2
    assert "source.spm is missing or damaged" in _last_line(capsys)
    seal(stopped)
    shape = read_config(stopped)["model"]
    size = shape["target_vocabulary"]
    change_config(stopped, model=shape | {"source_vocabulary": size})
    assert train.main(["--resume", str(stopped)]) == 2
    line = _last_line(capsys)
    assert "source.spm" in line and "changed since" in line


def test_other_sentences_are_noticed(
    stopped: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a later version cleans a corpus in another way."""
    prepare = train.prepare

    def other(*values: Any, **named: Any) -> Any:
        material = prepare(*values, **named)
        train_pairs = copy.deepcopy(material.train)
        train_pairs.target.flat = train_pairs.target.flat[::-1]
        return replace(material, train=train_pairs)

    monkeypatch.setattr(train, "prepare", other)
    assert train.main(["--resume", str(stopped)]) == 2
    assert "the training sentences changed since" in _last_line(capsys)


def test_other_threads_are_said(
    stopped: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert train.main(["--resume", str(stopped)]) == 0
    said = capsys.readouterr().out
    assert "began with threads 1, and goes on with threads 7: its numbers" in said


def test_other_versions_are_said(
    stopped: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "version", lambda name: f"{name} of \x1b tomorrow")
    assert train.main(["--resume", str(stopped)]) == 0
    said = capsys.readouterr().out
    assert r"numpy of \x1b tomorrow, sentencepiece sentencepiece of \x1b" in said
