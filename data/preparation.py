"""From corpora to what a training reads: cleaned, split, tokenized, encoded.

Every step of it is done once and kept (see `data.cache`), by as many processes as a
large corpus keeps busy. What it makes is read from memory-mapped files, so that a
corpus may be larger than the memory.
"""

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.compute
from datasets import Dataset, Features, List, Value

import data.starter
from data import corpus
from data.batching import EncodedPairs, Ragged, encode_pairs, write_array
from data.cache import fingerprint, kept
from data.cleaning import (
    EXAMINED,
    KEYS,
    clean,
    column,
    examine,
    hash_pair,
    hold_out,
    shares_a_side,
)
from data.corpus import COLUMNS, Pair, make_dataset, pairs_of, read_pairs, write_dataset
from data.starter.compose import StarterCorpus, compose, vary
from data.text import TextError, words_of
from data.tokenizer import END, START, Tokenizer, train_tokenizer

STARTER = "starter"
"""The name of the embedded corpus, which is composed and not read from a file."""
DEV_SHARE, MOST_DEV = 0.02, 1_000
"""Of a corpus without dev sentences, this share is held out, up to so many pairs."""
TOKENIZER_PAIRS = 200_000
"""Of a larger corpus, so many pairs drawn at random train the tokenizers."""
LARGE = 100_000
"""From so many pairs on, steps are shared out among processes and show a bar."""
ENCODED = Features(dict.fromkeys(("source", "target"), List(Value("int32"))))
WORDS = Features({"words": List(Value("string"))})
Say = Callable[[str], object]


@dataclass(frozen=True)
class Material:
    """What a training reads."""

    pairs: Dataset
    """The training pairs, as text: columns `source` and `target`, memory-mapped."""
    train: EncodedPairs
    """The same, as ids; longer ones than the model reads are left out of both."""
    source_words: tuple[str, ...]
    """The words of their sources, without case, each once, in order."""
    dev: tuple[Pair, ...]
    dev_encoded: EncodedPairs
    test: tuple[Pair, ...]
    source: Tokenizer
    target: Tokenizer
    starter: StarterCorpus | None
    """The embedded corpus with its gold alignments, where it is among the corpora."""
    words: Mapping[str, Sequence[str]]
    """The words of a target, where they are known."""
    max_length: int
    hashes: Mapping[str, str]
    """Of the corpora's files, as `corpus_hashes` has them, when they were read."""

    def sample(self, rows: np.ndarray, dropout: float, seed: int) -> EncodedPairs:
        """Return some training pairs, cut into tokens at random (`Tokenizer.sample`).

        A pair that becomes too long keeps its own tokens.
        """
        chosen = self.pairs[rows]
        targets = [self.words.get(text, text) for text in chosen["target"]]
        sources = self.source.sample(chosen["source"], dropout, seed)
        sampled = self.target.sample(targets, dropout, seed)
        for place, row in enumerate(rows):
            if max(len(sources[place]), len(sampled[place])) >= self.max_length:
                sources[place] = self.train.source[row][:-1]
                sampled[place] = self.train.target[row][1:-1]
        return encode_pairs(sources, sampled, START, END)


@dataclass(frozen=True)
class _Sources:
    """Where the text comes from: all that the training pairs depend on."""

    corpora: tuple[str, ...]
    dev: str | None
    test: str | None
    reverse: bool
    columns: tuple[str, str]
    seed: int

    def hashes(self) -> dict[str, str]:
        return corpus_hashes([*self.corpora, self.dev, self.test])

    def pairs(self, name: str) -> Iterator[Pair]:
        return read_pairs(name, self.reverse, self.columns)


@dataclass
class _Texts:
    """What stands beside the corpora's files: dev and test, and the starter corpus.

    hashes are those of all files before they were read; words are a target's, where
    they are known; composed are the starter corpus's pairs, and kept_out its test
    sentences.
    """

    hashes: dict[str, str]
    dev: list[Pair] = field(default_factory=list)
    test: tuple[Pair, ...] = ()
    words: dict[str, Sequence[str]] = field(default_factory=dict)
    composed: list[Pair] = field(default_factory=list)
    kept_out: list[Pair] = field(default_factory=list)


def corpus_hashes(names: Iterable[str | None]) -> dict[str, str]:
    """Return what tells whether corpora have changed: the SHA-256 of their files.

    Of a Hub set it is the fingerprint that it has there. The starter corpus's files are
    named as such, wherever this checkout lies. Raises `TextError` or `OSError` where a
    corpus cannot be read.
    """
    found: dict[str, str] = {}
    for name in filter(None, names):
        if name == STARTER:
            folder = Path(data.starter.__file__).parent
            hashes = corpus.file_hashes(sorted(folder.glob("*.tsv")))
            found |= {f"{STARTER}:{Path(p).name}": sha for p, sha in hashes.items()}
        else:
            found |= corpus.corpus_hashes(name)
    return found


def prepare(
    corpora: Sequence[str],
    dev: str | None,
    test: str | None,
    reverse: bool,
    vocabulary: int,
    max_length: int,
    seed: int,
    say: Say,
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None,
    columns: tuple[str, str] = COLUMNS,
    bars: bool = False,
) -> Material:
    """Read, clean and encode corpora; say what was removed and why, in numbers.

    A corpus is `starter` or what `read_pairs` takes; columns are those of the tables
    that name none. reverse swaps the sides. With tokenizers given, none are trained.
    With bars, long steps show one. Raises `TextError` where no pair is left.
    """
    sources = _Sources(tuple(corpora), dev, test, reverse, columns, seed)
    texts, starter = _read(sources)
    with _bars(bars):
        folder = _train_pairs(sources, texts, say)
        key, file = folder.name, str(folder / "train.arrow")
        pairs = Dataset.from_file(file)
        if tokenizers is None:
            tokenizers = _train_both(key, pairs, texts.words, vocabulary, say)
        encoders = (*tokenizers, texts.words, max_length)
        train, rows, words = _encode(f"train-{key}", pairs, *encoders)
        pairs = Dataset.from_file(file)  # mapped anew: what was read is in memory
        if len(rows) < len(pairs):
            left_out = len(pairs) - len(rows)
            say(f"{left_out:,} pairs of {max_length} tokens or more left out")
            pairs = pairs.select(rows)
        every_dev = make_dataset(texts.dev)
        dev_encoded, dev_rows, _ = _encode(f"dev-{key}", every_dev, *encoders)
        if len(dev_rows) < len(texts.dev):
            left_out = len(texts.dev) - len(dev_rows)
            say(f"{left_out:,} dev pairs of {max_length} tokens or more left out")
    kept_dev = tuple(texts.dev[row] for row in dev_rows)
    return Material(
        pairs, train, words, kept_dev, dev_encoded, texts.test, *tokenizers, starter,
        texts.words, max_length, texts.hashes,
    )  # fmt: skip


def _read(sources: _Sources) -> tuple[_Texts, StarterCorpus | None]:
    """Read all but the corpora; the starter corpus brings sentences of its own."""
    texts = _Texts(sources.hashes())
    starter = compose(sources.seed) if STARTER in sources.corpora else None
    if starter is not None:
        _add_starter(texts, starter, sources.reverse, sources.seed)
    if sources.dev:
        texts.dev = list(sources.pairs(sources.dev))
    if sources.test:
        texts.test = tuple(sources.pairs(sources.test))
    return texts, starter


def _add_starter(
    texts: _Texts, starter: StarterCorpus, reverse: bool, seed: int
) -> None:
    """Add the embedded corpus, its English also as people type it."""

    def turned(pair: Pair) -> Pair:
        return (pair[1], pair[0]) if reverse else pair

    chance = random.Random(seed)
    for pair in starter.train:
        ways = dict.fromkeys([pair.source, vary(pair.source, chance)])
        texts.composed += [turned((english, pair.target)) for english in ways]
    texts.dev = [turned((pair.source, pair.target)) for pair in starter.dev]
    splits = (starter.test_new, starter.test_combinations, starter.test_sentences)
    texts.kept_out = [turned((p.source, p.target)) for split in splits for p in split]
    if not reverse:
        every = (starter.train, starter.dev, *splits)
        texts.words |= {p.target: p.target_words for split in every for p in split}


# ------------------------------------------------------------------- training pairs


def _train_pairs(sources: _Sources, texts: _Texts, say: Say) -> Path:
    """Return the folder of the cleaned pairs; without a named dev, move some there."""
    files = [name for name in sources.corpora if name != STARTER]

    def make(folder: Path, scratch: Path) -> None:
        read = chain(texts.composed, *map(sources.pairs, files))
        shown = datasets.utils.tqdm(read, "Reading", unit=" pairs", delay=2)
        raw = write_dataset(shown, scratch / "raw.arrow")
        if sources.hashes() != texts.hashes:
            raise TextError("a corpus was changed while it was read: start again")
        examined = _map(raw, examine, EXAMINED, scratch / "examined.arrow", "Cleaning")
        rows, cleaning = clean(examined, [*texts.dev, *texts.test, *texts.kept_out])
        said, held = [str(cleaning)], rows[:0]
        if not len(rows):
            names = ", ".join(sources.corpora)
            raise TextError(
                f"no pair of {names} is fit for training: {cleaning}; give others"
            )
        if files and not sources.dev:
            rows, held = _hold_out(examined, rows, texts, sources.seed, said)
        for name, chosen in (("train", rows), ("held_out", held)):
            found = examined.select(chosen).select_columns(["source", "target"])
            write_dataset(_each(found), folder / f"{name}.arrow")
        (folder / "said.json").write_text(json.dumps(said), "utf-8")

    folder = kept(f"pairs-{fingerprint(sources, texts.hashes)}", make)
    for line in json.loads((folder / "said.json").read_text("utf-8")):
        say(line)
    held = Dataset.from_file(str(folder / "held_out.arrow"))
    if len(held):
        texts.dev += pairs_of(held)
        # The first few hundred are translated.
        random.Random(sources.seed).shuffle(texts.dev)
    return folder


def _hold_out(
    examined: Dataset, rows: np.ndarray, texts: _Texts, seed: int, said: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows to train on, composed pairs first; rows of files that are held).

    None are held where the files' pairs cannot be split and there is a dev already.
    """
    ours = np.array([hash_pair(pair) for pair in texts.composed], dtype=np.int64)
    is_ours = np.isin(column(examined, "pair")[rows], ours)
    composed_rows, others = rows[is_ours], rows[~is_ours]
    count = min(MOST_DEV, round(len(others) * DEV_SHARE))
    sources, targets = (column(examined, key)[others] for key in KEYS)
    try:
        is_held = hold_out(sources, targets, count, seed)
    except TextError:
        if not texts.dev:
            raise
        return np.concatenate([composed_rows, others]), rows[:0]
    held = others[is_held]
    said.append(f"{len(held):,} pairs held out to validate on")
    shared = shares_a_side(examined, pairs_of(examined.select(held)))[composed_rows]
    if shared.any():
        said.append(
            f"{int(shared.sum()):,} composed pairs left out, which share a side with "
            "them"
        )
    return np.concatenate([composed_rows[~shared], others[~is_held]]), held


def _each(pairs: Dataset) -> Iterator[Pair]:
    """Yield the pairs of a Dataset without holding all of them."""
    for some in pairs.iter(10_000):
        yield from zip(some["source"], some["target"], strict=True)


# ------------------------------------------------------------------ tokenizers and ids


def _train_both(
    key: str,
    pairs: Dataset,
    words: Mapping[str, Sequence[str]],
    vocabulary: int,
    say: Say,
) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of both sides, trained on the training text."""

    def make(folder: Path, _: Path) -> None:
        sample = pairs
        if len(pairs) > TOKENIZER_PAIRS:
            chance = np.random.default_rng(len(pairs))
            some = chance.choice(len(pairs), TOKENIZER_PAIRS, replace=False)
            sample = pairs.select(np.sort(some))
        targets: list[Any] = [words.get(text, text) for _, text in _each(sample)]
        source = train_tokenizer((a for a, _ in _each(sample)), vocabulary, "source")
        target = train_tokenizer(targets, vocabulary, "target")
        for tokenizer in (source, target):
            (folder / f"{tokenizer.side}.spm").write_bytes(tokenizer.model)

    folder = kept(f"tokenizers-{fingerprint(key, vocabulary)}", make)
    source = Tokenizer((folder / "source.spm").read_bytes(), "source")
    target = Tokenizer((folder / "target.spm").read_bytes(), "target")
    for tokenizer in (source, target):
        if len(tokenizer) < vocabulary:
            say(
                f"{tokenizer.side} vocabulary: {len(tokenizer):,} tokens, all that the "
                f"corpus fills of {vocabulary:,}"
            )
    return source, target


def _encode(
    key: str,
    pairs: Dataset,
    source: Tokenizer,
    target: Tokenizer,
    words: Mapping[str, Sequence[str]],
    max_length: int,
) -> tuple[EncodedPairs, np.ndarray, tuple[str, ...]]:
    """Return the pairs that fit into max_length tokens a side: ids, rows, words.

    Rows say which of pairs they are; words are those of their sources. key names the
    pairs. Raises `TextError` where none fits.
    """

    def make(folder: Path, scratch: Path) -> None:
        encoders = {"source": source, "target": target, "words": words}
        path = scratch / "encoded.arrow"
        found = _map(pairs, _ids, ENCODED, path, "Tokenizing", encoders)
        sides = [_ragged(found, side) for side in ("source", "target")]
        # A target stands between two marks, of which the decoder reads one.
        longest = np.maximum(sides[0].lengths, sides[1].lengths - 1)
        rows = np.flatnonzero(longest <= max_length)
        if not len(rows):
            raise TextError(
                f"all pairs have {max_length} tokens or more: raise --max-length "
                "(with --init it is that run's: give shorter ones)"
            )
        EncodedPairs(
            *(Ragged.of(s.flat, s.starts[rows], s.lengths[rows]) for s in sides)
        ).write(folder / "ids")
        write_array(folder / "rows.npy", [rows], rows.dtype, len(rows))
        text = json.dumps(_words(pairs.select(rows), scratch / "words.arrow"))
        (folder / "words.json").write_text(text, "utf-8")

    depends_on = fingerprint(key, source.model, target.model, max_length)
    folder = kept(f"ids-{depends_on}", make)
    source_words = json.loads((folder / "words.json").read_text("utf-8"))
    rows = np.load(folder / "rows.npy")
    return EncodedPairs.open(folder / "ids"), rows, tuple(source_words)


def _ids(
    batch: Mapping[str, Sequence[str]],
    source: Tokenizer,
    target: Tokenizer,
    words: Mapping[str, Sequence[str]],
) -> dict[str, list[list[int]]]:
    """Return a batch's ids with their marks."""

    def ids_of(text: str) -> list[int]:
        known = words.get(text)
        return target.encode(text) if known is None else target.encode_words(known)

    return {
        "source": [[*source.encode(text), END] for text in batch["source"]],
        "target": [[START, *ids_of(text), END] for text in batch["target"]],
    }


def _ragged(encoded: Dataset, side: str) -> Ragged:
    """Return a column of lists; the ids of one side are copied into memory."""
    ids = encoded.data.column(side)
    lengths = pyarrow.compute.list_value_length(ids).to_numpy().astype(np.int64)
    parts = [part.flatten().to_numpy() for part in ids.chunks]
    flat = np.concatenate([np.empty(0, np.int32), *parts])
    return Ragged.of(flat, np.cumsum(lengths) - lengths, lengths)


def _words(pairs: Dataset, path: Path) -> list[str]:
    """Return the words of the sources, without case, each once, in order."""
    found = _map(pairs, _batch_words, WORDS, path, "Listing words")
    return sorted({word for some in found["words"] for word in some})


def _batch_words(batch: Mapping[str, Sequence[str]]) -> dict[str, list[list[str]]]:
    words = {word.casefold() for text in batch["source"] for word in words_of(text)}
    return {"words": [list(words)]}


# ----------------------------------------------------------------------- in processes


def _map(
    pairs: Dataset,
    function: Callable[..., dict[str, list[Any]]],
    features: Features,
    path: Path,
    name: str,
    arguments: Mapping[str, object] | None = None,
) -> Dataset:
    """Return what function makes of pairs, written to path batch by batch, in order."""
    large = len(pairs) >= LARGE
    processes = min(os.cpu_count() or 1, 2 * len(pairs) // LARGE)
    with _bars(large and not datasets.are_progress_bars_disabled()):
        return pairs.map(
            function,
            batched=True,
            remove_columns=["source", "target"],
            features=features,
            fn_kwargs=arguments,
            num_proc=processes if large else None,
            cache_file_name=str(path),
            new_fingerprint=path.stem,  # `kept` knows what it depends on
            desc=name,
        )


@contextmanager
def _bars(shown: bool) -> Iterator[None]:
    """Let `datasets` show progress bars, or not, for a while."""
    hidden = datasets.are_progress_bars_disabled()

    def show(whether: bool) -> None:
        if whether:
            datasets.enable_progress_bars()
        else:
            datasets.disable_progress_bars()

    show(shown)
    try:
        yield
    finally:
        show(not hidden)
