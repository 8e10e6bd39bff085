"""A small corpus of our own sentences, and one real training on it for all tests."""

import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import datasets
import pytest
import torch

import train
from explain.translator import Translator

torch.set_num_threads(1)  # the models here are too small to share out
# A script's `pytest &` is started with Ctrl-C ignored, which some tests press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PEOPLE = [
    ("I", "私は"),
    ("You", "あなたは"),
    ("We", "私たちは"),
    ("They", "彼らは"),
    ("The students", "学生たちは"),
    ("My parents", "両親は"),
    ("Ken and Mari", "ケンとマリは"),
    ("The old dogs", "年寄りの犬は"),
]
ACTIONS = [
    ("drink tea", "お茶を飲みます"),
    ("eat bread every day", "毎日パンを食べます"),
    ("read a book", "本を読みます"),
    ("go to the station", "駅へ行きます"),
    ("sleep at home", "家で寝ます"),
    ("like the sea", "海が好きです"),
    ("see a red bird", "赤い鳥を見ます"),
    ("sing in the morning", "朝に歌います"),
]

BIRD = "We see a red bird."
Main = Callable[[Sequence[str]], int]
Said = pytest.CaptureFixture[str]
SMALL = (
    "--width=32", "--heads=4", "--feed-forward=64", "--vocabulary=340",
    "--encoder-layers=2", "--decoder-layers=2", "--max-length=32", "--warmup=20",
    "--precision=fp32", "--batch-tokens=400", "--validations=2",
)  # fmt: skip
"""Flags of a model that trains in seconds."""


def pairs() -> list[tuple[str, str]]:
    """Return 64 sentence pairs, each sentence different from all others."""
    return [
        (f"{who} {does}.", f"{person}{action}。")
        for who, person in PEOPLE
        for does, action in ACTIONS
    ]


def write_tsv(path: Path, rows: Sequence[tuple[str, str]]) -> Path:
    text = "".join(f"{source}\t{target}\n" for source, target in rows)
    path.write_bytes(text.encode())
    return path


def refused(main: Main, argv: Sequence[object], capsys: Said, folder: Path) -> str:
    """Return the one line on stderr; no file in folder may appear or change."""
    before = content(folder)
    capsys.readouterr()
    assert main([str(word) for word in argv]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert content(folder) == before
    assert line.startswith(("train.py: ", "translate.py: "))
    return line


def content(folder: Path) -> dict[str, bytes | None]:
    """Return every file of a folder, and every folder in it."""
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def write_file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def weights(run: Path) -> bytes:
    """Return the bytes of a run's model."""
    return (run / "model.safetensors").read_bytes()


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of the tests' own, for processes that they start as well."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        # What a terminal or an account may have set would change what is printed.
        for name in (
            "FORCE_COLOR",
            "NO_COLOR",
            "HF_HUB_OFFLINE",
            "HF_DATASETS_OFFLINE",
        ):
            patch.delenv(name, raising=False)
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("COLUMNS", "80")
        patch.setenv("HF_DATASETS_CACHE", str(folder))
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
        yield folder


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TSV of `pairs`."""
    return write_tsv(tmp_path_factory.mktemp("corpus") / "tiny.tsv", pairs())


@pytest.fixture(scope="session")
def tiny_run(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a finished training on `tiny_corpus`."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    flags = [*SMALL, "--steps=600", "--out", str(out)]
    assert train.main(["--corpus", str(tiny_corpus), *flags]) == 0
    return out


@pytest.fixture(scope="session")
def translator(tiny_run: Path) -> Translator:
    return Translator.load(tiny_run)
