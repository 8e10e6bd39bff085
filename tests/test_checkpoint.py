"""Run directories: what is written can be read, and what is damaged is refused."""

import errno
import json
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sealing import change_config

import train
from data.cache import _to_disk
from explain.translator import Translator
from model import checkpoint
from model.checkpoint import (
    RunError,
    load_model,
    load_state,
    model_config,
    read_config,
    save_state,
    save_weights,
    sha256,
    sync,
    write_atomically,
)
from model.config import ModelConfig


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of a run that may be damaged."""
    return shutil.copytree(tiny_run, tmp_path / "run")


def test_what_a_run_directory_holds(tiny_run: Path) -> None:
    names = {path.name for path in tiny_run.iterdir()}
    assert names == {
        ".lock", "README.md", "attention.html", "config.json", "metrics.jsonl",
        "model.safetensors", "source.spm", "source_words.txt", "target.spm",
        "training_state.pt", "training_state.previous.pt",
    }  # fmt: skip
    config = json.loads((tiny_run / "config.json").read_text("utf-8"))
    assert config["format"] == 2
    assert config["languages"] == ["en", "ja"] and config["seed"] == 1
    assert config["command"].startswith("python train.py --corpus ")
    assert set(config["versions"]) >= {"torch", "sentencepiece", "datasets"}
    for name, digest in config["files"].items():
        assert sha256(tiny_run / name) == digest
    assert set(config["files"]) == {"source.spm", "source_words.txt", "target.spm"}
    assert config["weights"] == [sha256(tiny_run / "model.safetensors")]
    for path, digest in config["corpora"].items():
        assert sha256(Path(path)) == digest


def test_a_config_that_could_not_be_read_is_not_written(run: Path) -> None:
    before = (run / "config.json").read_bytes()
    config = json.loads(before) | {
        "corpora": {f"{n}.tsv": "0" * 64 for n in range(15_000)}
    }
    with pytest.raises(RunError, match="join the files of the corpus into fewer"):
        checkpoint.write_config(run, config)
    assert (run / "config.json").read_bytes() == before


def test_a_device_that_is_not_there(tiny_run: Path) -> None:
    with pytest.raises(ValueError, match="--device cuda:99 is not usable here"):
        Translator.load(tiny_run, device="cuda:99")


def test_the_weights_file(tiny_run: Path) -> None:
    content = (tiny_run / "model.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert len(header.pop("__metadata__", {})) <= 1
    assert {entry["dtype"] for entry in header.values()} == {"F32"}
    model = load_model(tiny_run)
    assert not model.training
    weights = load_file(tiny_run / "model.safetensors")
    assert set(weights) == {name for name, _ in model.named_parameters()} == set(header)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[name])


def test_equal_weights_give_equal_bytes(tiny_run: Path, run: Path) -> None:
    weights = load_file(tiny_run / "model.safetensors")
    save_weights(run, dict(reversed(weights.items())))
    first = (run / "model.safetensors").read_bytes()
    save_weights(run, {k: v.double().float() for k, v in weights.items()})
    assert (run / "model.safetensors").read_bytes() == first
    assert first == (tiny_run / "model.safetensors").read_bytes()


@pytest.mark.parametrize("found", [3, 0, "1", None, [1], True])
def test_an_unknown_format_is_refused_by_name(run: Path, found: object) -> None:
    change_config(run, format=found)
    with pytest.raises(RunError) as caught:
        Translator.load(run)
    assert f"format {found!r}; this version reads formats 1 and 2" in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000]
)
def test_a_config_that_is_none_is_refused(run: Path, content: bytes) -> None:
    (run / "config.json").write_bytes(content)
    with pytest.raises(RunError, match=r"config\.json"):
        Translator.load(run)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": None}, {"model": []}, {"model": {}}, {"model": {"width": 32}},
        {"files": None}, {"files": []}, {"files": {"../x": "y"}}, {"files": {"x": "y"}},
        {"files": {"source.spm": None}},
    ],
)  # fmt: skip
def test_a_config_with_other_content_is_refused(
    run: Path, fields: dict[str, Any]
) -> None:
    change_config(run, **fields)
    with pytest.raises(RunError):
        Translator.load(run)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("width", 10**9), ("width", -32), ("width", 32.0), ("width", "32"),
        ("width", 33), ("heads", 3), ("heads", 0), ("encoder_layers", 10**6),
        ("feed_forward", None), ("max_length", 10**9), ("source_vocabulary", 10**12),
        ("target_vocabulary", 2), ("dropout", 1.0), ("dropout", "x"), ("end_id", 1),
        ("padding_id", -1), ("end_id", 10**6), ("end_id", 2.0), ("start_id", True),
        ("padding_id", 0.5), ("unheard_of", 1),
    ],
)  # fmt: skip
def test_a_shape_that_makes_no_model_is_refused(
    tiny_run: Path, field: str, value: object
) -> None:
    config = read_config(tiny_run)
    changed = config | {"model": config["model"] | {field: value}}
    with pytest.raises(RunError, match="config.json"):
        model_config(changed, tiny_run / "config.json")


def test_a_shape_that_the_weights_do_not_have_is_refused(run: Path) -> None:
    shape = read_config(run)["model"]
    for change in ({"width": 64}, {"encoder_layers": 1, "decoder_layers": 3}):
        change_config(run, model=shape | change)
        with pytest.raises(RunError, match="does not fit config.json"):
            load_model(run)
    # Refused before its terabytes are asked for.
    change_config(run, model=shape | {"width": 16_384, "encoder_layers": 128})
    with pytest.raises(RunError, match="numbers, and at most 250,000,000 are allowed"):
        load_model(run)


@pytest.mark.parametrize("name", ["source.spm", "target.spm", "source_words.txt"])
@pytest.mark.parametrize("damage", ["gone", "short", "changed", "empty"])
def test_damaged_files_are_named(run: Path, name: str, damage: str) -> None:
    path = run / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {"short": content[:-1], "changed": content, "empty": b""}[damage]
        )
    with pytest.raises(RunError, match=f"{name} is missing or damaged: train"):
        Translator.load(run)


@pytest.mark.parametrize("size", [0, 7, 8, 100, 20_000, -1])
def test_weights_that_are_cut_short_are_refused(run: Path, size: int) -> None:
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RunError, match="model.safetensors"):
        Translator.load(run)


def test_a_missing_run_says_which_command_makes_one(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"train one with `python train\.py --out .*none"
    ):
        Translator.load(tmp_path / "none")
    (tmp_path / "run").mkdir()
    with pytest.raises(RunError, match="no model in"):
        Translator.load(tmp_path / "run")


def test_a_run_without_weights_yet(run: Path) -> None:
    (run / "model.safetensors").unlink()
    with pytest.raises(RunError, match="the training has not saved a model yet"):
        Translator.load(run)


@pytest.mark.parametrize("write", [1, 2, 3])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_while_the_model_is_replaced_leaves_one_of_both(
    run: Path, monkeypatch: pytest.MonkeyPatch, write: int, moment: str
) -> None:
    """config.json, the model, config.json: three renames, a crash beside each."""
    old = load_file(run / "model.safetensors")
    new = {name: tensor + 1 for name, tensor in old.items()}
    rename, renames = Path.replace, []

    def crash(path: Path, to: Path) -> Path:
        renames.append(to.name)
        if len(renames) == write and moment == "before":
            raise KeyboardInterrupt
        rename(path, to)
        if len(renames) == write:
            raise KeyboardInterrupt
        return to

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            save_weights(run, new)
    order = ["config.json", "model.safetensors", "config.json"]
    assert renames == order[:write]
    is_new = write + (moment == "after") > 2
    found = dict(load_model(run).named_parameters())
    for name, tensor in (new if is_new else old).items():
        assert torch.equal(found[name], tensor)
    save_weights(run, new)  # what a resumed training does
    weights = json.loads((run / "config.json").read_text("utf-8"))["weights"]
    assert weights == [sha256(run / "model.safetensors")]


def test_a_model_that_is_replaced_while_it_is_read(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where translate.py starts in the middle of a training."""
    new = {k: v + 1 for k, v in load_file(run / "model.safetensors").items()}
    read = checkpoint.read_config
    calls: list[Path] = []

    def read_then_replaced(folder: Path) -> dict[str, Any]:
        config = read(folder)
        if not calls:
            save_weights(folder, new)
        calls.append(folder)
        return config

    monkeypatch.setattr(checkpoint, "read_config", read_then_replaced)
    found = dict(load_model(run).named_parameters())
    assert all(torch.equal(found[name], tensor) for name, tensor in new.items())


def test_a_run_of_format_1_is_read_and_never_gone_on_with(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "config.json"
    config = json.loads(path.read_text("utf-8")) | {"format": 1}
    del config["sha256"], config["weights"]
    path.write_text(json.dumps(config), "utf-8")
    [[best]] = Translator.load(run).translate(["I drink tea."])
    assert best.text == "私はお茶を飲みます。"
    (run / "attention.html").unlink()
    assert train.main(["--resume", str(run)]) == 2
    said = capsys.readouterr().err
    assert "was not started by this version of train.py: start anew" in said


# ----------------------------------------------------------------- the training's state


def _state(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((1_000,), float(step)), "best": {}}


def test_the_latest_state_and_the_one_before_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_state(tmp_path, _state(step))
    state, is_previous = load_state(tmp_path)
    assert (state["step"], is_previous) == (3, False)
    (tmp_path / "training_state.pt").unlink()
    state, is_previous = load_state(tmp_path)
    assert (state["step"], is_previous) == (2, True)
    (tmp_path / "training_state.previous.pt").unlink()
    with pytest.raises(RunError, match="no training to go on with"):
        load_state(tmp_path)


def test_any_damage_to_the_latest_falls_back(tmp_path: Path) -> None:
    save_state(tmp_path, _state(1))
    save_state(tmp_path, _state(2))
    path = tmp_path / "training_state.pt"
    whole = path.read_bytes()
    chance = random.Random(1)
    cuts = [0, 1, 10, len(whole) // 2, len(whole) - 1]
    damaged = [whole[:cut] for cut in cuts] + [os.urandom(500), b"PK\x03\x04" * 9]
    for _ in range(40):
        changed = bytearray(whole)
        for _ in range(20):
            changed[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        damaged.append(bytes(changed))
    for content in damaged:
        path.unlink()
        path.write_bytes(content)
        state, is_previous = load_state(tmp_path)
        step = 1 if is_previous else 2
        # Where a change hit nothing that matters, the state must be the true one.
        assert state["step"] == step
        assert torch.equal(state["weights"], _state(step)["weights"])


def test_a_state_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    torch.save({"step": 1, "trap": Trap()}, tmp_path / "training_state.pt")
    with pytest.raises(RunError):
        load_state(tmp_path)
    assert not (tmp_path / "sprung").exists()


# ------------------------------------------------------------------------------- files


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old", "utf-8")

    def write(to: Path) -> None:
        to.write_text("half", "utf-8")
        assert path.read_text("utf-8") == "old"
        raise RuntimeError("no space")

    with pytest.raises(RuntimeError, match="no space"):
        write_atomically(path, write)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text("utf-8") == "old"
    write_atomically(path, lambda to: to.write_text("new", "utf-8"))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text("utf-8") == "new"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text("utf-8")))
    reader.start()
    write_atomically(pipe, lambda to: to.write_text("through", "utf-8"))
    reader.join()
    assert read == ["through"] and pipe.is_fifo()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        write_atomically(tmp_path / "none" / "file", lambda to: to.write_text(""))
    assert caught.value.filename == str(tmp_path / "none")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "heads is 5, which does not divide the width 32"),
        ({"width": 0}, "width is 0: give a whole number from 1"),
        ({"width": 3, "heads": 1}, "width is 3: give an even number"),
        ({"dropout": -0.1}, "dropout is -0.1"),
        ({"padding_id": 1}, "three different ids"),
        ({"source_vocabulary": 2}, "below the smaller vocabulary, 2"),
    ],
)
def test_config_errors_name_value_and_remedy(
    changes: dict[str, Any], message: str
) -> None:
    fields = {"source_vocabulary": 9, "target_vocabulary": 9, "width": 32} | changes
    with pytest.raises(ValueError, match=message):
        ModelConfig(**fields)


@pytest.mark.parametrize("to_disk", [sync, _to_disk])
def test_a_file_system_that_cannot_sync_folders(
    to_disk: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of some network file systems answer EINVAL, which ends no training."""
    (tmp_path / "file").write_bytes(b"x")

    def refuse(kind: Callable[[int], bool]) -> None:
        def fsync(opened: int) -> None:
            if kind(os.fstat(opened).st_mode):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        monkeypatch.setattr(os, "fsync", fsync)

    refuse(stat.S_ISDIR)
    to_disk(tmp_path)
    refuse(stat.S_ISREG)
    with pytest.raises(OSError, match="Invalid"):
        to_disk(tmp_path / "file" if to_disk is sync else tmp_path)
