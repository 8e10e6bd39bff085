"""Write and read attention traces: JSON, JSON lines, NPZ; and hand them to BertViz.

The JSON format, version 1, is described in docs/attention-file.md.
"""

import io
import json
import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from explain.kinds import KINDS, SIDES, Kind
from explain.trace import (
    VALUES,
    AttentionMap,
    AttentionTrace,
    ModelNote,
    Projections,
    Source,
    Target,
    TraceError,
    check,
)
from model.checkpoint import replacing, write_atomically

FORMAT, VERSION = "attention-trace", 1
SUFFIXES = (".json", ".jsonl", ".npz")
_MATRICES = ("w_q", "w_k", "w_v", "w_o")
_MOST_LAYERS = 1_000
# A stranger's file must not be able to ask for all memory. The largest trace that the
# commands make with the base preset, 128 by 128 tokens with all values, is 70 MB
# of JSON. Lists, objects and texts cost a program many times their length in a file.
_MOST_JSON, _MOST_UNPACKED, _MOST_PARTS = 200_000_000, 1_000_000_000, 2_000_000
_MOST_FILE = 2_000_000_000


def to_json(trace: AttentionTrace, values: bool = False) -> dict[str, Any]:
    """Return a trace as JSON's types; with values, so that all can be recomputed."""
    written: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "model": asdict(trace.model),
        "source": asdict(trace.source),
        "target": asdict(trace.target),
        "maps": [_map_to_json(found, values) for found in trace.maps],
    }
    if values:
        written["projections"] = [
            {
                "kind": found.kind,
                "layer": found.layer,
                **{name.upper(): _numbers(getattr(found, name)) for name in _MATRICES},
            }
            for found in trace.projections
        ]
    return written


def from_json(data: Any) -> AttentionTrace:
    """Return the trace that `to_json` gave, checked.

    Raises `TraceError` where data is no trace, is of an unknown version, or holds
    numbers that contradict each other.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise TraceError(f'not an attention trace: its "format" is not "{FORMAT}"')
    if data.get("version") != VERSION:
        raise TraceError(
            f"a trace of version {data.get('version')!r}; this program reads {VERSION}"
        )
    try:
        trace = AttentionTrace(
            model=_model_note(data["model"]),
            source=_record(Source, data["source"]),
            target=_record(Target, data["target"]),
            maps=tuple(_map_from_json(found) for found in data["maps"]),
            projections=tuple(
                Projections(
                    _kind(found["kind"]),
                    _layer(found["layer"]),
                    *(_array(found[name.upper()]) for name in _MATRICES),
                )
                for found in data.get("projections", ())
            ),
        )
        _check_tokens(trace)
        _check_places(trace)
        check(trace)
        _check_projections(trace)
    except TraceError:
        raise
    except (
        KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError,
    ) as error:  # fmt: skip
        raise TraceError(f"a damaged attention trace ({error!r})") from None
    return trace


def check_name(
    path: Path,
    sentences: int | None = None,
    suffixes: Sequence[str] = SUFFIXES,
    of_many: Sequence[str] = (".jsonl",),
) -> None:
    """Raise `ValueError` unless traces of so many sentences can be written to path.

    sentences is None while their number is not known; `of_many` are the suffixes of
    files that hold any number.
    """
    if path.suffix not in suffixes:
        raise ValueError(f"{path}: give a name that ends in {', '.join(suffixes)}")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}; make it first")
    if sentences == 0 and path.suffix != ".jsonl":
        raise ValueError(f"{path}: there is no sentence to write the attention of")
    if path.suffix not in of_many and sentences not in {None, 1}:
        raise ValueError(
            f"{path} holds one sentence, and there are {sentences}: give a file that "
            f"ends in {' or '.join(of_many)}"
        )


def write(path: Path, traces: Sequence[AttentionTrace], values: bool = False) -> None:
    """Write traces to a .json (one trace), .jsonl (one a line) or .npz (one) file.

    values adds to JSON what .npz always has. The file appears whole or not at all.
    """
    check_name(path, len(traces))
    if path.suffix == ".npz":
        content = _npz_bytes(traces[0])
        write_atomically(path, lambda beside: beside.write_bytes(content))
    else:
        with writing(path, values) as add:
            for trace in traces:
                add(trace)


@contextmanager
def writing(
    path: Path, values: bool = False
) -> Iterator[Callable[[AttentionTrace], object]]:
    """Give a function that adds a trace to a new file of JSON lines.

    It keeps none in memory. The file appears whole, at the end, or not at all.
    """
    with replacing(path) as beside, beside.open("wb") as file:
        yield lambda trace: file.write(_json_bytes(trace, values))


def read(path: Path) -> list[AttentionTrace]:
    """Return the traces of a file that `write` made, checked.

    Raises `TraceError` where it holds anything else, and `OSError` where it cannot be
    read.
    """
    try:
        if path.stat().st_size > _MOST_FILE:
            raise TraceError("larger than any file of traces: not read")
        if path.suffix == ".npz":
            return [_read_npz(path)]
        with path.open("rb") as file:
            if path.suffix == ".jsonl":
                lines = iter(lambda: file.readline(_MOST_JSON + 1), b"")
                return [from_json(_parsed(line)) for line in lines if line.strip()]
            return [from_json(_parsed(file.read(_MOST_JSON + 1)))]
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    except _UNREADABLE as error:
        raise TraceError(f"{path}: not an attention trace ({error})") from None


_UNREADABLE = (
    ValueError,
    EOFError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a damaged file of traces raises."""


def _parsed(content: bytes) -> Any:
    """Return what JSON says, unless it would need more memory than any trace."""
    parts = sum(content.count(mark) for mark in (b"[", b"{", b'"'))
    if len(content) > _MOST_JSON or parts > _MOST_PARTS:
        raise TraceError("larger than any trace: not read")
    return json.loads(content.decode("utf-8"))


def to_bertviz(trace: AttentionTrace) -> list[dict[str, Any]]:
    """Return the keyword arguments of BertViz's `head_view` and `model_view`.

    `for call in to_bertviz(trace): head_view(**call)` shows everything. It is one call
    where encoder and decoder have equally many layers, and three (encoder, decoder,
    cross) where not: a BertViz call shows as many layers of each kind as of the first.
    Maps are fp32 tensors, (1, H, rows, columns), a list of them by layer; the decoder's
    tokens are those that its rows read.
    """
    import torch

    views: dict[Kind, str] = {
        "encoder_self": "encoder_attention",
        "decoder_self": "decoder_attention",
        "cross": "cross_attention",
    }
    maps: dict[Kind, list[torch.Tensor]] = {
        kind: [
            torch.tensor(trace.map(kind, layer).weights)[None]
            for layer in range(trace.layers(kind))
        ]
        for kind in KINDS
    }
    tokens: dict[str, dict[str, Any]] = {
        "source": {"encoder_tokens": list(trace.source.tokens)},
        "target": {"decoder_tokens": list(trace.target.tokens_in)},
    }
    calls = [
        {views[kind]: maps[kind]} | tokens[SIDES[kind][0]] | tokens[SIDES[kind][1]]
        for kind in KINDS
    ]
    if len({len(layers) for layers in maps.values()}) == 1:
        return [calls[0] | calls[1] | calls[2]]
    return calls


def _json_bytes(trace: AttentionTrace, values: bool) -> bytes:
    text = json.dumps(
        to_json(trace, values),
        ensure_ascii=False,
        allow_nan=False,
        separators=(",", ":"),
    )
    return text.encode() + b"\n"


def _npz_bytes(trace: AttentionTrace) -> bytes:
    """Return the trace's arrays, and its texts as one JSON string under `about`."""
    arrays: dict[str, np.ndarray] = {}
    for found in trace.maps:
        place = f"{found.kind}.{found.layer}"
        arrays[f"{place}.weights"] = found.weights
        arrays |= {f"{place}.{name}": value for name, value in found.values.items()}
    for matrices in trace.projections:
        place = f"{matrices.kind}.{matrices.layer}"
        arrays |= {f"{place}.{name}": getattr(matrices, name) for name in _MATRICES}
    about = to_json(trace.without_values()) | {
        "maps": [{"kind": found.kind, "layer": found.layer} for found in trace.maps]
    }
    text = json.dumps(about, ensure_ascii=False)
    written = io.BytesIO()
    np.savez_compressed(written, about=np.array(text), **arrays)  # type: ignore[arg-type]
    return written.getvalue()


def _check_arrays(path: Path) -> None:
    """Raise `TraceError` unless the arrays of an .npz are as large as they say."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > _MOST_UNPACKED:
            raise TraceError("larger unpacked than any trace: not read")
        for entry in entries:
            if entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise TraceError(f"{entry.filename} is compressed in no known way")
            with archive.open(entry) as file:
                if np.lib.format.read_magic(file) != (1, 0):
                    raise TraceError(f"{entry.filename} is of no known kind")
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            # numpy would make room for what the header says before it reads.
            size = math.prod(shape) * dtype.itemsize
            if min(shape, default=0) < 0 or size > entry.file_size:
                raise TraceError(f"{entry.filename} is shorter than it says")
            if dtype.kind not in "fU" or dtype.hasobject:
                raise TraceError(f"{entry.filename} holds something else than numbers")


def _read_npz(path: Path) -> AttentionTrace:
    _check_arrays(path)
    with np.load(path, allow_pickle=False) as arrays:
        if "about" not in arrays:
            raise TraceError('not an attention trace: it has no "about"')
        about = _parsed(str(arrays["about"]).encode())
        try:
            for found in about["maps"]:
                place = f"{found['kind']}.{found['layer']}"
                found["weights"] = arrays[f"{place}.weights"]
                found["values"] = {
                    name: arrays[f"{place}.{name}"]
                    for name in (*VALUES, "memory")
                    if f"{place}.{name}" in arrays
                }
            about["projections"] = [
                {"kind": found["kind"], "layer": found["layer"]}
                | {n.upper(): arrays[f"{found['kind']}.{found['layer']}.{n}"]
                   for n in _MATRICES}
                for found in about["maps"]
                if f"{found['kind']}.{found['layer']}.w_q" in arrays
            ]  # fmt: skip
        except (KeyError, TypeError) as error:
            raise TraceError(f"a damaged attention trace ({error!r})") from None
    return from_json(about)


def _map_to_json(found: AttentionMap, values: bool) -> dict[str, Any]:
    written: dict[str, Any] = {
        "kind": found.kind,
        "layer": found.layer,
        "rows": found.rows,
        "columns": found.columns,
        "weights": _numbers(found.weights),
    }
    if values:
        written["values"] = {n: _numbers(value) for n, value in found.values.items()}
    return written


def _map_from_json(data: Mapping[str, Any]) -> AttentionMap:
    kind = _kind(data["kind"])
    if (data.get("rows"), data.get("columns")) not in {SIDES[kind], (None, None)}:
        raise ValueError(f"a {kind} map with rows of {data.get('rows')!r}")
    values = {
        str(name): _array(value) for name, value in data.get("values", {}).items()
    }
    if values and not set(VALUES) <= set(values):
        raise ValueError(f"a map with some of its values: {sorted(values)}")
    weights = _array(data["weights"])
    if weights.ndim != 3:
        raise ValueError(f"weights of {weights.ndim} dimensions")
    return AttentionMap(kind, _layer(data["layer"]), weights, values)


def _check_tokens(trace: AttentionTrace) -> None:
    source, target = trace.source, trace.target
    lengths = {len(target.tokens_in), len(target.tokens_out), len(target.ids_in),
               len(target.ids_out), len(target.log_probs)}  # fmt: skip
    if len(source.tokens) != len(source.ids) or len(lengths) != 1:
        raise TraceError("a trace whose token lists have unlike lengths")


def _check_places(trace: AttentionTrace) -> None:
    """Raise `TraceError` where a map or a matrix is there twice, or one is missing."""
    for parts in (trace.maps, trace.projections):
        places = [(part.kind, part.layer) for part in parts]
        for kind in KINDS:
            layers = [layer for found, layer in places if found == kind]
            if sorted(layers) != list(range(len(layers))):
                raise TraceError(f"{kind} maps of layers {layers}")
    for kind in ("decoder_self", "cross"):
        if not any(found.kind == kind for found in trace.maps):
            raise TraceError(f"a trace without {kind} maps")


def _check_projections(trace: AttentionTrace) -> None:
    """Raise `TraceError` unless the matrices are finite and fit the heads.

    Their sides are H*K; of a map without values any K will do.
    """
    for found in trace.projections:
        its_map = trace.map(found.kind, found.layer)
        H, side = len(its_map.weights), max(found.w_q.shape, default=0)
        K = its_map.values["q"].shape[2] if its_map.values else side // H
        for name in _MATRICES:
            matrix = getattr(found, name)
            if matrix.shape != (H * K, H * K) or not np.isfinite(matrix).all():
                raise TraceError(
                    f"{name.upper()} of the {found.kind} map of layer {found.layer} "
                    f"has shape {matrix.shape}, not {(H * K, H * K)}, or a number that "
                    "is not finite"
                )


def _record(kind: type, data: Mapping[str, Any]) -> Any:
    """Return a Source or Target of JSON's lists, their members' types checked."""
    made = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items()})
    for name, value in vars(made).items():
        types: tuple[type, ...] = (str,)
        if name.startswith("ids"):
            types = (int,)
        elif name == "log_probs":
            types = (int, float)
        members: Iterable[Any] = [value] if name == "text" else value
        if types != (str,) and not all(abs(member) < 2**31 for member in members):
            raise ValueError(f"{name} holds a number that is out of bounds")
        if not all(isinstance(member, types) for member in members):
            raise ValueError(f"{name} holds something else than {types[0].__name__}")
    return made


def _model_note(data: Mapping[str, Any]) -> ModelNote:
    note = ModelNote(**data)
    texts = isinstance(note.name, str) and isinstance(note.weights_sha256, str)
    if not texts or not isinstance(note.config, dict):
        raise ValueError("a model that is described by something else than text")
    return note


def _layer(number: Any) -> int:
    if type(number) is not int or not 0 <= number < _MOST_LAYERS:
        raise ValueError(f"a layer {number!r}")
    return number


def _kind(name: Any) -> Any:
    if name not in KINDS:
        raise ValueError(f"an unknown kind of map: {name!r}")
    return name


def _array(data: Any) -> Any:
    return np.asarray(data, dtype=np.float32)


def _numbers(array: np.ndarray) -> Any:
    """Return nested lists; nine digits give back the same fp32."""
    flat = [float(f"{value:.9g}") for value in array.ravel().tolist()]
    nested: Any = flat
    for size in reversed(array.shape[1:]):
        nested = [nested[i : i + size] for i in range(0, len(nested), size)]
    return nested
