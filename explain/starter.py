"""How well a model has learned the starter corpus, and how well its attention aligns.

The corpus is composed, so its test sentences come with everything that real ones lack:
the one right translation, the pattern that made them, and the true word alignment.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from data.metrics import score
from data.starter.compose import Pair, StarterCorpus
from data.text import normalise
from data.tokenizer import Tokenizer
from explain.alignment import Example, Gold, Scores, chosen_on, forced_weights, measure
from explain.translator import Translator
from explain.words import given_words
from model.transformer import Transformer

Translate = Callable[[Sequence[str]], Sequence[str]]
"""What translates sentences, each into one."""


@dataclass(frozen=True)
class Result:
    """Translations of one kind of test sentence, held against the right ones."""

    name: str
    pairs: tuple[Pair, ...]
    hypotheses: tuple[str, ...]

    @property
    def hits(self) -> tuple[bool, ...]:
        """Which translations are right to the last character."""
        pairs = zip(self.pairs, self.hypotheses, strict=True)
        return tuple(pair.target == hypothesis for pair, hypothesis in pairs)

    @property
    def exact(self) -> float:
        """Share of translations that are right to the last character."""
        return sum(self.hits) / len(self.hits)

    @property
    def chrf(self) -> float:
        """chrF, 0 to 100."""
        return score(self.hypotheses, [pair.target for pair in self.pairs], "ja").chrf


def carelessly(english: str) -> str:
    """Return a sentence in lower case and without its final mark."""
    return english.lower().rstrip(".?!")


def score_tests(starter: StarterCorpus, translate: Translate) -> list[Result]:
    """Translate the test sets of the starter corpus, each kind apart."""

    def result(name: str, pairs: Sequence[Pair], sources: Sequence[str]) -> Result:
        return Result(name, tuple(pairs), tuple(translate(sources)))

    new = starter.test_new
    kinds: list[tuple[str, Sequence[Pair], list[str]]] = [
        ("new sentences", new, [p.source for p in new]),
        ("the same, typed carelessly", new, [carelessly(p.source) for p in new]),
        (
            "new combinations",
            starter.test_combinations,
            [p.source for p in starter.test_combinations],
        ),
        (
            "hand-written sentences",
            starter.test_sentences,
            [p.source for p in starter.test_sentences],
        ),
    ]
    return [result(*kind) for kind in kinds if kind[1]]


def starter_report(
    translator: Translator, starter: StarterCorpus, fine_tuned: bool = False
) -> str:
    """Return, to print, how well the corpus was learned and how attention aligns.

    What a model that was fine-tuned had learned before may have been among the tests.
    """
    unseen = "none of which was trained on"
    if fine_tuned:
        unseen = "none of which this training had (the run before may have)"
    lines = [f"Test sentences of the starter corpus, {unseen}:"]
    for result in score_tests(starter, translator.best):
        lines.append(
            f"  {result.name:<28}{len(result.pairs):>6,} sentences   exact "
            f"{result.exact:6.1%}   chrF {result.chrf:5.1f}"
        )
    model, source, target = translator.model, translator.source, translator.target
    lines.append(
        "Cross-attention against the true word alignments of the new sentences:"
    )
    for name, scores in alignment_scores(model, source, target, starter).items():
        weight = ""
        if scores.true_weight is not None:
            weight = f"   weight on the true word {scores.true_weight:.2f}"
        lines.append(
            f"  {name:<28}alignment error rate {scores.error_rate:.3f}   sure links "
            f"found {scores.sure_recall:6.1%}{weight}"
        )
    return "\n".join(lines)


def alignment_scores(
    model: Transformer,
    source: Tokenizer,
    target: Tokenizer,
    starter: StarterCorpus,
) -> dict[str, Scores]:
    """Return how the cross-attention over new sentences agrees with the gold words.

    The right translation is forced. Head and layer are chosen on dev, which the
    training used to choose its weights but whose alignments it never saw. Sentences
    that are too long for the model are left out; where no other is left, so are scores.
    """
    dev, test = (
        list(_examples(model, source, target, [p for p in pairs if p.sure]))
        for pairs in (starter.dev, starter.test_new)
    )
    return chosen_on(measure(dev), measure(test)) if dev and test else {}


def _examples(
    model: Transformer, source: Tokenizer, target: Tokenizer, pairs: Sequence[Pair]
) -> Iterator[Example]:
    start, end = model.config.start_id, model.config.end_id
    encoded = (
        (
            pair,
            [*source.encode(pair.source), end],
            target.encode_words(pair.target_words),
        )
        for pair in pairs
    )
    fitting = [
        (pair, ids_in, ids_out)
        for pair, ids_in, ids_out in encoded
        if max(len(ids_in), len(ids_out) + 1) <= model.config.max_length
    ]
    read = [(ids_in, [start, *ids_out]) for _, ids_in, ids_out in fitting]
    weights = forced_weights(model, read)
    for (pair, ids_in, ids_out), found in zip(fitting, weights, strict=True):
        yield Example(
            found,
            given_words(
                source.tokens(ids_in), [normalise(w) for w in pair.source_words]
            ),
            given_words(target.tokens([*ids_out, end]), pair.target_words),
            Gold(pair.sure, pair.possible),
        )
