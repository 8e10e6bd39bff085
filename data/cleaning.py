"""What is fit for training, and what is held out of it.

Sentences are compared by 64-bit hashes in arrays, so that a corpus of any size can be
compared with itself: among a million texts two have the same one by chance with a
probability of 3e-8.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value

from data.corpus import FEATURES, Pair
from data.text import TextError, comparison_key

MAX_CHARACTERS = 600
"""A longer side is no sentence; its pair is left out of training."""
MAX_RATIO = 6.0
"""One side may be this many times as long as the other, in characters…"""
RATIO_SLACK = 20
"""…and this much longer besides, since `Hi!` may be こんにちは。"""
FAULTS = ("", "empty", "long", "ratio")
"""What may be wrong with a pair alone, by `Cleaning`'s names; 0 is nothing."""
KEYS = ("source_key", "target_key")
EXAMINED = Features(
    {
        **FEATURES,
        "fault": Value("int8"),
        "pair": Value("int64"),
        **{key: Value("int64") for key in KEYS},
    }
)
"""What `examine` gives: a pair's hash, and those of what its sides are known by."""


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


def examine(batch: Mapping[str, Sequence[str]]) -> dict[str, list[Any]]:
    """Return pairs without space around them, with all that `clean` asks of them."""
    pairs = [
        (source.strip(), target.strip())
        for source, target in zip(batch["source"], batch["target"], strict=True)
    ]
    return {
        "source": [source for source, _ in pairs],
        "target": [target for _, target in pairs],
        "fault": [_fault(pair) for pair in pairs],
        "pair": [hash_pair(pair) for pair in pairs],
        **{
            key: [_hash(comparison_key(pair[side])) for pair in pairs]
            for side, key in enumerate(KEYS)
        },
    }


def clean(examined: Dataset, held_out: Iterable[Pair]) -> tuple[np.ndarray, Cleaning]:
    """Return the rows fit for training, in order, and what was removed and why.

    Of held_out (dev and test) no sentence, of either side, stays in the result; case,
    width and punctuation are ignored.
    """
    fault = column(examined, "fault")
    fit = fault == 0
    first = np.zeros(len(examined), dtype=bool)
    first[np.unique(column(examined, "pair"), return_index=True)[1]] = True
    apart = ~shares_a_side(examined, held_out)
    rows = np.flatnonzero(fit & first & apart)
    return rows, Cleaning(
        read=len(examined),
        kept=len(rows),
        duplicate=int((fit & ~first).sum()),
        shared=int((fit & first & ~apart).sum()),
        **{name: int((fault == n).sum()) for n, name in enumerate(FAULTS) if n},
    )


def shares_a_side(examined: Dataset, pairs: Iterable[Pair]) -> np.ndarray:
    """Return, for each row, whether a sentence of it stands on its side in pairs."""
    found = np.zeros(len(examined), dtype=bool)
    for key, texts in zip(KEYS, zip(*pairs, strict=True), strict=False):
        hashes = [_hash(comparison_key(text)) for text in texts]
        found |= np.isin(column(examined, key), np.array(hashes, dtype=np.int64))
    return found


def column(examined: Dataset, name: str) -> np.ndarray:
    """Return a column of numbers as an array; the Dataset is a whole one, as made."""
    found: np.ndarray = examined.data.column(name).to_numpy()
    return found


def hash_pair(pair: Pair) -> int:
    """Return the hash that `examine` gives a pair."""
    return _hash(f"{len(pair[0])}:{pair[0]}{pair[1]}")


def _hash(text: str) -> int:
    return int.from_bytes(
        blake2b(text.encode(), digest_size=8).digest(), "little", signed=True
    )


def _fault(pair: Pair) -> int:
    """Return what is wrong with a pair alone, as its place in FAULTS."""
    shorter, longer = sorted(len(text) for text in pair)
    if not shorter:
        return FAULTS.index("empty")
    if longer > MAX_CHARACTERS:
        return FAULTS.index("long")
    if longer > MAX_RATIO * shorter + RATIO_SLACK:
        return FAULTS.index("ratio")
    return 0


def hold_out(
    source_keys: np.ndarray, target_keys: np.ndarray, count: int, seed: int
) -> np.ndarray:
    """Choose about `count` pairs for dev; return which, (pairs,) booleans.

    Pairs that share a sentence, directly or through others, stay together, so that no
    sentence of either side stands on both sides of the split. Raises `TextError` where
    the pairs cannot be split.
    """
    group_of = _connected(source_keys, target_keys)
    groups, sizes = np.unique(group_of, return_counts=True)
    room = min(max(count, 1), len(group_of) - 1)
    order = list(range(len(groups)))
    random.Random(seed).shuffle(order)
    taken = []
    for place in order:
        if sizes[place] <= room:
            taken.append(place)
            room -= sizes[place]
    if not taken and len(groups) > 1:  # all groups are larger than that
        taken = [int(sizes.argmin())]
    if not taken:
        raise TextError(
            f"{len(group_of)} pair(s) that share their sentences cannot be split: name "
            "sentences to validate on with --dev"
        )
    return np.isin(group_of, groups[taken])


def _connected(*keys: np.ndarray) -> np.ndarray:
    """Return each pair's group: the first of all pairs that it hangs together with.

    keys are (pairs,) each; pairs with an equal key are connected. In a round each pair
    takes the smallest group in reach, and its group follows it there.
    """
    sides = [np.unique(key, return_inverse=True)[1] for key in keys]
    group = np.arange(len(keys[0]))
    while True:
        before = group
        for side in sides:
            smallest = np.full(len(group), len(group))
            np.minimum.at(smallest, side, group)
            group = np.minimum(group, smallest[side])
        np.minimum.at(group, before, group.copy())
        group = group[group]
        if np.array_equal(group, before):
            return group
