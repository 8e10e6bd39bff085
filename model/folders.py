"""A run directory's own name: who may write in it, and how a new one takes it."""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from model.checkpoint import RunError, is_run, sync

_LOCK = ".lock"


def lock_run(run: Path) -> FileLock:
    """Return the lock of a run directory; it is held until released, or to the end.

    The system takes it from a process that dies. Raises `RunError` where another
    process, or another training of this one, holds it.
    """
    lock = FileLock(run / _LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise RunError(
            f"another training is at work in {run}: wait for it to end"
        ) from None
    return lock


def check_free(folder: Path, overwrite: bool, held: ExitStack) -> None:
    """Raise `RunError` unless a folder is free or may be overwritten; then lock it."""
    bring_back(folder.resolve())
    if not folder.exists():
        return
    if not overwrite:
        raise RunError(f"{folder} is there already: give --overwrite or another --out")
    if not is_run(folder):
        raise RunError(
            f"{folder} is no run directory: not overwritten; give another --out"
        )
    try:
        lock = lock_run(folder)
    except RunError as error:
        raise RunError(f"{error}, or give another --out") from None
    held.callback(lock.release)


def folder_beside(folder: Path, held: ExitStack) -> Path:
    """Make, beside folder, the one that will take its name; leave nothing on failure.

    What trainings that were killed have left there is removed.
    """
    made = [parent for parent in folder.parents if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    held.callback(_remove_empty, made)
    for left, lock in _left_beside(folder):
        shutil.rmtree(left)
        lock.release()
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    beside.mkdir()
    held.callback(shutil.rmtree, beside, ignore_errors=True)
    held.callback(lock_run(beside).release)
    return beside


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders, each in the next, from the first on as far as they are empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def bring_back(folder: Path) -> None:
    """Give a run directory its name back where its successor was killed on the way."""
    for left, lock in _left_beside(folder):
        if left.name.endswith(".old.tmp") and not folder.exists():
            left.rename(folder)
        lock.release()


def _left_beside(folder: Path) -> Iterator[tuple[Path, FileLock]]:
    """Yield what killed trainings have left beside a run directory, each locked."""
    name = re.compile(rf"\.{re.escape(folder.name)}\.\d+(\.old)?\.tmp")
    for left in sorted(folder.parent.glob(".*.tmp")):
        if not name.fullmatch(left.name):
            continue
        try:
            lock = lock_run(left)
        except RunError:
            raise RunError(
                f"another training prepares {folder}: give another --out"
            ) from None
        yield left, lock


def put_in_place(beside: Path, folder: Path, overwrite: bool) -> None:
    """Give a new run directory its name; to overwrite, the run that had it goes.

    Raises `RunError` where something has the name that is no run, or may not go.
    """
    old = beside.with_suffix(".old.tmp")
    if folder.exists() and not (overwrite and is_run(folder)):
        raise RunError(f"{folder} is there by now: give another --out")
    if folder.exists():
        folder.rename(old)
    beside.rename(folder)
    sync(folder.parent)
    if old.exists():
        shutil.rmtree(old)


def remove_leftovers(run: Path) -> None:
    """Remove what a write that a crash interrupted has left in a locked directory."""
    for path in run.glob(".*.tmp"):
        path.unlink()
