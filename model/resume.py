"""Whether an interrupted training may go on: only with what it began with."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from model.checkpoint import RunError


def check_corpora(
    run: Path, config: Mapping[str, Any], hashes: Mapping[str, str]
) -> None:
    """Raise `ValueError` unless the corpora are those that a training began with.

    Their hashes are compared before anything is read, so that the run of a stranger
    can make this read no file whose content the stranger did not know.
    """
    then = config.get("corpora")
    for name, digest in hashes.items():
        if not isinstance(then, dict) or then.get(name) != digest:
            raise ValueError(f"{name} has changed since {run} was started: start anew")


def check_unchanged(
    run: Path, saved: Mapping[str, Any], made_of: Mapping[str, Any]
) -> None:
    """Raise `RunError` unless a saved training was made of the same; name what not."""
    before = saved.get("made_of")
    if not isinstance(before, dict):
        raise RunError(f"{run} was saved by another version: start anew")
    names = dict.fromkeys([*before, *made_of])
    changed = [name for name in names if before.get(name) != made_of.get(name)]
    if changed:
        raise RunError(
            f"{' and '.join(changed)} changed since {run} was started: start anew"
        )


def what_differs(config: Mapping[str, Any]) -> str:
    """Return where the last bits of a resumed training may differ, and why, or ""."""
    versions = config.get("versions")
    then = versions.get("torch") if isinstance(versions, dict) else None
    began, now = ((config.get("threads"), then),
                  (torch.get_num_threads(), version("torch")))  # fmt: skip
    if began == now:
        return ""
    return (
        "This training began on {} threads with torch {}, and goes on with {} and {}: "
        "the last bits of its numbers may differ.".format(*began, *now)
    )
