"""What is made of a corpus once and kept: folders, named by all that they depend on."""

import errno
import functools
import hashlib
import os
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import datasets

PACKAGES = ("datasets", "pyarrow", "sentencepiece")


def fingerprint(*parts: object) -> str:
    """Return the name of what this code makes of parts, which their `repr` tells apart.

    It changes with any line of this package and with the versions it builds on, so that
    no rule of cleaning or tokenizing can be changed and its old results be served.
    """
    return hashlib.sha256(repr((_code(), parts)).encode()).hexdigest()[:32]


@functools.cache
def _code() -> str:
    digest = hashlib.sha256(unicodedata.unidata_version.encode())
    for package in PACKAGES:
        digest.update(version(package).encode())
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def kept(name: str, make: Callable[[Path, Path], object]) -> Path:
    """Return the folder of that name in the cache, made first where it is not there.

    The cache is the one of `datasets` (see HF_DATASETS_CACHE). make gets an empty
    folder to fill and another for what it needs on the way; what it fills gets its name
    when it is whole, so an interrupted one leaves nothing. Raises what make raises.
    """
    cache = Path(datasets.config.HF_DATASETS_CACHE, "tiny-enja")
    folder = cache / name
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".", dir=cache) as scratch:
        whole = Path(scratch, "whole")
        whole.mkdir()
        with _place_named(cache):
            make(whole, Path(scratch))
            _to_disk(whole)  # the name must not outlast a power cut without the content
        try:
            whole.rename(folder)
        except OSError:  # another process has just made it
            if not folder.is_dir():
                raise
    return folder


def _to_disk(folder: Path) -> None:
    """Have the system write a folder, and all that is in it, to the disk by now."""
    for path in (*folder.rglob("*"), folder):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        except OSError as error:
            # Some file systems, of networks mostly, cannot do that for a folder.
            if error.errno != errno.EINVAL or not path.is_dir():
                raise
        finally:
            os.close(opened)


@contextmanager
def _place_named(cache: Path) -> Iterator[None]:
    """Let the error of a full disk name the cache: that of a write names no file."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
            error.filename = str(cache)
        raise
