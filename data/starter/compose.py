"""Compose the starter corpus: English-Japanese pairs with gold word alignments.

`python -m data.starter.compose --sample 300 --seed 7` prints pairs for proof-reading;
`python -m data.starter.compose --guide docs/starter.md` writes that.
"""

import argparse
import random
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from data.command import run
from data.starter.glossary import GlossaryEntry, guide, make_glossary
from data.starter.grammar import Atom, Pattern, Sentence, read_patterns
from data.starter.lexicon import HERE, Lexicon, read_lexicon
from data.starter.sampling import Impossible, Sampler, draw
from data.starter.typing_styles import vary
from data.text import read_file

__all__ = ["GlossaryEntry", "Pair", "StarterCorpus", "compose", "vary"]

DEV, TEST_NEW, TEST_COMBINATIONS, TEST_SENTENCES = 600, 1_000, 600, 200
ENOUGH_SENTENCES = 400
HELD_OUT_SHARE = 0.10
LOVE = re.compile(r"\b(love|loves|loved|loving|lover|lovely)\b", re.IGNORECASE)
MARKS = re.compile(r" ([.,?!])")
PARTICLES = frozenset(
    ("は", "が", "を", "に", "で", "へ", "と", "も", "の", "や", "か", "ね", "よ")
    + ("から", "まで", "より", "ので", "について")
)
"""Target words whose links are never sure: English may say them in any way, or none."""
Combination = tuple[str, str]


@dataclass(frozen=True)
class Pair:
    """An English sentence, its Japanese one, and which words stand for which.

    Links are (source word, target word); `sure` and `possible` share none.
    """

    source: str
    target: str
    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]
    pattern: str


@dataclass(frozen=True)
class StarterCorpus:
    """The starter corpus, split; `held_out` lists (verb or adjective, noun)."""

    train: tuple[Pair, ...]
    dev: tuple[Pair, ...]
    test_new: tuple[Pair, ...]
    test_combinations: tuple[Pair, ...]
    test_sentences: tuple[Pair, ...]
    glossary: tuple[GlossaryEntry, ...]
    held_out: frozenset[Combination]


def split_english(text: str) -> tuple[str, ...]:
    """Split at spaces; a final mark and a comma are words of their own."""
    return tuple(re.sub(r"([.?!]$|,(?= ))", r" \1", text).split())


def key(text: str) -> str:
    """Return text without case, punctuation and spaces, to compare sentences."""
    return re.sub(r"[\s.,?!'’。、！？]", "", text).lower()


def check_love(english: str) -> None:
    """Refuse a sentence that joins any form of love with machine learning."""
    if LOVE.search(english) and "machine learning" in english.lower():
        raise ValueError(f"love must not meet machine learning: {english!r}")


# Links


def _lean(atoms: list[Atom], forward: bool) -> list[Atom]:
    """Give each unlabelled word the labels of the word that it leans on."""
    order = range(len(atoms) - 1, -1, -1) if forward else range(len(atoms))
    result, near = list(atoms), tuple[str, ...]()
    for index in order:
        atom = atoms[index]
        if atom.text in ".?。":
            result[index] = Atom(atom.text, (), (".",))
        elif atom.text in ",、":
            result[index] = Atom(atom.text, (), (",",))
        elif atom.sure or atom.possible:
            near = atom.sure or atom.possible
        else:
            result[index] = Atom(atom.text, (), near)
    return result


def _links(
    source: list[Atom], target: list[Atom]
) -> tuple[frozenset[tuple[int, int]], frozenset[tuple[int, int]]]:
    sure: set[tuple[int, int]] = set()
    possible: set[tuple[int, int]] = set()
    ends: dict[str, list[tuple[int, bool]]] = {}
    for j, word in enumerate(target):
        for label in word.sure:
            ends.setdefault(label, []).append((j, True))
        for label in word.possible:
            ends.setdefault(label, []).append((j, False))
    for i, word in enumerate(source):
        for labels, strong in ((word.sure, True), (word.possible, False)):
            for label in labels:
                for j, also in ends.get(label, ()):
                    certain = strong and also and target[j].text not in PARTICLES
                    (sure if certain else possible).add((i, j))
    return frozenset(sure), frozenset(possible - sure)


# Composed pairs


def _spell(source: list[Atom]) -> tuple[str, tuple[str, ...]]:
    """Return an English sentence and its words."""
    words = [atom.text for atom in source]
    words[0] = words[0][0].upper() + words[0][1:]
    return MARKS.sub(r"\1", " ".join(words)), tuple(words)


def _pair(sentence: Sentence, source: list[Atom], target: list[Atom]) -> Pair:
    english, words = _spell(source)
    terms = tuple(atom.text for atom in target)
    links = _links(_lean(source, forward=True), _lean(target, forward=False))
    return Pair(english, "".join(terms), words, terms, *links, sentence.pattern.name)


def _allowed(sentence: Sentence, english: str) -> bool:
    """Return whether words keep apart that must, and the tense stays clear."""
    fills = sentence.fills
    for fill in fills.values():
        for word in fill.noun.not_with if fill.noun else ():
            stem = re.escape(word.removesuffix("e"))
            if re.search(rf"\b{stem}(e|es|ed|ing|s)?\b", english, re.IGNORECASE):
                return False
        verb = fill.verb
        if verb is not None and verb.base == verb.past and "when" not in fills:
            forms = {m.form for m in sentence.pattern.english if m.slot}
            if forms & {"past", "s"}:
                return False
    return True


def _runs_together(words: list[str], joins: dict[str, list[tuple[str, str]]]) -> bool:
    """Return whether two words side by side would be cut elsewhere.

    `joins` is keyed by the two characters that meet.
    """
    return any(
        first.endswith(before) and second.startswith(after)
        for first, second in zip(words, words[1:], strict=False)
        for before, after in joins.get(first[-1] + second[0], ())
    )


def _combinations(sentence: Sentence) -> list[Combination]:
    found: list[Combination] = []
    fills = sentence.fills
    for name, fill in fills.items():
        noun = fill.noun
        if noun is None:
            continue
        verb = fill.verb or (fills["verb"].verb if name == "object" else None)
        if verb is not None:
            found.append((verb.base, noun.english))
        if fill.adjective is not None:
            found.append((fill.adjective.english, noun.english))
        if name in ("thing", "object"):
            for other in ("adj", "adj2"):
                adjective = fills[other].adjective if other in fills else None
                if adjective is not None:
                    found.append((adjective.english, noun.english))
    return found


# Held-out combinations


def _licensed(lexicon: Lexicon) -> dict[Combination, tuple[str, ...]]:
    """Return each combination that may be held out, with its verb's word forms."""
    pairs: dict[Combination, tuple[str, ...]] = {}
    irregular: set[Combination] = set()
    for verb in lexicon.verbs:
        forms = (verb.base, verb.third, verb.past, verb.participle, verb.ing)
        for noun in lexicon.nouns_of(verb.objects, verb.row):
            pair = (verb.base, noun.english)
            pairs[pair] = tuple(form.split()[0] for form in forms)
            if not verb.combine or noun.not_with:
                irregular.add(pair)
    for adjective in lexicon.adjectives:
        forms = (
            adjective.english,
            adjective.comparative,
            adjective.superlative,
            "",
            "",
        )
        for noun in lexicon.nouns_of(adjective.describes, adjective.row):
            pair = (adjective.english, noun.english)
            pairs[pair] = tuple(form.split()[-1] for form in forms if form)
            if not adjective.combine or noun.not_with:
                irregular.add(pair)
    return {pair: forms for pair, forms in pairs.items() if pair not in irregular}


class _HeldOut:
    """The held-out combinations, and a test for sentences that hold one."""

    def __init__(self, lexicon: Lexicon, chosen: dict[Combination, tuple[str, ...]]):
        plural = {noun.english: noun.plural for noun in lexicon.nouns}
        self.pairs = frozenset(chosen)
        self.by_word: dict[str, list[tuple[str, frozenset[str]]]] = {}
        for (_, noun), forms in chosen.items():
            for shape in {noun, plural.get(noun) or noun}:
                first = shape.split()[0].lower()
                entry = (
                    f" {shape.lower()} ",
                    frozenset(form.lower() for form in forms),
                )
                self.by_word.setdefault(first, []).append(entry)

    def touches(self, words: Iterable[str]) -> bool:
        """Return whether both words of a held-out combination occur."""
        lower = [word.lower() for word in words]
        present, text = frozenset(lower), f" {' '.join(lower)} "
        return any(
            not forms.isdisjoint(present) and shape in text
            for word in present
            for shape, forms in self.by_word.get(word, ())
        )


def _hold_out(
    lexicon: Lexicon, rng: random.Random, fixed: Iterable[Iterable[str]]
) -> _HeldOut:
    """Choose the combinations to hold out; no word loses more than a quarter.

    None of them stands in the `fixed` words: hand-written sentences and patterns.
    """
    licensed = _licensed(lexicon)
    totals: dict[str, int] = {}
    for pair in licensed:
        for word in pair:
            totals[word] = totals.get(word, 0) + 1
    spoken: dict[str, list[str]] = {}
    for words in fixed:
        text = f" {' '.join(words)} ".lower()
        for first in set(text.split()):
            spoken.setdefault(first, []).append(text)
    chosen: dict[Combination, tuple[str, ...]] = {}
    lost: dict[str, int] = {}
    left = list(licensed)
    goal = int(len(left) * HELD_OUT_SHARE)
    while left and len(chosen) < goal:
        pair = left.pop(int(rng.random() * len(left)))
        full = any(4 * (lost.get(word, 0) + 1) > totals[word] for word in pair)
        if full or _spoken(pair, licensed[pair], spoken):
            continue
        chosen[pair] = licensed[pair]
        for word in pair:
            lost[word] = lost.get(word, 0) + 1
    return _HeldOut(lexicon, chosen)


def _spoken(
    pair: Combination, forms: tuple[str, ...], spoken: dict[str, list[str]]
) -> bool:
    """Return whether a fixed sentence may hold the combination."""
    noun = f" {pair[1].lower()}"
    return any(noun in text for form in forms for text in spoken.get(form.lower(), ()))


# Hand-written pairs


def read_sentences(path: Path) -> list[Pair]:
    """Read hand-written pairs: English, Japanese words, alignment if there is one."""
    pairs = []
    for number, line in enumerate(read_file(path), 1):
        if not line or line.startswith("#"):
            continue
        cells = line.split("\t")
        if len(cells) not in (2, 3) or not cells[0] or not cells[1]:
            raise ValueError(
                f"{path}:{number}: {len(cells)} columns; write English, the Japanese "
                "words and, if you like, an alignment, separated by one tab"
            )
        words, terms = split_english(cells[0]), tuple(cells[1].split())
        links = cells[2].split() if len(cells) == 3 else []
        sure, possible = _read_links(path, number, links, (len(words), len(terms)))
        target = "".join(terms)
        pairs.append(Pair(cells[0], target, words, terms, sure, possible, "sentence"))
    return pairs


def _read_links(
    path: Path, number: int, links: list[str], size: tuple[int, int]
) -> tuple[frozenset[tuple[int, int]], frozenset[tuple[int, int]]]:
    sure: set[tuple[int, int]] = set()
    possible: set[tuple[int, int]] = set()
    for link in links:
        match = re.fullmatch(r"(\d+)([-?])(\d+)", link)
        if match is None:
            raise ValueError(f"{path}:{number}: cannot read {link!r}; write 0-1 or 0?1")
        i, j = int(match[1]), int(match[3])
        if i >= size[0] or j >= size[1]:
            raise ValueError(
                f"{path}:{number}: {link} is out of range for {size[0]} English and "
                f"{size[1]} Japanese words; count from 0"
            )
        (sure if match[2] == "-" else possible).add((i, j))
    return frozenset(sure), frozenset(possible - sure)


def _read_all_sentences(folder: Path) -> list[Pair]:
    pairs: dict[str, Pair] = {}
    for path in sorted(folder.glob("sentences_*.tsv")):
        for pair in read_sentences(path):
            check_love(pair.source)
            known = pairs.setdefault(key(pair.source), pair)
            if known.target != pair.target:
                raise ValueError(
                    f"{path}: {pair.source!r} has two translations, {known.target} and "
                    f"{pair.target}; keep one"
                )
    return list(pairs.values())


# The corpus


class _Composer:
    """Draws distinct pairs, apart those that hold a held-out combination."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lexicon = read_lexicon(folder)
        self.patterns = read_patterns(folder)
        self.sentences = _read_all_sentences(folder)
        fixed = [list(pair.source_words) for pair in self.sentences]
        fixed += [[mark.text for mark in p.english] for p in self.patterns]
        self.held_out = _hold_out(self.lexicon, self.rng, fixed)
        self.sampler = Sampler(self.lexicon, self.rng)
        self.deck = [p for p in self.patterns for _ in range(p.weight)]
        self.seen = {key(pair.source): pair.target for pair in self.sentences}
        self.by_hand = frozenset(self.seen)
        self.joins: dict[str, list[tuple[str, str]]] = {}
        for before, after in self.lexicon.joins:
            self.joins.setdefault(before[-1] + after[0], []).append((before, after))

    def next(self, pattern: Pattern) -> tuple[Pair, bool] | None:
        """Try once; return a new pair and whether it holds a held-out combination."""
        try:
            fills = self.sampler.fill(pattern)
        except Impossible:
            return None
        sentence = Sentence(pattern, fills)
        source, target = sentence.english(), sentence.japanese()
        english, words = _spell(source)
        terms = [atom.text for atom in target]
        if not _allowed(sentence, english) or _runs_together(terms, self.joins):
            return None
        if self._known(pattern, key(english), "".join(terms)):
            return None
        held = any(c in self.held_out.pairs for c in _combinations(sentence))
        if not held and self.held_out.touches(words):
            return None
        check_love(english)
        self.seen[key(english)] = "".join(terms)
        if not held:
            self.sampler.note(fills)
        return _pair(sentence, source, target), held

    def _known(self, pattern: Pattern, name: str, japanese: str) -> bool:
        known = self.seen.get(name)
        if known not in (None, japanese) and name not in self.by_hand:
            raise pattern.row.error(
                f"{name!r} is both {japanese} and {known}; a sentence needs one "
                "translation"
            )
        return known is not None

    def pools(self, size: int) -> tuple[list[Pair], list[Pair]]:
        """Return `size` pairs without held-out combinations, and those with."""
        plain: list[Pair] = []
        held: list[Pair] = []
        tries = 0
        for pattern in self.patterns:
            self._first(pattern, plain)
        while len(plain) < size or len(held) < 2 * TEST_COMBINATIONS:
            tries += 1
            if tries > 20 * size + 100_000:
                raise ValueError(f"the patterns cannot make {size} distinct pairs")
            found = self.next(draw(self.rng, self.deck))
            if found is not None and found[1]:
                held.append(found[0])
            elif found is not None and len(plain) < size:
                plain.append(found[0])
        return plain, held

    def _first(self, pattern: Pattern, plain: list[Pair]) -> None:
        for _ in range(400):
            found = self.next(pattern)
            if found is not None and not found[1]:
                plain.append(found[0])
                return
        raise pattern.row.error("no sentence can be made; loosen its slots")


def _take(
    pool: list[Pair], count: int, rng: random.Random, taken: set[str]
) -> list[Pair]:
    """Draw pairs whose Japanese no other pair of the pool or of `taken` has."""
    targets: dict[str, int] = {}
    for pair in pool:
        targets[key(pair.target)] = targets.get(key(pair.target), 0) + 1
    chosen: list[Pair] = []
    left = list(pool)
    while left and len(chosen) < count:
        pair = left.pop(int(rng.random() * len(left)))
        name = key(pair.target)
        if targets[name] == 1 and name not in taken:
            chosen.append(pair)
            taken.add(name)
    return chosen


def compose(seed: int = 1, size: int = 30_000, folder: Path = HERE) -> StarterCorpus:
    """Compose `size` distinct training pairs, the hand-written ones, dev and tests.

    The same seed and files give the same corpus everywhere.
    """
    composer = _Composer(folder, seed)
    first = len(composer.patterns)
    plain, held = composer.pools(size + DEV + TEST_NEW)
    rng, hand = composer.rng, composer.sentences
    # One sentence of each pattern stays in train.
    taken = {key(pair.target) for pair in (*hand, *plain[:first])}
    drawn = _take(plain[first:], DEV + TEST_NEW, rng, taken)
    apart = frozenset(pair.source for pair in drawn)
    train = [pair for pair in plain if pair.source not in apart]
    taken |= {key(pair.target) for pair in train}
    combinations = _take(held, TEST_COMBINATIONS, rng, taken)
    few = len(hand) < ENOUGH_SENTENCES
    test_sentences = (
        []
        if few
        else _take(hand, TEST_SENTENCES, rng, set(key(pair.target) for pair in train))
    )
    kept = frozenset(pair.source for pair in test_sentences)
    train += [pair for pair in hand if pair.source not in kept]
    return StarterCorpus(
        tuple(train),
        tuple(drawn[:DEV]),
        tuple(drawn[DEV:]),
        tuple(combinations),
        tuple(test_sentences),
        make_glossary(composer.lexicon, folder),
        composer.held_out.pairs,
    )


def _show(pair: Pair, words: bool) -> str:
    if words:
        links = " ".join(
            [f"{i}-{j}" for i, j in sorted(pair.sure)]
            + [f"{i}?{j}" for i, j in sorted(pair.possible)]
        )
        return "\t".join(
            (" ".join(pair.source_words), " ".join(pair.target_words), links)
        )
    return f"{pair.source}\t{pair.target}"


def make_guide(corpus: StarterCorpus) -> str:
    """Return docs/starter.md for a corpus of the tables of this folder."""
    first: dict[str, Pair] = {}
    for pair in corpus.train:
        first.setdefault(pair.pattern, pair)
    examples = (
        (pattern.row.theme, first[pattern.name].source, first[pattern.name].target)
        for pattern in read_patterns(HERE)
    )
    return guide(read_lexicon(), examples, len(_read_all_sentences(HERE)))


def main(arguments: list[str] | None = None) -> None:
    """Print random composed pairs, or write docs/starter.md."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--sample", type=int, default=0, help="pairs to print")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample")
    parser.add_argument("--words", action="store_true", help="show words and links")
    parser.add_argument("--guide", type=Path, help="file to write the guide to")
    given = parser.parse_args(arguments)
    if given.guide and not given.guide.parent.is_dir():
        folder = given.guide.parent
        raise ValueError(f"{given.guide}: there is no folder {folder}; make it first")
    if given.guide:
        given.guide.write_bytes(make_guide(compose()).encode())
    if given.sample:
        corpus = compose(given.seed)
        rng = random.Random(given.seed)
        composed = [pair for pair in corpus.train if pair.pattern != "sentence"]
        for _ in range(given.sample):
            pair = draw(rng, composed)
            print(pair.pattern, _show(pair, given.words), sep="\t")


if __name__ == "__main__":
    sys.exit(run(main, "data.starter.compose"))
