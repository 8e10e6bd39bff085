"""From corpora to what a training reads: cleaned, split, tokenized, encoded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from datasets import concatenate_datasets

from data.batching import EncodedPairs, encode_pairs
from data.corpus import Pair, clean, hold_out, pairs_of, read_corpus
from data.text import TextError
from data.tokenizer import END, START, Tokenizer, train_tokenizer

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

    reverse swaps the sides. With tokenizers given, none are trained. Raises `TextError`
    where nothing is left to train on.
    """
    datasets = [read_corpus(name, reverse) for name in corpora]
    read = pairs_of(concatenate_datasets(datasets))
    dev_pairs = pairs_of(read_corpus(dev, reverse)) if dev else []
    test_pairs = pairs_of(read_corpus(test, reverse)) if test else []
    pairs, cleaning = clean(read, [*dev_pairs, *test_pairs])
    say(str(cleaning))
    if not pairs:
        raise TextError(f"no pair of {', '.join(corpora)} is fit for training")
    if not dev:
        count = min(MOST_DEV, round(len(pairs) * DEV_SHARE))
        pairs, dev_pairs = hold_out(pairs, count, seed)
        say(f"{len(dev_pairs):,} pairs held out to validate on")
    source, target = tokenizers or _train_both(pairs, vocabulary, say)
    pairs, train = _encode(pairs, source, target, max_length, say)
    kept_dev, dev_encoded = _encode(dev_pairs, source, target, max_length, lambda _: 0)
    if not pairs or not kept_dev:
        raise TextError(
            f"every sentence is over {max_length} tokens: raise --max-length"
        )
    return Material(
        tuple(pairs),
        train,
        tuple(kept_dev),
        dev_encoded,
        tuple(test_pairs),
        source,
        target,
    )


def _train_both(
    pairs: Sequence[Pair], vocabulary: int, say: Callable[[str], object]
) -> tuple[Tokenizer, Tokenizer]:
    """Train the tokenizers of both sides on the training text."""
    source = train_tokenizer((pair[0] for pair in pairs), vocabulary, "source")
    target = train_tokenizer((pair[1] for pair in pairs), vocabulary, "target")
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
    max_length: int,
    say: Callable[[str], object],
) -> tuple[list[Pair], EncodedPairs]:
    """Return the pairs that fit into max_length tokens a side, as text and as ids."""
    ids = [(source.encode(a), target.encode(b)) for a, b in pairs]
    fits = [max(len(a), len(b)) < max_length for a, b in ids]
    if not all(fits):
        say(f"{fits.count(False):,} pairs of {max_length} tokens or more left out")
    kept = [pair for pair, fit in zip(pairs, fits, strict=True) if fit]
    chosen = [pair for pair, fit in zip(ids, fits, strict=True) if fit]
    sources, targets = [a for a, _ in chosen], [b for _, b in chosen]
    return kept, encode_pairs(sources, targets, START, END)
