"""What a benchmark cannot measure it says in one line, before it measures anything."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import memory, starter, train_peer
from model.command import run


@pytest.mark.parametrize(
    ("module", "words", "message"),
    [
        (starter, ["--model", "{run}"], "was not trained from English to Japanese"),
        (memory, ["--corpus", "{run}/none.tsv"], "none.tsv"),
        (
            train_peer,
            ["--corpus=a", "--dev=b", "--translate=c", "--out={run}/none/out.txt"],
            "none is no folder: make it first",
        ),
    ],
)
def test_one_line_says_what_is_wrong(
    tiny_run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    words: list[str],
    message: str,
) -> None:
    argv = [module.__name__, *(word.format(run=tiny_run) for word in words)]
    monkeypatch.setattr(sys, "argv", argv)
    assert run(module._main, module.__name__) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert message in found.err and found.err.count("\n") == 1
