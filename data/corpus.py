"""Every source of sentence pairs, cleaned and split.

Line files are read by one strict reader and become a `datasets.Dataset` with the string
columns `source` and `target` and a fingerprint made of their content. (The library's
own CSV and text loaders lose a column, turn `None` into a missing value and split at
`\\r`.)
"""

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow
from datasets import Dataset, Features, Value
from datasets.table import InMemoryTable

from data.text import TextError, comparison_key, read_file

Pair = tuple[str, str]
FEATURES = Features({"source": Value("string"), "target": Value("string")})

MAX_CHARACTERS = 600
"""A longer side is no sentence; its pair is left out of training."""
MAX_RATIO = 6.0
"""One side may be this many times as long as the other, in characters…"""
RATIO_SLACK = 20
"""…and this much longer besides, since `Hi!` may be こんにちは。"""


def read_corpus(specification: str, reverse: bool = False) -> Dataset:
    """Return the pairs of `FILE.tsv`, or of two line-aligned files `FILE,FILE`.

    reverse swaps the two sides. Raises `TextError` where a file breaks the contract or
    is empty, and `OSError` where it cannot be read.
    """
    first, *others = (Path(part) for part in specification.split(","))
    if len(others) > 1:
        raise TextError(f"{specification}: give one .tsv, or two files with a comma")
    pairs = _read_two(first, others[0]) if others else _read_tsv(first)
    if not pairs:
        raise TextError(f"{specification} holds no sentence pair: give another corpus")
    return make_dataset((b, a) if reverse else (a, b) for a, b in pairs)


def make_dataset(pairs: Iterable[Pair]) -> Dataset:
    """Return pairs as a Dataset whose fingerprint is their content."""
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


def pairs_of(dataset: Dataset) -> list[Pair]:
    """Return the pairs of a Dataset."""
    return list(zip(dataset["source"], dataset["target"], strict=True))


def _read_tsv(path: Path) -> list[Pair]:
    """Return the first two columns; there is no quoting."""
    pairs = []
    for number, line in enumerate(read_file(path), start=1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise TextError(
                f"{path}, line {number}: no tab; a row is a sentence, a tab and its "
                "translation"
            )
        pairs.append((columns[0], columns[1]))
    return pairs


def _read_two(source: Path, target: Path) -> list[Pair]:
    """Return the pairs of two files of which line N translates line N."""
    sources, targets = read_file(source), read_file(target)
    if len(sources) != len(targets):
        raise TextError(
            f"{source} has {len(sources)} lines and {target} has {len(targets)}: give "
            "two files in which line N translates line N"
        )
    return list(zip(sources, targets, strict=True))


@dataclass(frozen=True)
class Cleaning:
    """What cleaning did with the pairs it was given, in pairs."""

    read: int
    kept: int
    empty: int = 0
    long: int = 0
    ratio: int = 0
    duplicate: int = 0
    shared: int = 0

    def __str__(self) -> str:
        removed = {
            "with an empty side": self.empty,
            f"with over {MAX_CHARACTERS} characters": self.long,
            "with sides of unlike length": self.ratio,
            "said twice": self.duplicate,
            "that share a side with dev or test": self.shared,
        }
        reasons = ", ".join(f"{n:,} {why}" for why, n in removed.items() if n)
        return f"{self.read:,} pairs read, {self.kept:,} kept; removed: " + (
            reasons or "none"
        )


def clean(
    pairs: Sequence[Pair], held_out: Sequence[Pair] = ()
) -> tuple[list[Pair], Cleaning]:
    """Return the pairs fit for training, and what was removed and why.

    Of held_out (dev and test) no sentence, of either side, stays in the result; case,
    width and punctuation are ignored.
    """
    forbidden = tuple(
        {comparison_key(pair[side]) for pair in held_out} for side in (0, 1)
    )
    seen: set[Pair] = set()
    kept: list[Pair] = []
    removed: Counter[str] = Counter()
    for source, target in pairs:
        pair = (source.strip(), target.strip())
        fault = _fault(pair)
        if fault is None and pair in seen:
            fault = "duplicate"
        if fault is None and any(
            comparison_key(text) in keys
            for text, keys in zip(pair, forbidden, strict=True)
            if keys
        ):
            fault = "shared"
        if fault is None:
            kept.append(pair)
        else:
            removed[fault] += 1
        seen.add(pair)
    return kept, Cleaning(read=len(pairs), kept=len(kept), **removed)


def _fault(pair: Pair) -> str | None:
    """Return why a pair alone is unfit, by `Cleaning`'s name for it."""
    shorter, longer = sorted(len(text) for text in pair)
    if not shorter:
        return "empty"
    if longer > MAX_CHARACTERS:
        return "long"
    if longer > MAX_RATIO * shorter + RATIO_SLACK:
        return "ratio"
    return None


def hold_out(
    pairs: Sequence[Pair], count: int, seed: int
) -> tuple[list[Pair], list[Pair]]:
    """Split off about `count` pairs for dev; return (train, dev), both in order.

    Pairs that share a sentence, directly or through others, stay together, so that no
    sentence of either side stands on both sides of the split. Raises `TextError` where
    the pairs cannot be split.
    """
    groups = _connected(pairs)
    order = sorted(groups)
    random.Random(seed).shuffle(order)
    taken: set[int] = set()
    for group in order:
        if len(taken) + len(groups[group]) <= min(max(count, 1), len(pairs) - 1):
            taken.update(groups[group])
    if not taken and len(groups) > 1:  # all groups are larger than that
        smallest = min(groups.values(), key=len)
        taken.update(smallest)
    if not taken:
        raise TextError(
            f"{len(pairs)} pair(s) that share their sentences cannot be split: name "
            "sentences to validate on with --dev"
        )
    train = [pair for index, pair in enumerate(pairs) if index not in taken]
    return train, [pair for index, pair in enumerate(pairs) if index in taken]


def _connected(pairs: Sequence[Pair]) -> dict[int, list[int]]:
    """Group the indices of pairs that share a side, by each group's smallest index."""
    parent = list(range(len(pairs)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[tuple[int, str], int] = {}
    for index, pair in enumerate(pairs):
        for side, text in enumerate(pair):
            other = root(first.setdefault((side, comparison_key(text)), index))
            mine = root(index)
            parent[max(other, mine)] = min(other, mine)
    groups: dict[int, list[int]] = {}
    for index in range(len(pairs)):
        groups.setdefault(root(index), []).append(index)
    return groups
