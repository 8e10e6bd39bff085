"""The reading and meaning of every word that the patterns can make."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from data.starter.grammar import VERB_FORMS, adjective_japanese, verb_japanese
from data.starter.lexicon import Adjective, Lexicon, Noun, Verb, Word, read_table


@dataclass(frozen=True)
class GlossaryEntry:
    """A word as it stands in target_words, its kana reading and English meaning."""

    word: str
    reading: str
    meaning: str


Entries = Iterator[tuple[str, str, str]]
_PARTICLES = ("の", "に", "で", "を", "が")
"""Words inside a phrase that have an entry of their own in little_words.tsv."""


def _verb(verb: Verb) -> Entries:
    """Read every form of a verb: the plain form's kana with the ending changed."""
    if " " in verb.plain or verb.plain == "する":
        if verb.plain != "する":
            noun, reading = verb.plain.split()[0], verb.reading.split()[0]
            yield noun, reading, verb.base
        return
    same = 0
    while verb.plain[-1 - same :] == verb.reading[-1 - same :] and same < len(
        verb.plain
    ):
        same += 1
    kanji = verb.plain[: len(verb.plain) - same]
    kana = verb.reading[: len(verb.reading) - same]
    for form in VERB_FORMS:
        word = verb_japanese("", verb, form)[0].text
        yield word, kana + word.removeprefix(kanji), verb.base


def _adjective(adjective: Adjective) -> Entries:
    words, readings = adjective.japanese.split(), adjective.reading.split()
    for word, reading in zip(words[:-1], readings[:-1], strict=True):
        if word not in _PARTICLES:
            yield word, reading, adjective.english
    for form in ("です", "past", "ない", "て"):
        word = adjective_japanese("", adjective, form)[len(words) - 1].text
        base = words[-1].removesuffix("い") if adjective.kind == "i" else words[-1]
        kana = (
            readings[-1].removesuffix("い") if adjective.kind == "i" else readings[-1]
        )
        yield word, kana + word.removeprefix(base), adjective.english


def _phrase(japanese: str, reading: str, english: str, word_by_word: bool) -> Entries:
    """Read the words of a phrase that means one English word each, or those of others.

    A word of the others means, as far as can be told, what the phrase does.
    """
    words = japanese.replace("/", " ").split()
    kana = reading.replace("/", " ").split()
    parts = [
        w for w in english.split() if w not in ("the", "a", "on", "in", "by", "my")
    ]
    content = [w for w in words if w not in _PARTICLES]
    if (len(parts) == len(content)) != word_by_word:
        return
    for word, sound in zip(words, kana, strict=True):
        if word in content:
            place = content.index(word)
            yield word, sound, parts[place] if word_by_word else " ".join(parts)


def _phrases(lexicon: Lexicon, word_by_word: bool) -> Entries:
    every: tuple[Noun | Word, ...] = (*lexicon.nouns, *lexicon.words)
    for one in every:
        yield from _phrase(one.japanese, one.reading, one.english, word_by_word)


def _all(lexicon: Lexicon, folder: Path) -> Entries:
    for row in read_table(folder / "little_words.tsv"):
        yield row.text("word"), row.text("reading"), row.text("meaning")
    for person in lexicon.people:
        if person.fused:
            for particle, meaning in (
                ("は", person.english),
                ("の", person.possessive),
                ("を", person.object),
                ("に", f"to {person.object}"),
                ("が", person.english),
                ("と", f"with {person.object}"),
                ("も", f"{person.english} too"),
            ):
                reading = person.reading + particle
                yield person.japanese + particle, reading, meaning
        yield person.japanese, person.reading, person.english.removeprefix("my ")
    yield from _phrases(lexicon, word_by_word=True)
    for verb in lexicon.verbs:
        yield from _verb(verb)
    for adjective in lexicon.adjectives:
        yield from _adjective(adjective)
    for place in lexicon.places:
        yield place.japanese, place.reading, place.english
    for word in lexicon.words:
        if word.kind == "weather":
            stem, kana = (
                word.japanese.removesuffix("い"),
                word.reading.removesuffix("い"),
            )
            yield stem + "かった", kana + "かった", f"was {word.english}"
    for counter in lexicon.counters:
        for number, text in counter.words.items():
            yield text, counter.readings[number], number


def make_glossary(lexicon: Lexicon, folder: Path) -> tuple[GlossaryEntry, ...]:
    """Return one entry for every word, meanings of the same word joined by /.

    What a phrase means is left out where its word has a meaning by itself.
    """
    readings: dict[str, str] = {}
    meanings: dict[str, list[str]] = {}
    for word, reading, meaning in _all(lexicon, folder):
        readings.setdefault(word, reading)
        known = meanings.setdefault(word, [])
        if meaning not in known:
            known.append(meaning)
    alone = set(meanings)
    for word, reading, meaning in _phrases(lexicon, word_by_word=False):
        if word not in alone and meaning not in meanings.get(word, ()):
            readings.setdefault(word, reading)
            meanings.setdefault(word, []).append(meaning)
    return tuple(
        GlossaryEntry(word, readings[word], " / ".join(meanings[word]))
        for word in readings
    )


def _readable(japanese: str) -> str:
    return japanese.split("/")[0].replace(" ", "")


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = ["| English | Japanese | Reading |", "| --- | --- | --- |"]
    for english, japanese, reading in rows:
        cells = (english, _readable(japanese), _readable(reading))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_theme(lexicon: Lexicon) -> dict[str, list[tuple[str, str, str]]]:
    themes: dict[str, list[tuple[str, str, str]]] = {}
    seen: set[tuple[str, ...]] = set()
    for entries in (lexicon.people, lexicon.nouns, lexicon.places, lexicon.words):
        for entry in entries:
            row = (entry.english, entry.japanese, entry.reading)
            themes.setdefault(entry.row.theme, []).append(row)
    for verb in lexicon.verbs:
        row = (verb.base, verb.plain, verb.reading)
        if row not in seen:
            themes.setdefault(f"Verbs: {verb.row.theme}", []).append(row)
            seen.add(row)
    for adjective in lexicon.adjectives:
        row = (adjective.english, adjective.japanese, adjective.reading)
        themes.setdefault(f"Adjectives: {adjective.row.theme}", []).append(row)
    for counter in lexicon.counters:
        counted = [n.english for n in lexicon.nouns if n.counter == counter.name]
        of = ", ".join(counted[:3]) + (" …" if len(counted) > 3 else "")
        row = (
            f"two ({of})" if of else "two",
            counter.words["two"],
            counter.readings["two"],
        )
        themes.setdefault("Counters, known from one to six", []).append(row)
    return themes


def guide(
    lexicon: Lexicon, examples: Iterable[tuple[str, str, str]], by_hand: int
) -> str:
    """Return docs/starter.md: words by theme, then a sentence of every pattern.

    `examples` are (theme, English, Japanese); so many sentences are written by hand.
    """
    themes = _by_theme(lexicon)
    count = len({row for rows in themes.values() for row in rows})
    parts = [
        "# What the starter model knows",
        "<!-- Made by `python -m data.starter.compose --guide docs/starter.md`. -->",
        f"The starter corpus is composed from the {count} words below and from "
        "sentence patterns, of which the list at the end has an example each; "
        f"{by_hand:,} hand-written sentences bring more words, each seen too seldom to "
        "be known well. Any other word is translated by guessing.",
        "All of it stands in the tables of `data/starter/`; edit them and train again.",
    ]
    for theme, rows in themes.items():
        title = theme[:1].upper() + theme[1:]
        parts += [f"## {title}", _table(rows)]
    parts.append("## Sentences")
    last = ""
    for theme, english, japanese in examples:
        if theme != last:
            parts.append(f"### {theme[:1].upper() + theme[1:]}\n")
            last = theme
        parts[-1] += f"\n- {english} {japanese}"
    return "\n\n".join(parts) + "\n"
