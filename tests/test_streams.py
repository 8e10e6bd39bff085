"""Standard streams that are closed, full, slow, or have no reader any more."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import SMALL
from tqdm import tqdm

import translate
from model.command import Expendable, run, stop_request

ROOT = Path(__file__).parent.parent
COMMAND = (
    "import sys; from model.command import run; sys.exit(run(lambda: "
    "[print('warning', file=sys.stderr), print('text', flush=True)][:0] or 0, 'c.py'))"
)
"""The least program that `run` can run: it prints a line on each stream."""


def _shell(line: str) -> "subprocess.CompletedProcess[bytes]":
    environment = os.environ | {"PYTHON": sys.executable, "COMMAND": COMMAND}
    return subprocess.run(
        ["bash", "-c", line], cwd=ROOT, env=environment, capture_output=True
    )


@pytest.mark.parametrize(
    ("redirection", "code", "out", "err"),
    [
        ("", 0, b"text\n", b"warning\n"),
        # What is meant for a closed stderr never goes to stdout.
        ("2>&-", 0, b"text\n", b""),
        (">&-", 2, b"", b"warning\nc.py: standard output is closed: send it somewhere"),
        (
            ">/dev/full",
            2,
            b"",
            b"warning\nc.py: No space left on device: make room on that disk",
        ),
        ("2>/dev/full", 2, b"", b""),
        (">&- 2>&-", 2, b"", b""),
        ("2>&1 | true", 0, b"", b""),
        ("2>&1 >/dev/null | true", 0, b"", b""),
    ],
)
def test_streams_that_take_nothing(
    redirection: str, code: int, out: bytes, err: bytes
) -> None:
    if "/dev/full" in redirection and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    # The command waits, so that `true` has gone before it prints.
    line = f'(sleep 0.2; "$PYTHON" -c "$COMMAND"; echo $? >&3) {redirection}'
    done = _shell(f"{{ {line}; }} 3>&1 | cat" if "|" not in redirection else
                  f"exec 3>&1; {line}")  # fmt: skip
    *said, last = done.stdout.splitlines(keepends=True)
    assert int(last) == code
    assert b"".join(said) == out
    assert done.stderr.rstrip(b"\n") == err.rstrip(b"\n")


@pytest.fixture
def shell_of_a_reader_that_leaves(tmp_path: Path) -> Callable[[str], int]:
    """Run a command whose outputs nobody reads any more; return its exit code."""

    def run(line: str) -> int:
        left = _shell(f'exec 3>&1; (sleep 0.2; "$PYTHON" {line}; echo $? >&3) | true')
        return int(left.stdout)

    return run


def test_a_training_outlives_its_reader(
    shell_of_a_reader_that_leaves: Callable[[str], int],
    tiny_corpus: Path,
    tmp_path: Path,
) -> None:
    flags = f"--corpus {tiny_corpus} {' '.join(SMALL)} --steps=20 --out {tmp_path}/run"
    line = f"-u train.py {flags} 2>&1"
    assert shell_of_a_reader_that_leaves(line) == 0
    assert (tmp_path / "run" / "README.md").is_file()


def test_a_file_is_written_though_nobody_reads_the_warnings(
    shell_of_a_reader_that_leaves: Callable[[str], int], tiny_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("A zebra sings.\nA gnu sings.\n", "utf-8")
    files = f"--input {tmp_path}/in.txt --output {tmp_path}/out.txt"
    line = f"translate.py --model {tiny_run} {files} 2>&1"
    assert shell_of_a_reader_that_leaves(line) == 0
    assert len((tmp_path / "out.txt").read_text("utf-8").splitlines()) == 2


def test_files_are_written_though_nobody_reads_the_translations(
    shell_of_a_reader_that_leaves: Callable[[str], int], tiny_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("I sing.\nYou sing.\nWe sing.\n", "utf-8")
    files = [tmp_path / "a.jsonl", tmp_path / "a.html"]
    wanted = " ".join(f"--attention {file}" for file in files)
    line = f"translate.py --model {tiny_run} --input {tmp_path}/in.txt {wanted}"
    assert shell_of_a_reader_that_leaves(line) == 0
    assert len(files[0].read_text("utf-8").splitlines()) == 3
    assert files[1].read_text("utf-8").rstrip().endswith("</html>")


def test_too_little_memory_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ask_too_much() -> int:
        return int(torch.empty(1 << 60, dtype=torch.uint8)[0])

    assert run(ask_too_much, "c.py") == 2
    said = capsys.readouterr().err
    assert said.startswith("c.py: out of memory: give a training a smaller --batch-")
    assert said.count("\n") == 1

    def fail() -> int:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        run(fail, "c.py")


def test_a_stream_that_may_be_left_is_as_the_stream_is() -> None:
    """tqdm asks for its encoding, and draws with # where it is none."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    expendable = Expendable(stream)
    assert expendable.encoding == "utf-8" and expendable.writable()
    print("文", file=expendable, flush=True)  # type: ignore[call-overload]
    assert stream.buffer.getvalue() == "文\n".encode()  # type: ignore[attr-defined]
    bar = tqdm(total=2, file=expendable, initial=1)
    bar.close()
    assert "█" in stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def test_a_signal_that_the_caller_ignores_stays_ignored() -> None:
    """As SIGINT is for a job that a script started in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_request() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.asked
            signal.raise_signal(signal.SIGTERM)
            assert stop.asked
    finally:
        signal.signal(signal.SIGINT, before)


def test_no_standard_input(
    tiny_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # what Python makes of `<&-`
    assert translate.main(["--model", str(tiny_run)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == (
        "translate.py: standard input is closed: give sentences, --input or a pipe"
    )
