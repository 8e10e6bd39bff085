"""Models that people share on the Hugging Face Hub (for corpora see `data.corpus`)."""

import errno
import re
from pathlib import Path

PREFIX = "hub:"
FILES = (
    "config.json", "README.md", "model.safetensors", "model.bin", "source.spm",
    "target.spm", "source_vocabulary.json", "target_vocabulary.json",
    "source_words.txt", "glossary.tsv",
)  # fmt: skip
"""What is fetched of a model; a repository may hold anything else besides."""
PATIENCE = 10.0
"""Seconds that the Hub has to answer in."""
_NONE = "the Hub has no model {} that you may read: check its name"
_OF_THIS_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


def local_folder(name: str | Path) -> Path:
    """Return the folder of a model: a path as it is, `hub:owner/name` once fetched.

    A model that was fetched before is found without a network. Raises `ValueError` in
    one line where the name is none, nothing is there or the Hub cannot be reached.
    """
    if not str(name).startswith(PREFIX):
        return Path(name)
    repository = str(name).removeprefix(PREFIX)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository, re.ASCII):
        raise ValueError(f"{name} names no model: give hub:owner/name")
    return _fetched(repository)


def _fetched(repository: str) -> Path:
    """Return the folder of a repository's files, brought up to date where possible."""
    from huggingface_hub import HfApi, errors, snapshot_download

    # That of the HTTP client, which is another one from version to version.
    failures = (errors.HTTPError, OSError)  # type: ignore[attr-defined]
    forbidden = (errors.RepositoryNotFoundError, errors.HFValidationError)
    offline = None
    try:
        # Of the calls only this one can be told how long to wait.
        HfApi().model_info(repository, timeout=PATIENCE)
    except forbidden:
        raise ValueError(_NONE.format(repository)) from None
    except failures as error:
        offline = error
    try:
        folder = snapshot_download(
            repository, allow_patterns=list(FILES), local_files_only=offline is not None
        )
    except forbidden:  # it has one, which is not for everybody
        raise ValueError(_NONE.format(repository)) from None
    except failures as error:
        if getattr(error, "errno", None) in _OF_THIS_MACHINE:
            raise
        raise ValueError(
            f"{PREFIX}{repository} is not on this machine, and the Hub cannot be "
            f"reached ({type(offline or error).__name__}): go online, or name a folder"
        ) from None
    return Path(folder)
