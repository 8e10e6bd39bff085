"""Run trainings that kill themselves at chosen moments, and go on with each.

A program of its own, which has imported everything once and forks a process for every
training: `python tests/kill_harness.py PLAN.json RESULT.json`. A moment is the n-th
event of a training: just before it opens a file of its folder for writing, renames,
links, removes or syncs one, takes a step, or translates in a validation. Each has the
name of what the training was about: start, steps, validation, save, resume, end. At
moments of even number the power fails as well: of what a file got since it was last
synced, half is lost.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # torch imports it late, and each fork would, for seconds

import explain.page  # noqa: F401  (as train.py does, late)
import train
from explain.translator import Translator
from model.checkpoint import RunError
from model.training import TrainingState

PARTS = {
    "_begin": "start", "_validate": "validation", "_save": "save",
    "_go_on": "resume", "_finish": "end",
}  # fmt: skip
FILE_EVENTS = {
    "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate",
}  # fmt: skip


class Watch:
    """Counts the events of this process, and kills it at one of them."""

    def __init__(self, folder: Path, kill: int) -> None:
        self.folder, self.kill = str(folder), kill
        self.events: list[tuple[str, str]] = []
        self.parts = ["steps"]
        self.synced: dict[str, int] = {}  # bytes of each file that are on the disk
        sys.addaudithook(self._audit)
        for name, part in PARTS.items():
            setattr(train, name, self._within(getattr(train, name), part))
        train._translated = self._before(train._translated, "translate")
        TrainingState.train_step = self._before(  # type: ignore[method-assign]
            TrainingState.train_step, "step"
        )
        self.fsync = os.fsync
        os.fsync = self._fsync

    def happens(self, what: str) -> None:
        self.events.append((self.parts[-1], what))
        if len(self.events) != self.kill:
            return
        if self.kill % 2 == 0:
            for path, size in self.synced.items():
                if os.path.isfile(path):
                    os.truncate(path, (size + os.path.getsize(path)) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    def _audit(self, event: str, about: tuple[Any, ...]) -> None:
        if event not in {*FILE_EVENTS, "open"} or isinstance(about[0], int):
            return
        if event == "open" and not about[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        path = os.path.abspath(os.fsdecode(about[0]))
        if not path.startswith(self.folder) or len(self.events) == self.kill:
            return
        self.happens(f"{event} {Path(path).name.replace(str(os.getpid()), 'N')}")
        if event == "open":
            self.synced.setdefault(path, 0)
        elif event == "os.rename":
            to = os.path.abspath(os.fsdecode(about[1]))
            self.synced = {
                to + known.removeprefix(path) if known.startswith(path) else known: size
                for known, size in self.synced.items()
            }

    def _fsync(self, opened: int) -> None:
        path = os.path.realpath(f"/proc/self/fd/{opened}")
        if not path.startswith(self.folder):  # the cache's, where it makes something
            self.fsync(opened)
            return
        self.happens("fsync")
        self.fsync(opened)
        if os.path.isfile(path):
            self.synced[path] = os.path.getsize(path)

    def _within(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def wrapped(*values: Any, **named: Any) -> Any:
            self.parts.append(part)
            result = function(*values, **named)
            self.parts.pop()
            return result

        return wrapped

    def _before(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        def wrapped(*values: Any, **named: Any) -> Any:
            self.happens(what)
            return function(*values, **named)

        return wrapped


def forked(said: Path, work: Callable[[], int]) -> int:
    """Do work in a process of its own; return its exit code, negative for a signal."""
    if not (child := os.fork()):
        opened = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(opened, stream)
        code = 99
        try:
            code = work()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def trained(argv: list[str], run: Path, kill: int = 0) -> int:
    """Run train.py, watched; leave the events beside the run."""

    def work() -> int:
        watch = Watch(run.parent, kill)
        code = train.main(argv)
        events = run.parent / f"{run.name}.events"
        events.write_text(json.dumps(watch.events), "utf-8")
        return code

    return forked(run.parent / f"{run.name}.said", work)


def looked_at(run: Path) -> str:
    """Return what loading a run says of it; empty where it loads."""
    found = run.parent / f"{run.name}.found"

    def work() -> int:
        try:
            Translator.load(run)
            found.write_text("", "utf-8")
        except RunError as error:
            found.write_text(str(error), "utf-8")
        return 0

    assert forked(run.parent / f"{run.name}.said", work) == 0
    return found.read_text("utf-8")


def tried(flags: list[str], run: Path, kills: list[int]) -> dict[str, Any]:
    """Kill a training, and where asked its resumption too, then let it go on."""
    run.parent.mkdir(parents=True)
    argv = [*flags, "--out", str(run)]
    found = []
    again = argv
    for kill in kills:
        code = trained(again, run, kill)
        found.append({"code": code, "found": looked_at(run), "there": run.exists()})
        again = ["--resume", str(run)] if run.exists() else argv
    code = trained(again, run)
    return {"run": str(run), "kills": found, "code": code}


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    torch.set_num_threads(1)
    results = [
        tried(plan["flags"], Path(plan["folder"]) / str(number) / "run", kills)
        for number, kills in enumerate(plan["trials"], start=plan["first"])
    ]
    Path(sys.argv[2]).write_text(json.dumps(results), "utf-8")


if __name__ == "__main__":
    main()
