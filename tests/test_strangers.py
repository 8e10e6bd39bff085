"""Run directories and traces from strangers: refused in one line, or read; never run.

A stranger writes right hashes as well: `seal` does it for them.
"""

import json
import os
import pickle
import random
import resource
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sealing import change_config, seal

import train
import translate
from explain import files
from explain.files import read, to_json, write
from explain.trace import AttentionTrace, TraceError
from explain.translator import Translator
from model.checkpoint import RunError, load_state, save_state

ROOT = Path(__file__).parents[1]
READ = ("config.json", "model.safetensors", "source.spm", "target.spm",
        "source_words.txt", "glossary.tsv")  # fmt: skip
SENTENCE, TRANSLATION = "I drink tea.", "私はお茶を飲みます。"
FLIPS = 40
"""Flipped bits that are tried in each file, besides its truncation at each 1%."""

Said = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def original(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a glossary, and without what only a resume reads."""
    run = tmp_path_factory.mktemp("strangers") / "original"
    shutil.copytree(tiny_run, run, ignore=shutil.ignore_patterns("training_state*"))
    (run / "glossary.tsv").write_text("お茶\tおちゃ\ttea\n", "utf-8")
    hashes = json.loads((run / "config.json").read_text("utf-8"))["files"]
    change_config(run, files={**hashes, "glossary.tsv": ""})
    seal(run)
    return run


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Let nothing here have more than 2 GB besides what is there already."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    if Path("/proc/self/statm").is_file():
        pages = int(Path("/proc/self/statm").read_text("utf-8").split()[0])
        most = pages * resource.getpagesize() + 2 * 2**30
        resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def _refused(argv: list[str], capsys: Said, main: Any = translate.main) -> str:
    capsys.readouterr()
    assert main(argv) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def damaged(content: bytes, flips: int, every: int = 1) -> Iterator[bytes]:
    """Yield content cut at every so many % of its length, and with one bit flipped."""
    for part in range(0, 100, every):
        yield content[: len(content) * part // 100]
    chance = random.Random(1)
    for _ in range(flips):
        changed = bytearray(content)
        changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        yield bytes(changed)


# ------------------------------------------------------------------------ run directory


@pytest.mark.parametrize("name", READ)
def test_every_damage_to_a_run_is_refused(run: Path, name: str) -> None:
    whole = (run / name).read_bytes()
    tried = refused = 0
    for content in damaged(whole, FLIPS):
        if content == whole:
            continue
        tried += 1
        (run / name).write_bytes(content)
        with pytest.raises(RunError) as caught:
            Translator.load(run)
        assert name in str(caught.value) and "\n" not in str(caught.value)
        refused += 1
    print(f"{name}: {refused} of {tried} refused")
    (run / name).write_bytes(whole)
    [[best]] = Translator.load(run).translate([SENTENCE])
    assert best.text == TRANSLATION


SEALED = """
import sys, torch
sys.path[:0] = ["tests"]
torch.set_num_threads(1)
from pathlib import Path
from sealing import seal
from test_strangers import READ, SENTENCE, damaged
from explain.translator import Translator
run, flips, every = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for name in READ[1:]:
    refused = read = 0
    whole = (run / name).read_bytes()
    for number, content in enumerate(damaged(whole, flips, every)):
        print(name, number, file=sys.stderr, flush=True)
        (run / name).write_bytes(content)
        seal(run)
        try:
            Translator.load(run).translate([SENTENCE], max_steps=8)
            read += 1
        except ValueError as error:
            assert "\\n" not in str(error)
            refused += 1
    (run / name).write_bytes(whole)
    print(f"{name}, with right hashes: {refused} refused, {read} read")
"""


@pytest.mark.parametrize(
    ("flips", "every"), [(8, 10), pytest.param(400, 1, marks=pytest.mark.long)]
)
def test_no_damage_with_right_hashes_crashes(run: Path, flips: int, every: int) -> None:
    """In a process of its own, which would take a crash of the libraries' C++."""
    done = subprocess.run(
        [sys.executable, "-c", SEALED, str(run), str(flips), str(every)], cwd=ROOT,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stdout)


class Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.sprung,))


@pytest.mark.parametrize("name", [*READ, "training_state.pt"])
@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_no_payload_is_run(
    run: Path, tmp_path: Path, name: str, form: str, capsys: Said
) -> None:
    trap = Payload(tmp_path / "sprung")
    if form == "pickle":
        (run / name).write_bytes(pickle.dumps(trap))
    else:
        torch.save({"step": 1, "state": trap}, run / name)
    if name not in {"config.json", "training_state.pt"}:
        seal(run)
    if name == "training_state.pt":
        line = _refused(["--resume", str(run)], capsys, train.main)
        assert "no training to go on with" in line
    else:
        _refused(["--model", str(run), SENTENCE], capsys)
    assert not (tmp_path / "sprung").exists()


WEIGHTS: dict[str, Callable[[dict[str, torch.Tensor]], Any]] = {
    "one is missing": lambda w: w.pop("source_embedding.weight"),
    "one more": lambda w: w.update(more=torch.zeros(3)),
    "half the width": lambda w: w.update(
        {name: tensor.half() for name, tensor in w.items()}
    ),
    "integers": lambda w: w.update(
        {name: tensor.to(torch.int32) for name, tensor in w.items()}
    ),
    "double": lambda w: w.update({k: t.double() for k, t in w.items()}),
    "another shape": lambda w: w.update(
        {"source_embedding.weight": w["source_embedding.weight"].T.contiguous()}
    ),
    "not a number": lambda w: w["encoder_norm.weight"].fill_(float("nan")),
    "infinite": lambda w: w["encoder_norm.weight"][:1].fill_(float("inf")),
}


@pytest.mark.parametrize("change", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_of_another_kind(
    run: Path, change: Callable[[dict[str, torch.Tensor]], Any], capsys: Said
) -> None:
    path = run / "model.safetensors"
    weights = load_file(path)
    change(weights)
    path.unlink()  # the weights are still mapped from it
    save_file(weights, path)
    seal(run)
    line = _refused(["--model", str(run), SENTENCE], capsys)
    assert "model.safetensors" in line


def test_more_than_one_metadata_key(run: Path, capsys: Said) -> None:
    path = run / "model.safetensors"
    weights = load_file(path)
    path.unlink()
    save_file(weights, path, {"format": "pt"})
    seal(run)
    Translator.load(run)
    save_file(weights, path, {"format": "pt", "more": ""})
    seal(run)
    assert "does not fit" in _refused(["--model", str(run), SENTENCE], capsys)


@pytest.mark.parametrize("length", [0, 10, 2**20, 2**40, 2**63, 2**64 - 1])
def test_a_header_that_lies_about_its_length(
    run: Path, length: int, capsys: Said
) -> None:
    path = run / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    seal(run)
    assert "model.safetensors" in _refused(["--model", str(run), SENTENCE], capsys)


@pytest.mark.parametrize("name", READ)
def test_a_file_of_a_terabyte(run: Path, name: str, capsys: Said) -> None:
    with (run / name).open("ab") as file:
        file.truncate(2**40)  # takes no room on the disk
    assert "are read" in _refused(["--model", str(run), SENTENCE], capsys)


@pytest.mark.parametrize(
    "shape",
    [
        {"width": 10**9}, {"width": 10**400}, {"width": 16_384, "heads": 128},
        {"encoder_layers": 128, "width": 4_096}, {"max_length": 0}, {"heads": 10**9},
        {"feed_forward": 65_536, "width": 8192}, {"max_length": 65_536, "width": 8192},
        {"source_vocabulary": 10**6, "width": 512},
    ],
)  # fmt: skip
def test_a_shape_that_asks_for_all_memory(
    run: Path, shape: dict[str, int], capsys: Said
) -> None:
    config = json.loads((run / "config.json").read_text("utf-8"))
    change_config(run, model=config["model"] | shape)
    line = _refused(["--model", str(run), SENTENCE], capsys)
    assert "config.json: " in line


@pytest.mark.parametrize(
    "fields",
    [
        {"files": {"../../secret.txt": ""}}, {"files": {"/etc/passwd": ""}},
        {"files": {"..": ""}}, {"files": {"metrics.jsonl": ""}}, {"files": {}},
        {"languages": ["en", "../ja"]}, {"languages": "en"}, {"languages": [1, 2, 3]},
        {"weights": []}, {"weights": "x"}, {"weights": None}, {"weights": [None]},
    ],
)  # fmt: skip
def test_a_config_of_a_stranger(
    run: Path, fields: dict[str, Any], capsys: Said
) -> None:
    (run.parent / "secret.txt").write_text("secret", "utf-8")
    change_config(run, **fields)
    line = _refused(["--model", str(run), SENTENCE], capsys)
    assert "secret" not in line.replace("secret.txt", "")


@pytest.mark.parametrize("name", READ)
def test_a_link_is_not_followed(run: Path, name: str, capsys: Said) -> None:
    (run / name).rename(run.parent / "outside")
    (run / name).symlink_to(run.parent / "outside")
    assert "no ordinary file" in _refused(["--model", str(run), SENTENCE], capsys)
    (run / name).unlink()
    os.mkfifo(run / name)  # would never end
    assert "no ordinary file" in _refused(["--model", str(run), SENTENCE], capsys)


def test_translating_looks_at_no_path_of_the_config(run: Path) -> None:
    outside = run.parent / "outside"
    argv = ["--corpus", str(outside), "--out", str(outside), "--init", str(outside)]
    change_config(run, argv=argv, corpora={str(outside): "x"}, command=str(outside))
    opened: list[str] = []

    def hook(event: str, about: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(about[0], str | Path):
            opened.append(str(about[0]))

    sys.addaudithook(hook)
    [[best]] = Translator.load(run).translate([SENTENCE])
    assert best.text == TRANSLATION
    assert any("config.json" in path for path in opened)
    assert not any("outside" in path for path in opened)


@pytest.mark.parametrize(
    "argv",
    [
        ["--tyro-write-completion", "bash", "OUT"], ["--help"], ["-h"], None, [1], "x",
        ["--corpus", "SECRET"], ["--corpus", "SECRET", "--out", "OUT", "--overwrite"],
        ["--tyro-print-completion", "bash"], ["--corpus", "/dev/zero"],
    ],
)  # fmt: skip
def test_a_resume_reads_and_writes_nothing_of_a_strangers_choice(
    run: Path, argv: Any, capsys: Said
) -> None:
    secret, out = run.parent / "secret.tsv", run.parent / "out"
    secret.write_text("my secret\t秘密\n", "utf-8")
    (run / "attention.html").unlink()
    save_state(run, {"step": 1, "steps": 2, "state": {}, "best": {}, "seconds": 0.0})
    places = {"SECRET": str(secret), "OUT": str(out)}
    if isinstance(argv, list):
        argv = [places.get(word, word) for word in argv]
    change_config(run, argv=argv, corpora={str(secret): "0" * 64})
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    line = _refused(["--resume", str(run)], capsys, train.main)
    assert "start anew" in line or "no ordinary file" in line
    assert not out.exists()
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_damaged_training_states_are_never_used(tmp_path: Path) -> None:
    state = {"step": 1, "weights": torch.arange(1_000.0)}
    save_state(tmp_path, state)
    path = tmp_path / "training_state.pt"
    refused = 0
    for content in damaged(path.read_bytes(), 200):
        path.write_bytes(content)
        try:
            found, _ = load_state(tmp_path)
        except RunError:
            refused += 1
        else:  # the change hit nothing that matters
            assert found["step"] == 1
            assert torch.equal(found["weights"], state["weights"])
    assert refused > 250


def test_a_packed_training_state_is_not_unpacked(tmp_path: Path) -> None:
    save_state(tmp_path, {"zeros": torch.zeros(1_000_000)})
    path = tmp_path / "training_state.pt"
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    assert path.stat().st_size < 20_000
    with pytest.raises(RunError):
        load_state(tmp_path)


# ------------------------------------------------------------------------------- traces


@pytest.fixture(scope="module")
def trace(translator: Translator) -> AttentionTrace:
    return translator.trace(SENTENCE, TRANSLATION)


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".npz"])
def test_damaged_traces_are_refused_or_agree_with_themselves(
    trace: AttentionTrace, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"a{suffix}"
    write(path, [trace], values=suffix != ".npz")
    whole, refused, same = path.read_bytes(), 0, 0
    for content in damaged(whole, 60):
        path.write_bytes(content)
        try:
            found = read(path)
        except TraceError as error:
            assert "\n" not in str(error)
            refused += 1
            continue
        same += 1
        for ours, theirs in zip(
            trace.maps, found[0].maps if found else (), strict=False
        ):
            np.testing.assert_allclose(ours.weights, theirs.weights, atol=2e-5)
    print(f"a{suffix}: {refused} of {refused + same} refused")
    assert refused >= (99 if suffix == ".jsonl" else 100)


def test_no_payload_in_a_trace_is_run(trace: AttentionTrace, tmp_path: Path) -> None:
    trap, path = Payload(tmp_path / "sprung"), tmp_path / "a.npz"
    write(path, [trace])
    with np.load(path) as arrays:
        parts = dict(arrays)
    boxed = np.array([trap], dtype=object)
    for change in ({"about": boxed}, {"cross.0.q": boxed}, {"more": boxed}):
        np.savez(path, allow_pickle=True, **(parts | change))
        with pytest.raises(TraceError):
            read(path)
    for suffix in (".npz", ".json", ".jsonl"):
        (tmp_path / f"b{suffix}").write_bytes(pickle.dumps(trap))
        with pytest.raises(TraceError):
            read(tmp_path / f"b{suffix}")
    assert not (tmp_path / "sprung").exists()


def _npy(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    """Return an .npy file that promises more than the zeros that it has."""
    return _headed(repr({"descr": descr, "fortran_order": False, "shape": shape}))


def _headed(text: str) -> bytes:
    """Return an .npy file of a header alone."""
    header = text.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n"


@pytest.mark.parametrize(
    "member", [_npy((10**9,)), _npy((10**15,)), _npy((10**6, 10**6)), _npy((2**63,)),
               _npy((-1,)), _npy((1,), "|O"), _npy((1,), "<U1000000000"), b"", b"x",
               _headed("{[]: 1}"), _headed("{1: 2, 'a': 3}"), _headed("{'descr': 1"),
               _headed("  {\n 1"), _headed("(")]
)  # fmt: skip
def test_an_array_that_asks_for_all_memory(
    trace: AttentionTrace, tmp_path: Path, member: bytes
) -> None:
    path = tmp_path / "a.npz"
    for name in ("about.npy", "cross.0.weights.npy", "../../escaped.npy"):
        write(path, [trace])
        with zipfile.ZipFile(path) as archive:
            parts = {one: archive.read(one) for one in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for one, content in (parts | {name: member}).items():
                archive.writestr(one, content)
        with pytest.raises(TraceError):
            read(path)
        assert [found.name for found in tmp_path.iterdir()] == ["a.npz"]


def test_a_packed_trace_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MOST_UNPACKED", 1_000_000)
    path = tmp_path / "a.npz"
    np.savez_compressed(path, about=np.zeros(100_000), more=np.zeros(100_000))
    assert path.stat().st_size < 10_000
    with pytest.raises(TraceError, match="larger unpacked than any trace"):
        read(path)


def test_texts_that_ask_for_all_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in (b"[" + b"[]," * 2_000_000 + b"[]]", b'{"a":' * 3_000_000):
        path.write_bytes(content)
        with pytest.raises(TraceError, match="larger than any trace: not read"):
            read(path)
    with path.open("ab") as file:
        file.truncate(2**40)
    with pytest.raises(TraceError, match="larger than any file of traces"):
        read(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["maps"][0].update(layer=float("inf")),
        lambda d: d["maps"][0].update(layer=10**400),
        lambda d: d["maps"][0].update(layer=1),
        lambda d: d["maps"].append(d["maps"][0]),
        lambda d: d["model"].update(name=["x"]),
        lambda d: d["model"].update(config="x"),
        lambda d: d["target"]["ids_in"].__setitem__(0, 10**400),
        lambda d: d["target"]["log_probs"].__setitem__(0, float("nan")),
        lambda d: d["maps"][0]["values"].update(q=[[[1.0]]], k=[[[1.0]]]),
        lambda d: d["maps"][0]["values"].update(input=[[1.0]]),
        lambda d: d["maps"][0]["values"].update(other=[[1.0]]),
        lambda d: d["projections"][0].update(W_Q=[[1.0, 2.0]]),
    ],
)
def test_a_trace_of_a_stranger(
    trace: AttentionTrace, tmp_path: Path, change: Callable[[Any], Any]
) -> None:
    data = json.loads(json.dumps(to_json(trace, values=True)))
    path = tmp_path / "a.json"
    path.write_text(json.dumps(data), "utf-8")
    assert len(read(path)) == 1
    change(data)
    path.write_text(json.dumps(data), "utf-8")
    with pytest.raises(TraceError):
        read(path)
