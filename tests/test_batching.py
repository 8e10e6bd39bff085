"""Batches: every pair once an epoch, within the budget, and the same after a resume."""

import itertools
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.batching import (
    ROWS,
    EncodedPairs,
    Ragged,
    encode_pairs,
    epochs,
    make_batch,
    plan_batches,
)

START, END, PADDING = 1, 2, 0
LENGTHS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=40
)


def _pairs(lengths: list[tuple[int, int]]) -> EncodedPairs:
    """Return pairs whose tokens say which pair and place they are of."""
    sources = [[100 * i + n + 10 for n in range(s)] for i, (s, _) in enumerate(lengths)]
    targets = [[100 * i + n + 50 for n in range(t)] for i, (_, t) in enumerate(lengths)]
    return encode_pairs(sources, targets, START, END)


def _size(pairs: EncodedPairs, rows: np.ndarray) -> int:
    """Return the tokens of the pairs in rows, sources and targets that are read."""
    return sum(len(pairs.source[row]) + len(pairs.target[row]) - 1 for row in rows)


@given(LENGTHS, st.integers(1, 200), st.integers(0, 5))
def test_every_pair_once_and_within_the_budget(
    lengths: list[tuple[int, int]], budget: int, seed: int
) -> None:
    pairs = _pairs(lengths)
    for generator in (None, np.random.default_rng(seed)):
        batches = plan_batches(pairs, budget, generator)
        assert sorted(row for rows in batches for row in rows) == [*range(len(pairs))]
        for rows in batches:
            assert len(rows) == 1 or _size(pairs, rows) <= budget
    # No batch could have taken the next pair as well, but for whole ROWS.
    for rows, after in itertools.pairwise(plan_batches(pairs, budget)):
        whole = len(rows) % ROWS == 0
        assert whole or _size(pairs, np.append(rows, after[0])) > budget


@given(LENGTHS, st.integers(1, 120), st.integers(0, 99), st.integers(0, 60))
def test_a_resumed_order_is_the_tail_of_the_whole(
    lengths: list[tuple[int, int]], budget: int, seed: int, first: int
) -> None:
    pairs = _pairs(lengths)

    def steps(first_step: int, count: int) -> list[tuple[int, list[int]]]:
        order = epochs(pairs, budget, seed, first_step)
        return [(e, rows.tolist()) for e, rows in itertools.islice(order, count)]

    assert steps(first, 20) == steps(0, first + 20)[first:]


def test_epochs_hold_each_pair_once_in_another_order() -> None:
    pairs = _pairs([(n % 7, n % 5) for n in range(60)])
    per_epoch = len(plan_batches(pairs, 80))
    order = itertools.islice(epochs(pairs, 80, seed=3), 3 * per_epoch)
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for epoch, rows in order:
        seen[epoch] += rows.tolist()
    for rows in seen.values():
        assert Counter(rows) == Counter(range(60))
    assert seen[0] != seen[1] != seen[2]
    other = [r for _, rows in itertools.islice(epochs(pairs, 80, seed=4), per_epoch)
             for r in rows.tolist()]  # fmt: skip
    assert other != seen[0]


@given(LENGTHS, st.randoms())
def test_a_batch_holds_its_pairs_and_padding(
    lengths: list[tuple[int, int]], random: object
) -> None:
    pairs = _pairs(lengths)
    rows = np.array(random.sample(range(len(pairs)), random.randint(1, len(pairs))))
    batch = make_batch(pairs, rows, PADDING)
    # Lengths here are at most 13, and no batch is narrower than 16.
    widest_s = widest_t = 16
    assert batch.source.shape == (len(rows), widest_s)
    assert batch.target_in.shape == batch.target_out.shape == (len(rows), widest_t)
    tokens = 0
    for place, row in enumerate(rows):
        s, t = lengths[row]
        source = [100 * row + n + 10 for n in range(s)]
        target = [100 * row + n + 50 for n in range(t)]
        assert batch.source[place].tolist() == [*source, END] + [0] * (widest_s - s - 1)
        read = [START, *target] + [0] * (widest_t - t - 1)
        assert batch.target_in[place].tolist() == read
        predicted = [*target, END] + [0] * (widest_t - t - 1)
        assert batch.target_out[place].tolist() == predicted
        tokens += t + 1
    assert batch.target_tokens == tokens == int((batch.target_out != PADDING).sum())
    assert batch.source.dtype == batch.target_in.dtype == torch.int64


def test_by_hand() -> None:
    pairs = encode_pairs([[7, 8], [9]], [[5], [6, 4, 3]], START, END)
    batch = make_batch(pairs, np.array([0, 1]), PADDING)
    assert batch.source.shape == batch.target_in.shape == batch.target_out.shape
    assert batch.source[:, :4].tolist() == [[7, 8, 2, 0], [9, 2, 0, 0]]
    assert batch.target_in[:, :4].tolist() == [[1, 5, 0, 0], [1, 6, 4, 3]]
    assert batch.target_out[:, :4].tolist() == [[5, 2, 0, 0], [6, 4, 3, 2]]
    assert not batch.source[:, 4:].any() and not batch.target_out[:, 4:].any()
    assert batch.target_tokens == 6


def test_wide_batches_come_in_multiples_of_four() -> None:
    pairs = encode_pairs([[5] * 16, [5] * 19], [[6] * 20, [6] * 3], START, END)
    batch = make_batch(pairs, np.array([0, 1]), PADDING)
    assert (batch.source.shape, batch.target_in.shape) == ((2, 20), (2, 24))


@pytest.mark.parametrize("sequences", [[[1, 2, 3], [], [4]], [[]], [[5]]])
def test_ragged_gives_back_what_it_got(sequences: list[list[int]]) -> None:
    ragged = Ragged(sequences)
    assert [ragged[i] for i in range(len(ragged))] == sequences


SEQUENCES = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=9)


@given(SEQUENCES, st.randoms())
def test_ragged_is_read_from_the_disk_as_it_was(
    sequences: list[list[int]], random: object
) -> None:
    order = np.array(random.sample(range(len(sequences)), len(sequences)), dtype=int)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr("data.batching.WRITTEN_AT_ONCE", 2)
        Ragged(sequences).write(Path(folder, "ragged"), order)
        ragged = Ragged.open(Path(folder, "ragged"))
        assert [ragged[i] for i in range(len(ragged))] == sequences
        in_order = [token for i in order for token in sequences[i]]
        assert ragged.flat.tolist() == in_order
        for name in ("flat", "starts", "lengths"):
            np.save(Path(folder, name), getattr(ragged, name))
            written = Path(folder, "ragged", f"{name}.npy").read_bytes()
            assert written == Path(folder, f"{name}.npy").read_bytes()
        if any(sequences):
            rows = np.arange(len(sequences))
            expected = Ragged(sequences).padded(rows, 0)
            assert torch.equal(ragged.padded(rows, 0), expected)


def test_like_lengths_are_neighbours_on_the_disk(tmp_path: Path) -> None:
    pairs = _pairs([(5, 5), (1, 2), (5, 5), (1, 2)])
    pairs.write(tmp_path / "ids")
    opened = EncodedPairs.open(tmp_path / "ids")
    assert [opened.source[i] for i in range(4)] == [pairs.source[i] for i in range(4)]
    assert [opened.target[i] for i in range(4)] == [pairs.target[i] for i in range(4)]
    assert opened.source.starts.tolist() == [4, 0, 10, 2]
