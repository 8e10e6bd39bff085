"""Encoded pairs in batches: like lengths together, a budget of tokens for each."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Ids = Sequence[int]
ROWS, COLUMNS, FEWEST_COLUMNS = 32, 4, 16
"""Rows and columns of a batch come in multiples of these, so that its shapes recur: a
processor's matrix kernels are made anew for each new shape. On fewer than 16 columns a
softmax takes several times as long."""
WRITTEN_AT_ONCE = 100_000
"""So many sequences `Ragged.write` copies in one go."""


def write_array(
    path: Path, parts: Iterable[np.ndarray], dtype: np.dtype[Any], length: int
) -> None:
    """Write the .npy file of an array of one dimension, part by part.

    On a full disk it raises the system's `OSError`. Of a mapped file a page that finds
    no room kills the process, and `np.save` does not say what is wrong.
    """
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (length,),
    }
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            file.write(part.astype(dtype, copy=False).tobytes())


class Ragged:
    """Sequences of token ids of unlike length, in one flat array.

    Sequence i is the `lengths[i]` numbers from `starts[i]` on. The arrays may be
    memory-mapped and must not be written to.
    """

    def __init__(self, sequences: Sequence[Ids]) -> None:
        self.lengths = np.array([len(ids) for ids in sequences], dtype=np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        flat = [token for ids in sequences for token in ids]
        self.flat = np.array(flat, dtype=np.int32)

    @classmethod
    def of(cls, flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> "Ragged":
        """Return the sequences that stand at some places of flat."""
        ragged = cls([])
        ragged.flat, ragged.starts, ragged.lengths = flat, starts, lengths
        return ragged

    @classmethod
    def open(cls, folder: Path) -> "Ragged":
        """Return what `write` wrote, memory-mapped."""
        # Plain views: numpy's class of mapped arrays slows every small operation.
        names = ("flat", "starts", "lengths")
        mapped = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in names)
        return cls.of(*(array.view(np.ndarray) for array in mapped))

    def write(self, folder: Path, order: np.ndarray) -> None:
        """Write the sequences to a new folder; they keep their numbers.

        order holds each number once. It is that of the sequences on the disk, where
        those that share batches, of like length, should be neighbours.
        """
        folder.mkdir()
        starts = np.empty_like(self.starts)
        starts[order] = np.cumsum(self.lengths[order]) - self.lengths[order]
        size = int(self.lengths.sum())
        parts = self._in_order(order, starts)
        write_array(folder / "flat.npy", parts, np.dtype(np.int32), size)
        for name, array in (("starts", starts), ("lengths", self.lengths)):
            write_array(folder / f"{name}.npy", [array], array.dtype, len(array))

    def _in_order(self, order: np.ndarray, starts: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the flat array of that order on the disk, part by part."""
        for first in range(0, len(order), WRITTEN_AT_ONCE):
            rows = order[first : first + WRITTEN_AT_ONCE]
            lengths, start = self.lengths[rows], int(starts[rows[0]])
            places = start + np.arange(lengths.sum())
            moved = np.repeat(self.starts[rows] - starts[rows], lengths)
            yield self.flat[places + moved]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> list[int]:
        start = self.starts[index]
        found: list[int] = self.flat[start : start + self.lengths[index]].tolist()
        return found

    def padded(
        self, rows: np.ndarray, padding: int, first: int = 0, last: int = 0
    ) -> Tensor:
        """Return some sequences as one array, filled with padding.

        It is (rows, longest), the columns rounded up (see ROWS). Each sequence is taken
        without its `first` first and `last` last tokens.
        """
        lengths = self.lengths[rows] - first - last
        width = -(-int(lengths.max()) // COLUMNS) * COLUMNS
        columns = np.arange(max(width, FEWEST_COLUMNS))
        inside = columns < lengths[:, None]
        where = (self.starts[rows] + first)[:, None] + columns
        where = np.minimum(where, len(self.flat) - 1)
        padded = np.where(inside, self.flat[where], padding).astype(np.int64)
        return torch.from_numpy(padded)


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs as ids: sources closed by the end mark, targets between both marks."""

    source: Ragged
    target: Ragged

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def open(cls, folder: Path) -> "EncodedPairs":
        """Return what `write` wrote, memory-mapped."""
        return cls(Ragged.open(folder / "source"), Ragged.open(folder / "target"))

    def write(self, folder: Path) -> None:
        """Write the pairs to a new folder, those of like length beside each other."""
        folder.mkdir()
        order = np.lexsort((self.source.lengths, self.target.lengths))
        self.source.write(folder / "source", order)
        self.target.write(folder / "target", order)

    def sha256(self) -> str:
        """Return the SHA-256 of all ids, in hexadecimal."""
        found = hashlib.sha256()
        for side in (self.source, self.target):
            for array in (side.flat, side.starts, side.lengths):
                found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()


@dataclass(frozen=True)
class Batch:
    """One step's sentences, padded to S and T tokens."""

    source: Tensor
    """(B, S), each row closed by the end mark."""
    target_in: Tensor
    """(B, T), what the decoder reads: the start mark and the tokens."""
    target_out: Tensor
    """(B, T), what it is to predict: the tokens and the end mark."""
    target_tokens: int
    """Real tokens in target_out."""

    def to(self, device: str) -> "Batch":
        """Return the batch on a device."""
        return replace(
            self,
            source=self.source.to(device),
            target_in=self.target_in.to(device),
            target_out=self.target_out.to(device),
        )


def encode_pairs(
    sources: Sequence[Ids], targets: Sequence[Ids], start: int, end: int
) -> EncodedPairs:
    """Return ids with their start and end marks added."""
    return EncodedPairs(
        Ragged([[*ids, end] for ids in sources]),
        Ragged([[start, *ids, end] for ids in targets]),
    )


def plan_batches(
    pairs: EncodedPairs, tokens: int, generator: np.random.Generator | None = None
) -> list[np.ndarray]:
    """Share the pairs out among batches of at most `tokens`, of both sides together.

    Pairs of like lengths come together. With a generator the batches, and the pairs of
    equal length among them, are in random order. A pair that is larger than the budget
    gets a batch of its own. Rows come in multiples of ROWS where the budget allows.
    """
    order = np.arange(len(pairs))
    if generator is not None:
        generator.shuffle(order)
    # Stable, so that pairs of equal lengths stay in their random order.
    source, target = pairs.source.lengths[order], pairs.target.lengths[order] - 1
    order = order[np.lexsort((source, target))]
    sizes = np.cumsum(pairs.source.lengths[order] + pairs.target.lengths[order] - 1)
    batches, first = [], 0
    while first < len(order):
        before = sizes[first - 1] if first else 0
        rows = int(np.searchsorted(sizes, before + tokens, side="right")) - first
        rows = max(rows, 1)
        if rows > ROWS and first + rows < len(order):
            rows -= rows % ROWS
        batches.append(order[first : first + rows])
        first += rows
    if generator is not None:
        generator.shuffle(batches)
    return batches


def make_batch(pairs: EncodedPairs, rows: np.ndarray, padding: int) -> Batch:
    """Return the tensors of the pairs in rows."""
    return Batch(
        source=pairs.source.padded(rows, padding),
        target_in=pairs.target.padded(rows, padding, last=1),
        target_out=pairs.target.padded(rows, padding, first=1),
        target_tokens=int((pairs.target.lengths[rows] - 1).sum()),
    )


def epochs(
    pairs: EncodedPairs, tokens: int, seed: int, first_step: int = 0
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (epoch, rows of one batch) for ever, from a step on.

    The order depends on the seed and the epoch alone, so a resumed training sees what
    an uninterrupted one would have seen.
    """
    step = 0
    epoch = 0
    while True:
        batches = plan_batches(pairs, tokens, np.random.default_rng([seed, epoch]))
        for rows in batches:
            if step >= first_step:
                yield epoch, rows
            step += 1
        epoch += 1
