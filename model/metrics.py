"""metrics.jsonl: how a training went, a line of JSON for each record."""

import json
from pathlib import Path
from typing import Any

from model.checkpoint import sync, write_atomically

_NAME = "metrics.jsonl"


def append_metrics(run: Path, step: int, seconds: float, **figures: Any) -> None:
    """Append what was found after a step, and so many seconds."""
    line = {"step": step, "seconds": round(seconds, 2), **figures}
    with (run / _NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def sync_metrics(run: Path) -> None:
    """Have what was appended outlast a crash."""
    if (run / _NAME).exists():
        sync(run / _NAME)


def end_is_recorded(run: Path) -> bool:
    """Tell whether the end of the training was recorded, and nothing after it."""
    path = run / _NAME
    lines = path.read_bytes().splitlines() if path.is_file() else []
    try:
        return bool(lines) and json.loads(lines[-1]).get("event") == "finished"
    except (ValueError, AttributeError):  # half a line, after a crash
        return False


def cut_metrics(run: Path, step: int) -> None:
    """Forget what was recorded after a step, and at the end: it is done again."""
    path = run / _NAME
    lines = path.read_bytes().splitlines() if path.is_file() else []
    kept = [line for line in lines if _recorded_by(line, step)]
    content = b"".join(line + b"\n" for line in kept)
    write_atomically(path, lambda to: to.write_bytes(content))


def _recorded_by(line: bytes, step: int) -> bool:
    """Tell whether a line is whole and a record from no later than a step."""
    try:
        found = json.loads(line)
        again = "event" in found or "test_chrf" in found
        return bool(found["step"] <= step and not again)
    except (ValueError, TypeError, KeyError):  # half a line, after a crash
        return False
