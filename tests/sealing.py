"""Write a run directory's hashes anew, as the stranger would who changed its files."""

import hashlib
import json
from pathlib import Path
from typing import Any


def change_config(run: Path, **fields: Any) -> None:
    """Set fields of config.json, and make its own hash right again.

    A field that is None is taken out.
    """
    path = run / "config.json"
    config = json.loads(path.read_text("utf-8")) | fields | {"sha256": None}
    config = {name: value for name, value in config.items() if value is not None}
    said = json.dumps(config, sort_keys=True)
    config["sha256"] = hashlib.sha256(said.encode()).hexdigest()
    path.write_text(json.dumps(config), "utf-8")


def seal(run: Path) -> None:
    """Make every hash in config.json that of the file that is there now."""
    names = json.loads((run / "config.json").read_text("utf-8"))["files"]
    digest = {
        name: hashlib.sha256((run / name).read_bytes()).hexdigest()
        for name in (*names, "model.safetensors")
    }
    weights = [digest.pop("model.safetensors")]
    change_config(run, files=digest, weights=weights)
