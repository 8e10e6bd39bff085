"""How well a run knows the starter corpus: by kind of sentence, by pattern, by head.

    python -m benchmarks.starter --model runs/starter

Beside the model stands a baseline without any model: the translation of the training
sentence that is closest in words (edit distance).
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.metrics import score
from data.preparation import STARTER, corpus_hashes
from data.starter.compose import Pair, StarterCorpus, compose
from data.text import words_of
from explain.starter import Result, alignment_scores, score_tests
from explain.translator import Translator
from model.checkpoint import read_config
from model.command import parse, run


@dataclass(frozen=True)
class Arguments:
    """Test a run on the starter corpus that it was trained on."""

    model: Path = Path("runs/starter")
    """The run directory."""
    patterns: bool = True
    """Print the share of exact translations pattern by pattern."""
    baseline: bool = True
    """Print the nearest-neighbour baseline."""


def nearest(starter: StarterCorpus, sources: Sequence[str]) -> list[str]:
    """Return the translation of the training sentence closest to each source.

    The distance is Levenshtein's, in words, case and punctuation ignored; of equally
    close ones the first in the corpus wins.
    """
    number: dict[str, int] = {}

    def encoded(text: str) -> list[int]:
        words = [word.casefold() for word in words_of(text)]
        return [number.setdefault(word, len(number)) for word in words]

    train = [encoded(pair.source) for pair in starter.train]
    lengths = np.array([len(words) for words in train])
    matrix = np.full((len(train), lengths.max()), -1)
    for row, words in enumerate(train):
        matrix[row, : len(words)] = words
    found = [int(_distances(encoded(s), matrix, lengths).argmin()) for s in sources]
    return [starter.train[index].target for index in found]


def _distances(words: list[int], matrix: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the edit distance of words to each row of a padded matrix."""
    rows, width = matrix.shape
    previous = np.broadcast_to(np.arange(width + 1), (rows, width + 1))
    for place, word in enumerate(words, start=1):
        current = np.empty((rows, width + 1), dtype=np.int64)
        current[:, 0] = place
        kept = previous[:, :-1] + (matrix != word)
        best = np.minimum(kept, previous[:, 1:] + 1)
        for column in range(width):
            current[:, column + 1] = np.minimum(best[:, column], current[:, column] + 1)
        previous = current
    result: np.ndarray = previous[np.arange(rows), lengths]
    return result


def _print_patterns(results: Sequence[Result]) -> None:
    total: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for result in results:
        for pair, hit in zip(result.pairs, result.hits, strict=True):
            total[pair.pattern] += 1
            right[pair.pattern] += hit
    names = sorted(total, key=lambda name: (right[name] / total[name], name))
    print(f"\nExact translations by pattern, {len(names)} patterns, the worst first:")
    for name in names:
        print(f"  {name:<28}{right[name]:>4} of {total[name]}")


def _long(pairs: Sequence[Pair]) -> float:
    return sum(len(words_of(pair.source)) >= 8 for pair in pairs) / len(pairs)


def _main() -> None:
    arguments = parse(Arguments, None, "-m benchmarks.starter")
    config = read_config(arguments.model)
    as_now = corpus_hashes([STARTER]).items() <= config["corpora"].items()
    # Of a fine-tuned one the run before may have learned this one's test sentences.
    if config["languages"] != ["en", "ja"] or not as_now or config["started_from"]:
        raise ValueError(
            f"{arguments.model} was not trained from English to Japanese on the "
            "starter corpus as it is now, and on nothing before: train another"
        )
    translator = Translator.load(arguments.model)
    starter = compose(int(config["seed"]))
    results = score_tests(starter, translator.best)
    print(f"seed {config['seed']}, {len(starter.train):,} training pairs")
    for result in results:
        print(
            f"{result.name:<28}{len(result.pairs):>6,} sentences, "
            f"{_long(result.pairs):4.0%} of 8 words or more: "
            f"exact {result.exact:6.1%}, chrF {result.chrf:5.1f}"
        )
        if arguments.baseline:
            targets = [pair.target for pair in result.pairs]
            guesses = nearest(starter, [pair.source for pair in result.pairs])
            hits = sum(map(str.__eq__, guesses, targets)) / len(targets)
            chrf = score(guesses, targets, "ja").chrf
            print(f"  nearest neighbour: exact {hits:.1%}, chrF {chrf:.1f}")
    scores = alignment_scores(
        translator.model, translator.source, translator.target, starter
    )
    print("\nCross-attention against the gold alignments of the new sentences:")
    for name, found in scores.items():
        true = found.true_weight
        weight = "" if true is None else f", weight on the true word {true:.3f}"
        print(
            f"  {name:<28}error rate {found.error_rate:.3f}, sure links found "
            f"{found.sure_recall:.3f}{weight}"
        )
    if arguments.patterns:
        _print_patterns([r for r in results if r.name.startswith("new")])


if __name__ == "__main__":
    sys.exit(run(_main, "benchmarks.starter"))
