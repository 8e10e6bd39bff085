"""Every source of sentence pairs.

Line files are read by one strict reader. (The library's own CSV and text loaders lose a
column, turn `None` into a missing value and split at `\\r`.) Parquet files, folders of
them and sets of the Hugging Face Hub are read through `datasets.load_dataset`. All
become a `datasets.Dataset` with the string columns `source` and `target`.
"""

import csv
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import datasets
import pyarrow
from datasets import Dataset, Features, Value, load_dataset
from datasets.exceptions import DatasetsError
from datasets.table import InMemoryTable
from huggingface_hub import errors as hub_errors

from data.text import TextError, read_lines

Pair = tuple[str, str]
FEATURES = Features({"source": Value("string"), "target": Value("string")})
COLUMNS = ("en", "ja")
"""The columns of a table of which no others are named."""
HUB = "hub:"
TABLES = (".jsonl", ".csv", ".parquet")
HUB_SECONDS = 5.0
"""How long the Hub may take to answer at all."""
_AT_ONCE = 10_000
# That of the HTTP client, which is another one from version to version.
_HubError = hub_errors.HTTPError  # type: ignore[attr-defined]
# No UTF-8 text holds a lone surrogate, so one can stand for a character.
_CARRIAGE_RETURN = "\udc0d"


def split_columns(
    name: str, columns: tuple[str, str] = COLUMNS
) -> tuple[str, tuple[str, str]]:
    """Return a corpus's name without its columns, and them: `a.csv:english,japanese`.

    columns are those of a name without any.
    """
    found = re.fullmatch(r"(.+):([^:,]+),([^:,]+)", name)
    if found and (
        found[1].startswith(HUB) or found[1].endswith(TABLES) or Path(found[1]).is_dir()
    ):
        return found[1], (found[2], found[3])
    return name, columns


def corpus_hashes(name: str) -> dict[str, str]:
    """Return the SHA-256 of each file of a corpus; of a Hub set, its fingerprint there.

    Raises `TextError` or `OSError` where they cannot be read.
    """
    bare, _ = split_columns(name)
    if bare.startswith(HUB):
        return {bare: str(_hub_set(bare)._fingerprint)}
    paths = [Path(part) for part in _files(bare)]
    if paths[0].is_dir():
        inside = (path.relative_to(paths[0]) for path in paths[0].rglob("*"))
        paths = [paths[0] / path for path in sorted(inside)
                 if not any(part.startswith(".") for part in path.parts)]  # fmt: skip
    return file_hashes(paths)


def file_hashes(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files by their paths; folders among them are passed over.

    Raises `TextError` or `OSError` where one cannot be read.
    """
    found = {}
    for path in paths:
        # What is no file might have no end (/dev/zero, a pipe).
        if path.exists() and not path.is_file() and not path.is_dir():
            raise TextError(f"{path} is no ordinary file: give one")
        if not path.is_dir():
            with path.open("rb") as file:
                found[str(path)] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def read_corpus(
    name: str, reverse: bool = False, columns: tuple[str, str] = COLUMNS
) -> Dataset:
    """Return the pairs of a corpus that fits into memory; for the rest `read_pairs`."""
    return make_dataset(read_pairs(name, reverse, columns))


def read_pairs(
    name: str, reverse: bool = False, columns: tuple[str, str] = COLUMNS
) -> Iterator[Pair]:
    """Yield the pairs of a corpus, read as they are asked for.

    A name is `FILE.tsv`, two line-aligned files `FILE,FILE`, a `.jsonl`, `.csv` or
    `.parquet` file, a folder that `datasets` can load, or `hub:OWNER/NAME/CONFIG`.
    The last five are tables: their columns follow a colon, or are those given. reverse
    swaps the two sides. Raises `TextError` where a file breaks the contract or is
    empty, and `OSError` where it cannot be read.
    """
    bare, columns = split_columns(name, columns)
    pairs = _read(bare, columns)
    first = next(pairs, None)
    if first is None:
        raise TextError(f"{bare} holds no sentence pair: give another corpus")
    for one, other in chain([first], pairs):
        yield (other, one) if reverse else (one, other)


def _read(name: str, columns: tuple[str, str]) -> Iterator[Pair]:
    """Return what reads a corpus without columns in its name."""
    path, *others = (Path(part) for part in _files(name))
    if name.startswith(HUB):
        return _read_table(_rows(name, lambda: _hub_set(name)), name, "row", columns)
    if others:
        return _read_two(path, others[0])
    if path.suffix == ".jsonl":
        return _read_table(_json_rows(path), name, "line", columns)
    if path.suffix == ".csv":
        return _read_table(_csv_rows(path), name, "line", columns)
    # Streamed, and not through the library's cache, which may serve a file's old text.
    settings = {"split": "train", "streaming": True}
    if path.suffix == ".parquet":
        rows = _rows(name, lambda: load_dataset("parquet", data_files=name, **settings))
        return _read_table(rows, name, "row", columns)
    if path.is_dir():
        rows = _rows(name, lambda: load_dataset(name, **settings))
        return _read_table(rows, name, "row", columns)
    return _read_tsv(path)


def _files(name: str) -> list[str]:
    files = name.split(",")
    if len(files) > 2:
        raise TextError(f"{name}: give one file, or two text files with a comma")
    return files


def make_dataset(pairs: Iterable[Pair]) -> Dataset:
    """Return pairs in memory, as a Dataset whose fingerprint is their content."""
    sources, targets = [], []
    digest = hashlib.sha256()
    for source, target in pairs:
        sources.append(source)
        targets.append(target)
        digest.update(f"{len(source)},{len(target)}:{source}{target}".encode())
    table = pyarrow.table(
        {"source": sources, "target": targets}, schema=FEATURES.arrow_schema
    )
    return Dataset(InMemoryTable(table), fingerprint=digest.hexdigest()[:16])


def write_dataset(pairs: Iterable[Pair], path: Path) -> Dataset:
    """Write pairs to an Arrow file as they come; return it, memory-mapped."""
    rows = iter(pairs)
    with pyarrow.ipc.new_stream(str(path), FEATURES.arrow_schema) as file:
        while some := list(islice(rows, _AT_ONCE)):
            columns = [pyarrow.array(side) for side in zip(*some, strict=True)]
            file.write(pyarrow.record_batch(columns, schema=FEATURES.arrow_schema))
    return Dataset.from_file(str(path))


def pairs_of(dataset: Dataset) -> list[Pair]:
    """Return the pairs of a Dataset."""
    return list(zip(dataset["source"], dataset["target"], strict=True))


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        yield from read_lines(file, str(path))


def _read_tsv(path: Path) -> Iterator[Pair]:
    """Yield the first two columns; there is no quoting."""
    for number, line in enumerate(_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise TextError(
                f"{path}, line {number}: no tab; a row is a sentence, a tab and its "
                "translation"
            )
        yield columns[0], columns[1]


def _read_two(source: Path, target: Path) -> Iterator[Pair]:
    """Yield the pairs of two files of which line N translates line N."""
    counts = [0, 0]
    for pair in zip_longest(_lines(source), _lines(target)):
        one, other = pair
        counts[0] += one is not None
        counts[1] += other is not None
        if one is not None and other is not None:
            yield one, other
    if counts[0] != counts[1]:
        raise TextError(
            f"{source} has {counts[0]} lines and {target} has {counts[1]}: give two "
            "files in which line N translates line N"
        )


# ------------------------------------------------------------------------------ tables


def _read_table(
    rows: Iterator[tuple[int, Mapping[str, Any]]],
    name: str,
    unit: str,
    columns: tuple[str, str],
) -> Iterator[Pair]:
    """Yield two columns of rows, each a number and its values by name.

    A column may be inside another, as in `{"translation": {"en": …, "ja": …}}`.
    """
    first = next(rows, None)
    if first is None:
        return
    paths = [_find(first[1], column, name) for column in columns]
    for number, row in chain([first], rows):
        texts = [_text(row, path, f"{name}, {unit} {number}") for path in paths]
        yield texts[0], texts[1]


def _find(row: Mapping[str, Any], column: str, name: str) -> tuple[str, ...]:
    """Return where in a row a column is: its own name, or also the one it is inside."""
    there: dict[str, tuple[str, ...]] = {}
    for outer, value in row.items():
        inside = value if isinstance(value, dict) else {}
        there |= {f"{outer}.{inner}": (outer, inner) for inner in inside}
        there |= {} if inside else {outer: (outer,)}
    for known in (column, f"translation.{column}"):
        if known in there:
            return there[known]
    raise TextError(
        f"{name} has no column {column!r}; it has {', '.join(there) or 'none'}: name "
        f"two as {name}:ENGLISH,JAPANESE"
    )


def _text(row: Mapping[str, Any], path: tuple[str, ...], where: str) -> str:
    value: Any = row
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    fault = "is missing" if value is None else "is no text"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            fault = "is not Unicode: half a character"
        else:
            return value
    raise TextError(f"{where}: {'.'.join(path)} {fault}; give every row both sentences")


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(_lines(path), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise TextError(
                f"{path}, line {number}: no JSON object; a row is one, as "
                '{"en": "…", "ja": "…"}'
            )
        yield number, row


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    r"""Yield the rows of a CSV file (RFC 4180) whose first row names the columns.

    Inside quotes a line end is text. A lone `\r` is text anywhere, which the csv module
    takes for a line end.
    """
    lines = (line.replace("\r", _CARRIAGE_RETURN) + "\n" for line in _lines(path))
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            values = [value.replace(_CARRIAGE_RETURN, "\r") for value in row]
            header = header or values
            if len(values) != len(header):
                fault = (
                    f"{len(values)} values under {len(header)} columns; put a text "
                    "with a comma into quotes"
                )
                if not values or len(values) == 1 and not values[0].strip():
                    fault = "the line is blank; delete it"
                raise TextError(f"{path}, line {reader.line_num}: {fault}")
            if header is not values:
                yield reader.line_num, dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise TextError(
            f"{path}, line {reader.line_num}: {error}; mend its quotes"
        ) from None


def _rows(name: str, load: Callable[[], Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of what `load_dataset` gives; its failures become one line."""
    with _one_line(name):
        table = load()
        if table.info.builder_name in {"csv", "text"}:  # they break the contract
            raise TextError(f"{name} holds text files: give one of them by its name")
        batches = table.with_format("arrow").iter(_AT_ONCE)
        yield from enumerate(chain.from_iterable(b.to_pylist() for b in batches), 1)


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Make a `TextError` that names the corpus of what `datasets` raises."""
    try:
        yield
    except TextError:
        raise
    # RuntimeError is for a set that is a script.
    except (DatasetsError, OSError, ValueError, RuntimeError, _HubError) as error:
        raise TextError(f"{name}: {' '.join(str(error).split())}") from None


@functools.cache
def _hub_set(name: str) -> Dataset:
    """Return a set of the Hugging Face Hub, downloaded at its first use."""
    owner, _, rest = name.removeprefix(HUB).partition("/")
    title, _, config = rest.partition("/")
    if not owner or not title:
        raise TextError(f"{name}: give hub:OWNER/NAME or hub:OWNER/NAME/CONFIG")
    _check_reachable(name)
    with _one_line(name):
        return load_dataset(f"{owner}/{title}", config or None, split="train")


def _check_reachable(name: str) -> None:
    """Raise `TextError` soon where no Hub answers; the library would try for minutes.

    With HF_HUB_OFFLINE=1 the library reads its cache and asks nobody.
    """
    if datasets.config.HF_HUB_OFFLINE:
        return
    try:
        with urlopen(
            Request(datasets.config.HF_ENDPOINT, method="HEAD"), timeout=HUB_SECONDS
        ):
            pass
    except HTTPError:
        pass  # it answers; what is wrong with the name, the library says
    except OSError:
        raise TextError(
            f"{name}: {datasets.config.HF_ENDPOINT} does not answer; give a local file "
            "or folder, or HF_HUB_OFFLINE=1 to read what was downloaded before"
        ) from None
