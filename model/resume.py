"""Whether an interrupted training may go on: only with what it began with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from model.checkpoint import RunError
from model.command import printable


def check_corpora(
    run: Path, config: Mapping[str, Any], hashes: Mapping[str, str]
) -> None:
    """Raise `ValueError` unless the corpora are those that a training began with.

    Their hashes are compared before anything is read, so that the run of a stranger
    can make this read no file whose content the stranger did not know.
    """
    for name, digest in hashes.items():
        if config["corpora"].get(name) != digest:
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


def what_differs(config: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """Return where a resumed training may come to other numbers, and why, or "".

    config is the run's, versions those of the packages here.
    """
    before = config.get("versions")
    then = {
        "threads": config.get("threads"),
        **(before if isinstance(before, dict) else {}),
    }
    now = {"threads": torch.get_num_threads(), **versions}
    other = [name for name in now if name in then and then[name] != now[name]]
    if not other:
        return ""
    began, goes_on = (
        ", ".join(f"{name} {some[name]}" for name in other) for some in (then, now)
    )
    return printable(
        f"This training began with {began}, and goes on with {goes_on}: its numbers "
        "may differ from what they would have been."
    )
