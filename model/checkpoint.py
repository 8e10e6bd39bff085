"""Save and load a run directory: what training leaves and translation needs.

`config.json` (format number, shape, how the run was made, SHA-256 of the tokenizers
and word lists), `model.safetensors`, and those files. Each is written beside and
renamed, so that a directory is whole at every moment.
"""

import errno
import hashlib
import json
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.config import ModelConfig

if TYPE_CHECKING:  # torch takes a second to import; not all that read a run need it
    from torch import Tensor

    from model.transformer import Transformer

FORMAT = 1
_WEIGHTS = "model.safetensors"


class RunError(ValueError):
    """A run directory that is missing, damaged or of an unknown format."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside path, then rename it to path.

    A reader, or a crash, sees the old file or the new one, never half of one. What is
    no regular file (a pipe, /dev/null) is written to and stays what it is.
    """
    if not path.parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "no such folder", str(path.parent))
    if path.exists() and not path.is_file():
        write(path)
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(beside)
        with beside.open("rb+") as written:
            os.fsync(written.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_config(run: Path, model: ModelConfig, about: Mapping[str, Any]) -> None:
    """Write config.json: the shape, what `about` says, and the hashes of the files."""
    names = sorted(
        path.name for path in run.iterdir() if path.suffix in {".spm", ".tsv", ".txt"}
    )
    config = {
        "format": FORMAT,
        "model": asdict(model),
        **about,
        "files": {name: sha256(run / name) for name in names},
    }
    write_config(run, config)


def write_config(run: Path, config: Mapping[str, Any]) -> None:
    """Write config.json as it is given."""
    text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
    write_atomically(run / "config.json", lambda to: to.write_text(text, "utf-8"))


def save_weights(run: Path, weights: "Mapping[str, Tensor]") -> None:
    """Write model.safetensors, as fp32."""
    from safetensors.torch import save

    tensors = {name: tensor.float().contiguous() for name, tensor in weights.items()}
    content = save(tensors)
    write_atomically(run / _WEIGHTS, lambda to: to.write_bytes(content))


def read_config(run: Path) -> dict[str, Any]:
    """Return a run directory's config.json, its files checked against their hashes.

    Raises `RunError`, which says what to do.
    """
    path = run / "config.json"
    if not path.is_file():
        raise RunError(
            f"no model in {run}: train one with `python train.py --out {run}`, or name "
            "another run"
        )
    try:
        config = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not JSON ({error}): train the model again") from None
    found = config.get("format") if isinstance(config, dict) else None
    if found != FORMAT:
        raise RunError(
            f"{path} has format {found!r}; this version reads format {FORMAT}: use the "
            "version of tiny-enja that wrote it, or train the model again"
        )
    hashes = config.get("files")
    if not isinstance(hashes, dict):
        raise RunError(f"{path} names no files: train the model again")
    for name, digest in hashes.items():
        if Path(name).name != name:
            raise RunError(f"{path} names a file outside its folder: {name!r}")
        if not (run / name).is_file() or sha256(run / name) != digest:
            raise RunError(f"{run / name} is missing or damaged: train the model again")
    return dict(config)


def load_model(run: Path, device: str = "cpu") -> "Transformer":
    """Return the model of a run directory, in eval mode.

    Raises `RunError` where there is none or it does not fit its config.json.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from model.transformer import Transformer

    config = model_config(read_config(run), run / "config.json")
    path = run / _WEIGHTS
    if not path.is_file():
        raise RunError(f"{path} is missing: the training has not saved a model yet")
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is damaged ({error}): train the model again") from None
    misfit = RunError(f"{path} does not fit config.json: train the model again")
    # Counted before a model is made: its memory is then no more than the file's size.
    if sum(tensor.numel() for tensor in weights.values()) != config.parameters:
        raise misfit
    model = Transformer(config)
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if {name: tensor.shape for name, tensor in weights.items()} != expected:
        raise misfit
    model.load_state_dict(weights)
    return model.to(device).eval()


def model_config(config: Mapping[str, Any], path: Path) -> ModelConfig:
    """Return the shape that a config.json gives; path is named in errors."""
    shape = config.get("model")
    known = {field.name for field in fields(ModelConfig)}
    if not isinstance(shape, dict) or set(shape) - known:
        raise RunError(f"{path} describes no model that this version knows")
    try:
        return ModelConfig(**shape)
    except (TypeError, ValueError) as error:
        raise RunError(f"{path}: {error}") from None


_STATE, _PREVIOUS = "training_state.pt", "training_state.previous.pt"
_UNREADABLE = (
    OSError,
    RuntimeError,
    EOFError,
    ValueError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a damaged state raises."""


def save_state(run: Path, state: Mapping[str, Any]) -> None:
    """Write what a resumed training needs; the one before it is kept as well."""
    import torch

    latest = run / _STATE
    if latest.is_file():
        # A second name, not a rename: at every moment a whole state has the first name.
        previous = run / _PREVIOUS
        previous.unlink(missing_ok=True)
        previous.hardlink_to(latest)
    write_atomically(latest, lambda to: torch.save(dict(state), to))


def load_state(run: Path) -> tuple[dict[str, Any], bool]:
    """Return the latest whole training state, and whether it is the one before last.

    Raises `RunError` where there is none.
    """
    import torch

    for name in (_STATE, _PREVIOUS):
        try:
            with zipfile.ZipFile(run / name) as archive:
                if archive.testzip() is not None:  # torch looks at no checksum
                    continue
            state = torch.load(run / name, map_location="cpu", weights_only=True)
        except _UNREADABLE:
            continue
        if isinstance(state, dict):
            return state, name == _PREVIOUS
    raise RunError(f"{run} holds no training to go on with: start one without --resume")


def drop_latest_state(run: Path) -> None:
    """Put the training state before last in place of a damaged latest one.

    Otherwise the next save would keep the damaged one as the one before it.
    """
    (run / _PREVIOUS).replace(run / _STATE)
