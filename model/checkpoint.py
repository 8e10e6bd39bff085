"""Save and load a run directory: what training leaves and translation needs.

`config.json` (format number, shape, how the run was made, SHA-256 of every file that is
read and of itself), `model.safetensors`, the tokenizers and word lists. Each is written
beside and renamed, so that a directory is whole at every moment. It may be a
stranger's: sizes, hashes and shapes are checked, in this order, before anything is
parsed or allocated, and no path that it holds is followed.
"""

import errno
import hashlib
import json
import math
import os
import pickle
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from model.config import ModelConfig

if TYPE_CHECKING:  # torch takes a second to import; not all that read a run need it
    from torch import Tensor

    from model.transformer import Transformer

FORMAT, OLDER = 2, 1
"""The format that is written, and the one that is read as well: it has no hash of
itself and of the weights, and no training can go on from it."""
MB = 2**20
MOST_BYTES = {
    "source.spm": 32 * MB,
    "target.spm": 32 * MB,
    "glossary.tsv": 32 * MB,
    "source_words.txt": 32 * MB,
}
"""The files beside the model that are read, and the size up to which they are."""
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_MOST_CONFIG, _MOST_HEADER = MB, 4 * MB


class RunError(ValueError):
    """A run directory that is missing, damaged or of an unknown format."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the name of a file beside path, which is renamed to path at the end.

    A reader, or a crash, sees the old file or the new one, never half of one. What is
    no regular file (a pipe, /dev/null) is written to and stays what it is.
    """
    if not path.parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "no such folder", str(path.parent))
    if path.exists() and not path.is_file():
        yield path
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield beside
        sync(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Have the system write a file, or what a folder lists, to the disk by now."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        # Some file systems, of networks mostly, cannot do that for a folder.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(opened)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make the file that replaces path, as `replacing` does."""
    with replacing(path) as beside:
        write(beside)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal.

    Raises `RunError` for what is no file and might have no end (/dev/zero, a pipe).
    """
    if path.exists() and not path.is_file():
        raise RunError(f"{path} is no ordinary file: give one")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_config(run: Path, model: ModelConfig, about: Mapping[str, Any]) -> None:
    """Write config.json: the shape, what `about` says, and the hashes of the files."""
    names = sorted(name for name in MOST_BYTES if (run / name).is_file())
    config = {
        "format": FORMAT,
        "model": asdict(model),
        **about,
        "files": {name: sha256(run / name) for name in names},
        "weights": [],
    }
    write_config(run, config)


def is_run(folder: Path) -> bool:
    """Tell whether a folder is a run directory, whole or damaged, of any version."""
    try:
        config = json.loads((folder / _CONFIG).read_text("utf-8"))
    except OSError:
        return False
    except (ValueError, RecursionError):
        return (folder / "source.spm").is_file() and (folder / _WEIGHTS).is_file()
    return isinstance(config, dict) and {"format", "model"} <= config.keys()


def write_config(run: Path, config: Mapping[str, Any]) -> None:
    """Write config.json, with its own hash.

    Raises `RunError` where it would be larger than what is read.
    """
    config = {**config, "sha256": _digest(config)}
    text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
    if len(text.encode()) > _MOST_CONFIG:
        raise RunError(
            f"{run / _CONFIG} would be larger than {_MOST_CONFIG:,} bytes: join the "
            "files of the corpus into fewer"
        )
    write_atomically(run / _CONFIG, lambda to: to.write_text(text, "utf-8"))


def _digest(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all that config.json says but this."""
    said = {name: value for name, value in config.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def save_weights(run: Path, weights: "Mapping[str, Tensor]") -> None:
    """Write model.safetensors, as fp32, and its hash into config.json.

    Two files cannot be replaced at once, so config.json first names both weights, the
    old and the new; a crash between any two of these writes leaves a run that loads.
    """
    from safetensors.torch import save

    tensors = {name: tensor.float().contiguous() for name, tensor in weights.items()}
    content = save(tensors)
    new = hashlib.sha256(content).hexdigest()
    config = _parsed_config(run)
    named = [digest for digest in config.get("weights", ()) if digest != new]
    write_config(run, config | {"weights": [*named, new]})
    write_atomically(run / _WEIGHTS, lambda to: to.write_bytes(content))
    write_config(run, config | {"weights": [new]})


def read_config(run: Path) -> dict[str, Any]:
    """Return a run directory's config.json, its files checked against their hashes.

    What an older one lacks, `languages`, `corpora`, `learned_from` and
    `started_from`, is filled in. Raises `RunError`, which says what to do.
    """
    config = _parsed_config(run)
    hashes = config.get("files")
    if not isinstance(hashes, dict):
        raise RunError(f"{run / _CONFIG} names no files: train the model again")
    for name in sorted({*MOST_BYTES, *hashes}):
        if name not in MOST_BYTES:
            raise RunError(f"{run / _CONFIG} names a file that no run has: {name!r}")
        if name in hashes or _is_there(run / name):
            _check_file(run / name, MOST_BYTES[name], [hashes.get(name)])
    config = {"languages": ["en", "ja"], "corpora": {}} | config
    if config["languages"] not in (["en", "ja"], ["ja", "en"]):
        raise RunError(f"{run / _CONFIG} names languages that this version lacks")
    if not isinstance(config["corpora"], dict):
        raise RunError(f"{run / _CONFIG} names no corpora: train the model again")
    names = config.setdefault("learned_from", _all_corpora(config["corpora"]))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RunError(f"{run / _CONFIG} names no corpora: train the model again")
    if not isinstance(config.setdefault("started_from", ""), str):
        raise RunError(f"{run / _CONFIG} names no run to start from: train it again")
    return config


def _all_corpora(corpora: Mapping[str, Any]) -> list[str]:
    """Return what an older run may have learned from: all corpora that it read."""
    names = [
        "starter" if name.startswith("starter:") else name for name in map(str, corpora)
    ]
    return list(dict.fromkeys(names)) or ["corpora that it does not name"]


def refuse_export(run: Path, config: Mapping[str, Any]) -> None:
    """Raise `RunError` where a folder holds an export, without the run's weights."""
    if "exported" in config:
        raise RunError(f"{run} is an export for CTranslate2: name the run it is of")


def _parsed_config(run: Path) -> dict[str, Any]:
    """Return what config.json says, of a known format and as it was written."""
    path = run / _CONFIG
    if not _is_there(path):
        raise RunError(
            f"no model in {run}: train one with `python train.py --out "
            f"{quote(str(run))}`, or name another run"
        )
    _check_size(path, _MOST_CONFIG)
    try:
        config = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not JSON ({error}): train the model again") from None
    found = config.get("format") if isinstance(config, dict) else None
    if type(found) is not int or found not in {FORMAT, OLDER}:
        raise RunError(
            f"{path} has format {found!r}; this version reads formats {OLDER} and "
            f"{FORMAT}: use the version of tiny-enja that wrote it, or train the model "
            "again"
        )
    if found != OLDER and config.get("sha256") != _digest(config):
        raise RunError(f"{path} is damaged or was changed: train the model again")
    return dict(config)


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _leads_nowhere_else(path: Path) -> bool:
    """Tell whether path is no link, or one as the Hugging Face cache has them.

    There a snapshot's files are links into `blobs`, beside the folder of snapshots.
    """
    if not path.is_symlink():
        return True
    snapshots = path.parent.resolve().parent
    blobs = snapshots.with_name("blobs")
    return snapshots.name == "snapshots" and path.resolve().parent == blobs


def _check_size(path: Path, most: int) -> None:
    """Raise `RunError` unless path is a file of its own folder, and of a sane size."""
    if not _leads_nowhere_else(path) or not path.is_file():
        raise RunError(f"{path} is no ordinary file: train the model again")
    if (size := path.stat().st_size) > most:
        raise RunError(
            f"{path} has {size:,} bytes, and at most {most:,} are read: train the "
            "model again"
        )


def _check_file(path: Path, most: int, digests: list[Any]) -> None:
    """Raise `RunError` unless a file has a sane size and one of the digests."""
    if _is_there(path):
        _check_size(path, most)
    if not _is_there(path) or sha256(path) not in digests:
        raise RunError(f"{path} is missing or damaged: train the model again")


def load_model(run: Path, device: str = "cpu") -> "Transformer":
    """Return the model of a run directory, in eval mode.

    Raises `RunError` where there is none or it does not fit its config.json.
    """
    while True:
        config = read_config(run)
        try:
            return _load_model(run, config).to(device).eval()
        except RunError:
            # A training may have put another model there since config.json was read.
            if read_config(run) == config:
                raise


def _load_model(run: Path, config: Mapping[str, Any]) -> "Transformer":
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from model.transformer import Transformer

    refuse_export(run, config)
    shape = model_config(config, run / _CONFIG)
    path = run / _WEIGHTS
    if not _is_there(path):
        raise RunError(f"{path} is missing: the training has not saved a model yet")
    # Counted before a model is made: its memory is then no more than the file's size.
    most = 4 * shape.parameters + _MOST_HEADER
    _check_size(path, most)
    digests = config.get("weights")
    if config["format"] != OLDER:
        _check_file(path, most, digests if isinstance(digests, list) else [])
    try:
        _check_header(path, shape.parameters)
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is damaged ({error}): train the model again") from None
    if not all(tensor.isfinite().all() for tensor in weights.values()):
        raise RunError(f"{path} holds numbers that are not finite: train it again")
    model = Transformer(shape)
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if {name: tensor.shape for name, tensor in weights.items()} != expected:
        raise _misfit(path)
    model.load_state_dict(weights)
    return model


def _misfit(path: Path) -> RunError:
    return RunError(f"{path} does not fit config.json: train the model again")


def _check_header(path: Path, parameters: int) -> None:
    """Raise `RunError` unless a weights file has so many numbers, in fp32, alone."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        names = file.keys()  # it is no dictionary: going over it fails
        slices = [file.get_slice(name) for name in names]
        found = sum(math.prod(part.get_shape()) for part in slices)
        dtypes = {part.get_dtype() for part in slices}
        notes = file.metadata() or {}
    if found != parameters or dtypes != {"F32"} or len(notes) > 1:
        raise _misfit(path)


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

    def write(to: Path) -> None:
        with to.open("wb") as file:
            try:
                torch.save(dict(state), file)
            except RuntimeError as error:  # torch's, in place of the system's
                raise error.__context__ or error from None
        if latest.is_file():  # not before the new one is whole
            _keep_previous(latest, run / _PREVIOUS)

    write_atomically(latest, write)


def _keep_previous(latest: Path, previous: Path) -> None:
    """Give the latest state a second name: at every moment one is whole by its first.

    Some file systems, such as those of USB sticks, know no second names.
    """
    previous.unlink(missing_ok=True)
    try:
        previous.hardlink_to(latest)
    except OSError:
        write_atomically(previous, lambda to: shutil.copyfile(latest, to))


def load_state(run: Path) -> tuple[dict[str, Any], bool]:
    """Return the latest whole training state, and whether it is the one before last.

    Raises `RunError` where there is none.
    """
    import torch

    for name in (_STATE, _PREVIOUS):
        try:
            with zipfile.ZipFile(run / name) as archive:
                # Packed, a small file could ask for all memory; torch packs nothing.
                if any(entry.compress_type for entry in archive.infolist()):
                    continue
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
