"""How well a model's cross-attention agrees with people's word alignments.

    python -m benchmarks.alignment --model runs/tatoeba

KFTT's hand-aligned sentences (Neubig 2011) are forced through the model, and every
head's alignment is scored, beside a diagonal and beside eflomal (Östling and Tiedemann
2016) trained on the model's own text. docs/alignment.md has the method.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from data.corpus import Pair, pairs_of, read_corpus
from data.preparation import STARTER
from data.text import normalise, read_file
from explain.alignment import (
    Example,
    Gold,
    Link,
    Measured,
    Scores,
    forced_weights,
    measure,
    parse_links,
    score,
)
from explain.translator import Translator
from explain.words import given_words, mecab_words
from model.checkpoint import read_config
from model.command import parse, run
from train import named_corpora

PROGRAM = "benchmarks.alignment"


@dataclass(frozen=True)
class Arguments:
    """Score the alignments that a model's cross-attention gives."""

    model: Path = Path("runs/tatoeba")
    """The run directory of an English-Japanese model."""
    gold: Path = Path("../shared/corpora/kftt_alignments")
    """A folder with test.en and test.ja, tokenized, and test.gold, their links."""
    skip: tuple[int, ...] = (351, 352, 354, 355, 356)
    """Lines that are left out, counted from 1; by default those that KFTT has wrong."""
    short: int = 16
    """The pairs of at most so many English words are reported apart."""
    as_written: bool = False
    """Give the model the English as people write it, with a capital at its start and no
    space before its marks, in place of the file's lower-case tokens."""
    corpus: tuple[str, ...] = ()
    """What eflomal learns from; by default what the model was trained on."""
    without_eflomal: bool = False
    """Leave eflomal out."""


@dataclass(frozen=True)
class Aligned:
    """A sentence pair as words, and its true links."""

    source: list[str]
    target: list[str]
    gold: Gold
    text: str
    """The source as the model reads it: its words with or without spaces."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns its exit code."""
    program = f"-m {PROGRAM}"
    return run(lambda: _main(parse(Arguments, argv, program)), PROGRAM)


def _main(arguments: Arguments) -> None:
    translator = Translator.load(arguments.model)
    if translator.languages != ("en", "ja"):
        raise ValueError(
            f"{arguments.model} is no English-Japanese model: name another"
        )
    read = read_gold(arguments.gold, arguments.skip)
    if arguments.as_written:
        read = [as_written(pair) for pair in read]
    fits = [pair for pair in read if _ids(translator, pair) is not None]
    if not fits:
        raise ValueError(f"the model can read no sentence of {arguments.gold}")
    short = [pair for pair in fits if len(pair.source) <= arguments.short]
    corpus = [] if arguments.without_eflomal else _corpus(arguments)
    rows = _model_rows(translator, [fits, short])
    if not arguments.without_eflomal:
        rows |= _eflomal_rows(corpus, [fits, short])
    Console().print(_table(rows, arguments, len(short)))
    notes = [
        f"{len(fits)} of the {len(read)} pairs of {arguments.gold}: the others are "
        f"longer than the model reads. {len(short)} of them have at most "
        f"{arguments.short} English words. Lines left out: {len(arguments.skip)}.",
        "One link for each Japanese word. AER*: only for those that have a true link.",
        "Weight: the mean weight on the true English words of a Japanese word.",
    ]
    if not arguments.without_eflomal and not any("eflomal" in name for name in rows):
        notes.append("No eflomal: pip install -c constraints.txt '.[bench,ja]'")
    print("\n".join(notes))


def read_gold(folder: Path, skip: Iterable[int] = ()) -> list[Aligned]:
    """Return the sentence pairs of a folder, without the lines to skip (from 1)."""
    files = [read_file(folder / f"test.{name}") for name in ("en", "ja", "gold")]
    if len({len(lines) for lines in files}) != 1:
        sizes = ", ".join(str(len(lines)) for lines in files)
        raise ValueError(
            f"the files of {folder} have {sizes} lines: they must be equal"
        )
    return [
        Aligned(source.split(" "), target.split(" "), parse_links(links), source)
        for number, (source, target, links) in enumerate(zip(*files, strict=True), 1)
        if number not in set(skip)
    ]


def as_written(pair: Aligned) -> Aligned:
    """Return a pair with its English as people write it: a capital, marks close up."""
    source = [pair.source[0].capitalize(), *pair.source[1:]]
    return replace(pair, source=source, text=_NO_SPACE.sub("", " ".join(source)))


_NO_SPACE = re.compile(r" (?=[.,?!:;)%]|'s\b|n't\b)|(?<=[($]) ")


# ----------------------------------------------------------------------- the model


def _ids(translator: Translator, pair: Aligned) -> tuple[list[int], list[int]] | None:
    """Return a pair as the model reads it, None where that is too long."""
    config = translator.model.config
    source = [*translator.source.encode(pair.text), config.end_id]
    target = [config.start_id, *translator.target.encode("".join(pair.target))]
    longest = max(len(source), len(target))
    return (source, target) if longest <= config.max_length else None


def _examples(translator: Translator, pairs: Sequence[Aligned]) -> Iterator[Example]:
    ids = [found for pair in pairs if (found := _ids(translator, pair)) is not None]
    maps = forced_weights(translator.model, ids)
    for pair, (source, target), weights in zip(pairs, ids, maps, strict=True):
        words = [normalise(word) for word in pair.source]
        yield Example(
            weights,
            given_words(translator.source.tokens(source), words),
            # Row t predicts token t + 1 of those that are read.
            given_words(translator.target.tokens(target[1:]), pair.target),
            pair.gold,
        )


Row = list[tuple[Scores, float]]
"""For each set of pairs: the scores of a link for each target word, and AER*."""


def _model_rows(
    translator: Translator, sets: Sequence[Sequence[Aligned]]
) -> dict[str, Row]:
    """Return the scores of each head, each mean and the diagonal, by name."""
    rows: dict[str, Row] = {}
    for pairs in sets:
        if not pairs:
            continue
        examples = list(_examples(translator, pairs))
        every, asked = (_named(measure(examples, every_word=e)) for e in (True, False))
        for name, scores in every.items():
            rows.setdefault(name, []).append((scores, asked[name].error_rate))
    return rows


def _named(measured: Measured) -> dict[str, Scores]:
    heads = {str(heads): scores for heads, scores in measured.heads.items()}
    return heads | {"diagonal": measured.diagonal}


# ------------------------------------------------------------------------- eflomal

_ENGLISH = re.compile(r"\w+(?:[-'.]\w+)*|[^\w\s]")


def _corpus(arguments: Arguments) -> list[Pair]:
    """Return the pairs that eflomal is to learn from."""
    names = arguments.corpus or named_corpora(read_config(arguments.model))
    if not names or STARTER in names:
        raise ValueError(
            "eflomal needs files to learn from, which this model does not name: name "
            "them with --corpus, or leave eflomal out with --without-eflomal"
        )
    return [pair for name in names for pair in pairs_of(read_corpus(name))]


def _eflomal_rows(
    corpus: Sequence[Pair], sets: Sequence[Sequence[Aligned]]
) -> dict[str, Row]:
    """Return eflomal's scores, by name; none where it is not installed.

    The first of the sets holds the others; eflomal reads its sentences with the corpus.
    """
    try:
        forward, reverse = _eflomal(corpus, sets[0])
    except ImportError:
        return {}
    both = [grow_diag_final_and(*pair) for pair in zip(forward, reverse, strict=True)]
    rows: dict[str, Row] = {}
    for name, found in (("forward", forward), ("reverse", reverse), ("both", both)):
        links = {id(pair): links for pair, links in zip(sets[0], found, strict=True)}
        for pairs in filter(None, sets):
            scored = [(links[id(pair)], pair.gold) for pair in pairs]
            asked = [({x for x in a if x[1] in {t for _, t in gold.sure}}, gold)
                     for a, gold in scored]  # fmt: skip
            rows.setdefault(f"eflomal, {name}", []).append(
                (score(scored), score(asked).error_rate)
            )
    return rows


def _eflomal(
    corpus: Sequence[Pair], pairs: Sequence[Aligned]
) -> tuple[list[set[Link]], list[set[Link]]]:
    """Return links with one for each target word, and with one for each source word."""
    import eflomal

    english = [" ".join(_ENGLISH.findall(normalise(source))) for source, _ in corpus]
    japanese = [" ".join(mecab_words(target)) for _, target in corpus]
    taught = [pair for pair in zip(english, japanese, strict=True) if all(pair)]
    segmented = [mecab_words("".join(pair.target)) for pair in pairs]
    source = [pair[0] for pair in taught] + [" ".join(pair.source) for pair in pairs]
    target = [pair[1] for pair in taught] + [" ".join(words) for words in segmented]
    with TemporaryDirectory() as folder:
        written = [Path(folder) / name for name in ("forward", "reverse")]
        eflomal.Aligner().align(
            [line.lower() for line in source],
            target,
            links_filename_fwd=str(written[0]),
            links_filename_rev=str(written[1]),
        )
        found = [read_file(path)[len(taught) :] for path in written]
    forward, reverse = (
        [_on_gold_words(parse_links(line).sure, words, pair.target)
         for line, words, pair in zip(lines, segmented, pairs, strict=True)]
        for lines in found
    )  # fmt: skip
    return forward, reverse


def _on_gold_words(
    links: Iterable[Link], words: Sequence[str], gold: Sequence[str]
) -> set[Link]:
    """Return links to one segmentation's target words as links to another's.

    A word of the other takes the links of the word that it shares most characters with,
    the first of equals.
    """
    owner = [number for number, word in enumerate(words) for _ in word]
    moved: set[Link] = set()
    start = 0
    for number, word in enumerate(gold):
        held = owner[start : start + len(word)]
        start += len(word)
        most = max(held, key=held.count)
        moved.update((source, number) for source, target in links if target == most)
    return moved


def grow_diag_final_and(forward: set[Link], reverse: set[Link]) -> set[Link]:
    """Return one alignment of two directions' (Koehn et al. 2005)."""
    found, union = forward & reverse, forward | reverse

    def is_new(link: Link, both: bool) -> bool:
        free = (
            link[0] not in {s for s, _ in found},
            link[1] not in {t for _, t in found},
        )
        return all(free) if both else any(free)

    waiting = sorted(found)
    while waiting:
        source, target = waiting.pop(0)
        for step_source, step_target in _NEIGHBOURS:
            link = source + step_source, target + step_target
            if link in union - found and is_new(link, both=False):
                found.add(link)
                waiting.append(link)
    for link in [*sorted(forward), *sorted(reverse)]:
        if is_new(link, both=True):
            found.add(link)
    return found


_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


# --------------------------------------------------------------------------- table


def _table(rows: dict[str, Row], arguments: Arguments, short: int) -> Table:
    """Return the rows as a table, in percent."""
    table = Table(title=f"Alignment of {arguments.model} (%)", title_justify="left")
    table.add_column("")
    columns = ["AER", "Prec.", "Recall", "AER*", "Weight"]
    if short:
        columns += [f"AER ≤{arguments.short}", "AER*"]
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in rows.items():
        (scores, asked), *others = row
        figures = [scores.error_rate, scores.precision, scores.recall, asked,
                   scores.true_weight]  # fmt: skip
        for other, other_asked in others:
            figures += [other.error_rate, other_asked]
        texts = ("" if figure is None else f"{100 * figure:.1f}" for figure in figures)
        table.add_row(name, *texts)
    return table


if __name__ == "__main__":
    sys.exit(main())
