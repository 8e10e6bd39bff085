"""Every command of README.md and docs/training.md runs as printed, on a small scale."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SMALL

import train
import translate
from data import recasing
from explain import worked_example
from model import export

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
TRAINING = (ROOT / "docs" / "training.md").read_text("utf-8")


def commands() -> list[str]:
    """Return what the shell blocks of both run, comments left out."""
    blocks = re.findall(r"```sh\n(.*?)```", README + TRAINING, re.DOTALL)
    lines = [
        re.split(" +# ", line)[0] for block in blocks for line in block.splitlines()
    ]
    return [part.strip() for line in lines for part in line.split("&&") if part.strip()]


def on_a_small_scale(words: list[str], corpus: Path) -> Iterator[str]:
    """Yield a training's flags, its corpora and its length made small."""
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag = word
            yield from ["--corpus", str(corpus)] if flag == "--corpus" else []
        if flag not in {"--corpus", "--dev", "--minutes"}:
            yield word
    yield from (*SMALL, "--steps=30")


def test_the_readme_has_commands() -> None:
    found = commands()
    assert "python train.py" in found
    assert 'python translate.py "I love machine learning"' in found
    assert sum(command.startswith("python") for command in found) >= 12


@pytest.fixture
def checkout(tmp_path: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the runs that the README's commands read."""
    for name in ("starter", "tatoeba", "hour"):
        shutil.copytree(tiny_run, tmp_path / "runs" / name)
    (tmp_path / "letters.en").write_text("I drink tea.\n\nWe read a book.\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "command", [c for c in commands() if c.startswith("python translate.py")]
)
def test_translate_commands(command: str, checkout: Path) -> None:
    pytest.importorskip("matplotlib")
    words = shlex.split(command)[2:]
    for other in commands():
        if "model.export" in other and shlex.split(other)[-1] in words:
            pytest.importorskip("ctranslate2")
            assert export.main(shlex.split(other)[3:]) == 0
    before = set(checkout.iterdir())
    assert translate.main(words) == 0
    written = {path.name for path in set(checkout.iterdir()) - before}
    files = {w for w in words if re.fullmatch(r"\w+\.(json|html|png|svg|ja)", w)}
    assert written == files


@pytest.mark.parametrize(
    "command", [c for c in commands() if c.startswith("python train.py")]
)
def test_train_commands(command: str, checkout: Path, tiny_corpus: Path) -> None:
    words = shlex.split(command)[2:]
    if "--help" in words:
        with pytest.raises(SystemExit) as stop:
            train.main(words)
        assert not stop.value.code
        return
    shutil.rmtree(checkout / "runs")
    corpus = words if "--corpus" in words else ["--corpus", "starter.tsv"]
    assert train.main(list(on_a_small_scale(corpus, tiny_corpus))) == 0
    [run] = (checkout / "runs").iterdir()
    assert (run / "attention.html").stat().st_size > 100_000


@pytest.mark.parametrize(
    "command", [c for c in commands() if c.startswith("python -m model.export")]
)
def test_export_commands(command: str, checkout: Path) -> None:
    pytest.importorskip("ctranslate2")
    words = shlex.split(command)[3:]
    assert export.main(words) == 0
    assert (checkout / words[words.index("--out") + 1] / "config.json").is_file()


def test_recasing_command(checkout: Path, tiny_corpus: Path) -> None:
    [command] = [c for c in commands() if c.startswith("python -m data.recasing")]
    names = shlex.split(command)[3:]
    recasing.main([str(tiny_corpus), str(tiny_corpus), names[2]])
    assert (checkout / names[2]).read_bytes() == tiny_corpus.read_bytes()


def test_the_worked_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert "python -m explain.worked_example" in commands()
    assert worked_example.main([]) == 0
    assert "0.893" in capsys.readouterr().out


def test_the_python_of_the_readme_runs(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [code] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert "[" in capsys.readouterr().out
