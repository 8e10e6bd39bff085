"""How good translations are beside others of the same sentences.

    python -m benchmarks.quality --test test.tsv ours.txt torch.txt --train train.tsv

Each file holds one system's translations of the test sentences, line by line; a system
is called by its file's name. Scores are sacreBLEU's with their 95% intervals, and the
p-value of a difference from the first system, by paired bootstrap resampling (Koehn
2004).

With --train the same is printed without the test sentences whose English stands in it
(case, width and punctuation ignored), and for near twins apart: those whose English
stands in it but for names and pronouns. A name is a word that training text writes with
a capital inside its sentences.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from data.corpus import Pair, read_pairs
from data.metrics import bleu_tokenizer
from data.recasing import usual_forms
from data.text import comparison_key, read_file, words_of
from model.command import parse, run

_PRONOUNS = """i you he she it we they me him her us them my your his its our their mine
    yours hers ours theirs myself yourself himself herself itself ourselves yourselves
    themselves"""
PRONOUNS = frozenset(_PRONOUNS.split())
_WORD = re.compile(r"'?[^']+")  # I'm is I and 'm


@dataclass(frozen=True)
class Arguments:
    """Compare translations of the same sentences."""

    systems: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """A file of translations for each system; the first is what others are compared
    with."""
    test: str
    """The sentences and their references: FILE.tsv or two files FILE.en,FILE.ja."""
    train: tuple[str, ...] = ()
    """What the systems have learned from."""
    language: Literal["ja", "en"] = "ja"
    """What was translated into; BLEU counts Japanese by MeCab's words."""
    tokenized: bool = False
    """Count the words as references and translations give them, spaces between them."""
    samples: int = 1_000
    """Resamples of the bootstrap."""

    def __post_init__(self) -> None:
        if not self.systems:
            raise ValueError("no system is named: give its file of translations")


def masked(sentence: str, names: frozenset[str]) -> str:
    """Return an English sentence with one sign in place of each name and pronoun."""
    parts = (_WORD.findall(word.casefold()) for word in words_of(sentence))
    return " ".join(
        "*" if part in PRONOUNS or part in names else part
        for word in parts
        for part in word
    )


def select(test: Sequence[Pair], train: Sequence[str]) -> dict[str, list[int]]:
    """Return rows of the test set, by what they are, from the English of train."""
    names = frozenset(usual_forms(train))
    seen = {comparison_key(sentence) for sentence in train}
    twins = {masked(sentence, names) for sentence in train}
    rows = range(len(test))
    new = [row for row in rows if comparison_key(test[row][0]) not in seen]
    near = [row for row in new if masked(test[row][0], names) in twins]
    apart = sorted(set(new) - set(near))
    groups = {"whose English was not trained on": new, "near twins": near,
              "of these neither": apart}  # fmt: skip
    if len(new) == len(test):
        del groups["whose English was not trained on"]
    return groups


def _main() -> int:
    arguments = parse(Arguments, None, "-m benchmarks.quality")
    test = list(read_pairs(arguments.test))
    systems = {path.stem: read_file(path) for path in arguments.systems}
    if len(systems) < len(arguments.systems):
        raise ValueError("two systems have one name: rename a file")
    for name, lines in systems.items():
        if len(lines) != len(test):
            raise ValueError(
                f"{name} has {len(lines):,} lines for {len(test):,} sentences"
            )
    groups = {"all": list(range(len(test)))}
    if arguments.train:
        english = [source for name in arguments.train for source, _ in read_pairs(name)]
        groups |= select(test, english)
    tokenizer = "none" if arguments.tokenized else bleu_tokenizer(arguments.language)
    for group, rows in groups.items():
        print(f"{group}: {len(rows):,} sentences ({len(rows) / len(test):.1%})")
        if rows:
            chosen: list[tuple[str, Sequence[str]]] = [
                (name, [lines[row] for row in rows]) for name, lines in systems.items()
            ]
            references = [test[row][arguments.language == "ja"] for row in rows]
            _print_scores(chosen, references, tokenizer, arguments.samples)
    return 0


def _print_scores(
    systems: list[tuple[str, Sequence[str]]],
    references: list[str],
    tokenizer: str,
    samples: int,
) -> None:
    """Print a line for each system, then the metrics' signatures."""
    # The test wants another system to compare with; one alone is given its double.
    alone = len(systems) == 1
    given = [*systems, ("again", systems[0][1])] if alone else systems
    metrics = {"BLEU": BLEU(tokenize=tokenizer, references=[references]),
               "chrF": CHRF(references=[references])}  # fmt: skip
    signatures, found = PairedTest(
        given, metrics, references=None, test_type="bs", n_samples=samples
    )()
    for row, (name, _) in enumerate(systems):
        figures = []
        for metric in signatures:
            result = found[metric][row]
            assert isinstance(result, Result)
            p = "" if result.p_value is None else f" p = {result.p_value:.3f}"
            figures.append(f"{metric} {result.score:5.2f} ±{result.ci:.2f}{p:<10}")
        print(f"  {name:<24} {'  '.join(figures)}")
    for metric, signature in signatures.items():
        print(f"  {metric} {signature.format()}")


if __name__ == "__main__":
    sys.exit(run(_main, "benchmarks.quality"))
