"""What every command shares: flags from a dataclass, failures in one line.

The packages themselves never parse flags and never print; the scripts, and the modules
that can be run with `python -m`, call this.
"""

import contextlib
import errno
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any, TextIO, TypeVar

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
)

T = TypeVar("T")
BAD_INPUT, INTERRUPTED = 2, 130
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_KINDS: dict[type[Any], str] = {
    str: "text", int: "whole number", float: "number", Path: "path",
}  # fmt: skip
_REMEDIES = {
    errno.ENOSPC: ": make room on that disk",
    errno.EDQUOT: ": make room on that disk",
    errno.EROFS: ": name a folder that can be written to",
}


def parse(
    arguments: type[T],
    argv: Sequence[str] | None,
    program: str,
    default: T | None = None,
) -> T:
    """Return argv, or the process's own, as an `arguments` dataclass.

    default may give the values of flags that are not named. Raises `ValueError` in
    one line where a flag is wrong; `--help` prints and exits.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                arguments,
                prog=program,
                args=None if argv is None else list(argv),
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
                default=tyro.MISSING_NONPROP if default is None else default,
                registry=_registry(),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
    # tyro draws a box, in plain hyphens where the screen is not UTF-8; under its title,
    # the first paragraph is the message.
    lines = [
        re.sub("[│╭╮╰╯─]|-{4,}", "", line).strip()
        for line in said.getvalue().splitlines()[1:]
    ]
    message = " ".join(takewhile(bool, dropwhile(lambda line: not line, lines)))
    message = message.removeprefix(f"Error parsing {arguments.__name__}: ")
    raise ValueError(f"{message} (see python {program} --help)")


def _registry() -> ConstructorRegistry:
    """Return how flags that may be missing are read: None is a text like any other."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def rule(flag: PrimitiveTypeInfo) -> "PrimitiveConstructorSpec[Any] | None":
        kinds = [kind for kind in _KINDS if flag.type == kind | None]
        return _reader(kinds[0]) if kinds else None

    return registry


def _reader(kind: type[Any]) -> "PrimitiveConstructorSpec[Any]":
    def read(words: list[str]) -> Any:
        try:
            return kind(words[0])
        except ValueError:
            raise ValueError(f"{words[0]!r} is no {_KINDS[kind]}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=read,
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: [str(value)],
    )


def check_device(name: str) -> None:
    """Raise `ValueError` unless torch can compute on a device of this machine."""
    import torch

    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError):  # the latter where torch has no CUDA
        raise ValueError(f"--device {name} is not usable here: give cpu") from None


def run(main: Callable[[], int | None], program: str) -> int:
    """Run a command and return its exit code; an expected failure is one line.

    Streams are UTF-8 whatever the terminal's settings say.
    """
    _open_streams()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.redirect_stderr(Expendable(sys.stderr)):
        return _run(main, program)


def _run(main: Callable[[], int | None], program: str) -> int:
    try:
        code = main() or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has enough (`| head -1`). Python would complain again at exit.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 0
    except KeyboardInterrupt:
        _say(f"\n{program}: interrupted")
        return INTERRUPTED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        remedy = _REMEDIES.get(error.errno or 0, "")
        said = printable(f"{where}{error.strerror or error}{remedy}")
        _say(f"{program}: {said}")
    except ValueError as error:
        _say(f"{program}: {printable(' '.join(str(error).split()))}")
    except (MemoryError, RuntimeError) as error:
        if not _is_lack_of_memory(error):
            raise
        _say(
            f"{program}: out of memory: give a training a smaller --batch-tokens or a "
            "larger --accumulate, a translation a smaller --beam"
        )
    return BAD_INPUT


def _is_lack_of_memory(error: Exception) -> bool:
    """Tell whether Python, torch or CTranslate2 got no memory, on any device."""
    on_gpu = type(error).__name__ == "OutOfMemoryError"  # torch is not loaded here
    said = any(words in str(error) for words in ("allocate memory", "out of memory"))
    return on_gpu or said or isinstance(error, MemoryError)


@dataclass
class Stop:
    """Whether somebody asked for a stop."""

    asked: bool = False


@contextlib.contextmanager
def stop_request() -> Iterator[Stop]:
    """Let Ctrl-C and SIGTERM ask for a stop after the step; a second one insists."""
    stop = Stop()

    def ask(number: int, _: object) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    # What the caller ignores (a job that a script started with &) stays ignored.
    heard = [n for n in STOP_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def printable(text: str) -> str:
    """Return text whose line ends, escapes and other controls show and do nothing."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def _say(message: str) -> None:
    """Print on stderr, if anything can be printed there."""
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr)


class Expendable:
    """A stream whose reader may leave: what is written after that goes nowhere.

    A training has more to lose than its bar, a translation than its warnings, and files
    that are being written than what is printed besides. It is no `io` class, whose own
    idea of an encoding would hide the stream's.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._reader_may_leave():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._reader_may_leave():
            self._stream.flush()

    @contextlib.contextmanager
    def _reader_may_leave(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


class _Closed(io.StringIO):
    """Stands for a standard output that the caller has closed (`>&-`)."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "standard output is closed: send it somewhere")


def _open_streams() -> None:
    # Python has None for a stream that is closed, and prints to stdout what is meant
    # for a stderr of None.
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
