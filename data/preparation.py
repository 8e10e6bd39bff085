"""From corpora to what a training reads: cleaned, split, tokenized, encoded."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import concatenate_datasets

import data.starter
from data.batching import EncodedPairs, encode_pairs
from data.corpus import Pair, clean, hold_out, pairs_of, read_corpus
from data.starter.compose import StarterCorpus, compose, vary
from data.text import TextError
from data.tokenizer import END, START, Tokenizer, train_tokenizer

STARTER = "starter"
"""The name of the embedded corpus, which is composed and not read from a file."""
DEV_SHARE, MOST_DEV = 0.02, 1_000
"""Of a corpus without dev sentences, this share is held out, up to so many pairs."""


@dataclass(frozen=True)
class Material:
    """What a training reads."""

    pairs: tuple[Pair, ...]
    """The training pairs, as text."""
    train: EncodedPairs
    """The same, as ids; longer ones than the model reads are left out of both."""
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

    def sample(self, rows: np.ndarray, dropout: float, seed: int) -> EncodedPairs:
        """Return some training pairs, cut into tokens at random (`Tokenizer.sample`).

        A pair that becomes too long keeps its own tokens.
        """
        pairs = [self.pairs[row] for row in rows]
        targets = [self.words.get(text, text) for _, text in pairs]
        sources = self.source.sample([text for text, _ in pairs], dropout, seed)
        sampled = self.target.sample(targets, dropout, seed)
        for place, row in enumerate(rows):
            if max(len(sources[place]), len(sampled[place])) >= self.max_length:
                sources[place] = self.train.source[row][:-1]
                sampled[place] = self.train.target[row][1:-1]
        return encode_pairs(sources, sampled, START, END)


@dataclass
class _Texts:
    """Pairs on their way to a training.

    words are a target's, where they are known; composed are the starter corpus's pairs,
    and kept_out its test sentences.
    """

    train: list[Pair] = field(default_factory=list)
    dev: list[Pair] = field(default_factory=list)
    test: list[Pair] = field(default_factory=list)
    words: dict[str, Sequence[str]] = field(default_factory=dict)
    composed: set[Pair] = field(default_factory=set)
    kept_out: list[Pair] = field(default_factory=list)


def corpus_files(name: str) -> list[Path]:
    """Return the files that a corpus is read from."""
    if name == STARTER:
        folder = Path(data.starter.__file__).parent
        return sorted(folder.glob("*.tsv"))
    return [Path(part) for part in name.split(",")]


def prepare(
    corpora: Sequence[str],
    dev: str | None,
    test: str | None,
    reverse: bool,
    vocabulary: int,
    max_length: int,
    seed: int,
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None,
    say: Callable[[str], object] = print,
) -> Material:
    """Read, clean and encode corpora; say what was removed and why, in numbers.

    A corpus is `starter` or what `read_corpus` takes. reverse swaps the sides. With
    tokenizers given, none are trained. Raises `TextError` where nothing is left to
    train on.
    """
    texts, starter = _read(corpora, dev, test, reverse, seed)
    held_out = [*texts.dev, *texts.test, *texts.kept_out]
    pairs, cleaning = clean(texts.train, held_out)
    say(str(cleaning))
    if not pairs:
        raise TextError(f"no pair of {', '.join(corpora)} is fit for training")
    if not dev and any(name != STARTER for name in corpora):
        pairs = _hold_out(texts, pairs, seed, say)
    source, target = tokenizers or _train_both(pairs, texts.words, vocabulary, say)
    encoders = (source, target, texts.words, max_length)
    pairs, train = _encode(pairs, *encoders, say)
    kept_dev, dev_encoded = _encode(texts.dev, *encoders, lambda _: None)
    if not pairs or not kept_dev:
        raise TextError(
            f"all sentences are over {max_length} tokens: raise --max-length"
        )
    return Material(
        tuple(pairs),
        train,
        tuple(kept_dev),
        dev_encoded,
        tuple(texts.test),
        source,
        target,
        starter,
        texts.words,
        max_length,
    )


def _read(
    corpora: Sequence[str], dev: str | None, test: str | None, reverse: bool, seed: int
) -> tuple[_Texts, StarterCorpus | None]:
    """Read all corpora; the starter corpus brings dev and test sentences of its own."""
    texts = _Texts()
    starter = compose(seed) if STARTER in corpora else None
    if starter is not None:
        _add_starter(texts, starter, reverse, seed)
    files = [read_corpus(name, reverse) for name in corpora if name != STARTER]
    if files:
        texts.train += pairs_of(concatenate_datasets(files))
    if dev:
        texts.dev = pairs_of(read_corpus(dev, reverse))
    if test:
        texts.test += pairs_of(read_corpus(test, reverse))
    return texts, starter


def _hold_out(
    texts: _Texts, pairs: Sequence[Pair], seed: int, say: Callable[[str], object]
) -> list[Pair]:
    """Move a share of the pairs that were read from files to dev; return the rest."""
    composed = [pair for pair in pairs if pair in texts.composed]
    others = [pair for pair in pairs if pair not in texts.composed]
    count = min(MOST_DEV, round(len(others) * DEV_SHARE))
    others, held = hold_out(others, count, seed)
    say(f"{len(held):,} pairs held out to validate on")
    texts.dev += held
    random.Random(seed).shuffle(texts.dev)  # the first few hundred are translated
    composed, cleaning = clean(composed, held)
    if cleaning.shared:
        say(
            f"{cleaning.shared:,} composed pairs left out, which share a side with them"
        )
    return [*composed, *others]


def _add_starter(
    texts: _Texts, starter: StarterCorpus, reverse: bool, seed: int
) -> None:
    """Add the embedded corpus, its English also as people type it."""

    def turned(pair: Pair) -> Pair:
        return (pair[1], pair[0]) if reverse else pair

    chance = random.Random(seed)
    for pair in starter.train:
        ways = dict.fromkeys([pair.source, vary(pair.source, chance)])
        texts.train += [turned((english, pair.target)) for english in ways]
    texts.composed = set(texts.train)
    texts.dev = [turned((pair.source, pair.target)) for pair in starter.dev]
    splits = (starter.test_new, starter.test_combinations, starter.test_sentences)
    texts.kept_out = [turned((p.source, p.target)) for split in splits for p in split]
    if not reverse:
        every = (starter.train, starter.dev, *splits)
        texts.words |= {p.target: p.target_words for split in every for p in split}


def _train_both(
    pairs: Sequence[Pair],
    words: Mapping[str, Sequence[str]],
    vocabulary: int,
    say: Callable[[str], object],
) -> tuple[Tokenizer, Tokenizer]:
    """Train the tokenizers of both sides on the training text."""
    targets: list[Any] = [words.get(pair[1], pair[1]) for pair in pairs]
    source = train_tokenizer((pair[0] for pair in pairs), vocabulary, "source")
    target = train_tokenizer(targets, vocabulary, "target")
    for tokenizer in (source, target):
        if len(tokenizer) < vocabulary:
            say(
                f"{tokenizer.side} vocabulary: {len(tokenizer):,} tokens, all that the "
                f"corpus fills of {vocabulary:,}"
            )
    return source, target


def _encode(
    pairs: Sequence[Pair],
    source: Tokenizer,
    target: Tokenizer,
    words: Mapping[str, Sequence[str]],
    max_length: int,
    say: Callable[[str], object],
) -> tuple[list[Pair], EncodedPairs]:
    """Return the pairs that fit into max_length tokens a side, as text and as ids."""

    def ids_of(text: str) -> list[int]:
        known = words.get(text)
        return target.encode(text) if known is None else target.encode_words(known)

    ids = [(source.encode(a), ids_of(b)) for a, b in pairs]
    fits = [max(len(a), len(b)) < max_length for a, b in ids]
    if not all(fits):
        say(f"{fits.count(False):,} pairs of {max_length} tokens or more left out")
    kept = [pair for pair, fit in zip(pairs, fits, strict=True) if fit]
    chosen = [pair for pair, fit in zip(ids, fits, strict=True) if fit]
    sources, targets = [a for a, _ in chosen], [b for _, b in chosen]
    return kept, encode_pairs(sources, targets, START, END)
