"""The starter corpus's patterns: how a template and its fillings become a pair.

A template is words and {slot:form} marks, separated by spaces. Either may end in
/label: words of the two sides that share a label are surely linked, or possibly where
one of them is a word?label. Words without a label are possibly linked to the labelled
word that they lean on, the next one in English and the one before in Japanese. The head
of patterns.tsv explains the slots.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from data.starter.lexicon import (
    FUNCTION_WORDS,
    PARTICLES,
    Adjective,
    Counter,
    Noun,
    Person,
    Place,
    Row,
    Verb,
    Word,
    read_table,
)

KINDS = (
    *("who", "do", "verb", "object", "thing", "spot", "adj", "place", "number", "when"),
    *("often", "degree", "clock", "position", "weather", "state", "sky", "routine"),
    "means",
)
AGREE = {
    "be": ("am", "are", "is"),
    "was": ("was", "were", "was"),
    "isn't": ("am not", "aren't", "isn't"),
    "wasn't": ("wasn't", "weren't", "wasn't"),
    "have": ("have", "have", "has"),
    "haven't": ("haven't", "haven't", "hasn't"),
    "don't": ("don't", "don't", "doesn't"),
}
ENDINGS = {
    "ます": ("stem", "ます"),
    "ました": ("stem", "ました"),
    "ません": ("stem", "ません"),
    "ませんでした": ("stem", "ませんでした"),
    "ましょう": ("stem", "ましょう"),
    "たい": ("stem", "たい"),
    "たく": ("stem", "たく"),
    "ながら": ("stem", "ながら"),
    "なければ": ("negative", "なければ"),
    "なくて": ("negative", "なくて"),
}
BARE = {"plain": "plain", "て": "te", "た": "ta", "ない": "negative", "purpose": "stem"}
VERB_FORMS = tuple(ENDINGS) + tuple(BARE)
I_FORMS = {
    "です": "い です",
    "past": "かった です",
    "ない": "く ありません",
    "na": "い",
    "て": "くて",
    "plain": "い",
}
NA_FORMS = {
    "です": " です",
    "past": " でした",
    "ない": " では ありません",
    "na": " な",
    "て": " で",
    "plain": " だ",
}
THIS = {"this": ("this", "these", "この"), "that": ("that", "those", "あの")}
FUSED = ("は", "の", "を", "に", "が", "も", "と")
"""Particles that are one word with a pronoun before them (私は)."""
ENGLISH_FORMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("do", "verb"), ("base", "s", "past", "ing", "participle")),
    **dict.fromkeys(("thing", "object", "spot"), ("", "it", *THIS, *AGREE)),
    "who": ("", "me", "my", "he", *AGREE),
    "adj": ("", "er", "est"),
    "place": ("", "name", "at", "to"),
}
JAPANESE_FORMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("do", "verb"), VERB_FORMS),
    "thing": ("", "howmany"),
    "who": ("", *FUSED),
    "adj": ("", *I_FORMS, "一番", *(f"一番{form}" for form in I_FORMS)),
    "weather": ("", "past"),
    "routine": ("", "after"),
}
"""The forms that a kind of slot has on either side; a kind that is not listed has none.

An English {who} may besides hold a verb in two forms: {who:like|likes}.
"""


class Atom(NamedTuple):
    """One word, with the labels that link it to words of the other side."""

    text: str
    sure: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()


class Mark(NamedTuple):
    """One template word: a literal, or a slot in some form.

    The form of a literal with a label is what stands between them, / or ?.
    """

    text: str
    slot: str
    form: str
    label: str


@dataclass(frozen=True, eq=False)
class Slot:
    """A slot of a pattern: its kind, what may fill it and how it stands."""

    name: str
    kind: str
    options: tuple[str, ...]
    forms: tuple[str, ...]

    @property
    def digit(self) -> str:
        """Return the number that ties who2 to do2."""
        return self.name[len(self.kind) :]


@dataclass(frozen=True, eq=False)
class Pattern:
    """One row of patterns.tsv."""

    name: str
    weight: int
    slots: tuple[Slot, ...]
    english: tuple[Mark, ...]
    japanese: tuple[Mark, ...]
    row: Row

    def slot(self, kind: str) -> Slot | None:
        """Return the first slot of a kind."""
        return next((slot for slot in self.slots if slot.kind == kind), None)


@dataclass(frozen=True, eq=False)
class Fill:
    """What one slot holds; fields that a kind does not use stay empty."""

    person: Person | None = None
    verb: Verb | None = None
    noun: Noun | None = None
    adjective: Adjective | None = None
    owner: Person | None = None
    place: Place | None = None
    word: Word | None = None
    counter: Counter | None = None
    determiner: str = ""


Fills = dict[str, Fill]


def _mark(
    token: str, row: Row, slots: dict[str, Slot], forms: dict[str, tuple[str, ...]]
) -> Mark:
    if not token.startswith("{"):
        match = re.fullmatch(r"([^/?]+|\?)(?:([/?])([\w.]+))?", token)
        if not match:
            raise row.error(
                f"cannot read {token!r}; write word, word/label or word?label"
            )
        return Mark(match[1], "", match[2] or "", match[3] or "")
    match = re.fullmatch(r"\{(\w+)(?::([^/}]+))?(?:/([\w.]+))?\}", token)
    if not match:
        raise row.error(f"cannot read {token!r}; write {{slot:form/label}}")
    if match[1] not in slots:
        raise row.error(
            f"{token} names no slot of this row; declare {match[1]} in slots"
        )
    form = match[2] or ""
    _check_form(slots[match[1]], form, token, row, forms)
    return Mark("", match[1], form, match[3] or "")


def _check_form(
    slot: Slot, form: str, token: str, row: Row, forms: dict[str, tuple[str, ...]]
) -> None:
    """Refuse a form that this kind of slot has not on this side."""
    allowed = forms.get(slot.kind, ("",))
    if forms is ENGLISH_FORMS and slot.kind == "who":
        allowed += ("like|likes",)
        if re.fullmatch(r"[^|]+\|[^|]+", form):
            return
    if form not in allowed:
        names = ", ".join(name or "none" for name in allowed)
        raise row.error(f"unknown form in {token}; write one of {names}")
    if form == "howmany" and "counted" not in slot.forms:
        raise row.error(f"{token} has no counter; write {slot.name}=…:counted in slots")


def _slot(text: str, row: Row, groups: dict[str, tuple[str, ...]]) -> Slot:
    name, _, spec = text.partition("=")
    kind = name.rstrip("0123456789")
    if kind not in KINDS:
        raise row.error(f"unknown slot {name!r}; the kinds are {', '.join(KINDS)}")
    options, _, forms = spec.partition(":")
    names: list[str] = []
    for option in (o.replace("_", " ") for o in options.split("+") if o):
        names += groups.get(option, (option,))
    return Slot(name, kind, tuple(names), tuple(f for f in forms.split("+") if f))


def read_groups(path: Path) -> dict[str, tuple[str, ...]]:
    """Read groups.tsv: names that stand for several groups, classes or tags."""
    return {row.text("name"): row.items("members") for row in read_table(path)}


def read_patterns(folder: Path) -> tuple[Pattern, ...]:
    """Read patterns.tsv; ValueError names the file and line at fault."""
    groups = read_groups(folder / "groups.tsv")
    patterns = []
    for row in read_table(folder / "patterns.tsv"):
        slots = tuple(_slot(text, row, groups) for text in row.text("slots").split())
        by_name = {slot.name: slot for slot in slots}
        if not row.text("weight").isdecimal():
            raise row.error(f"weight is {row.text('weight')!r}; write a whole number")
        english, japanese = (
            tuple(_mark(t, row, by_name, forms) for t in row.text(column).split())
            for column, forms in (
                ("english", ENGLISH_FORMS),
                ("japanese", JAPANESE_FORMS),
            )
        )
        spoken = {mark.slot for mark in english}
        for slot in slots:
            if slot.name not in spoken and slot.kind != "verb":
                raise row.error(f"english leaves out the slot {slot.name}")
        weight = int(row.text("weight"))
        name = row.text("name")
        patterns.append(Pattern(name, weight, slots, english, japanese, row))
    return tuple(patterns)


@cache
def match(
    english: str, japanese: str, base: str, crossed: bool = False
) -> tuple[tuple[Atom, ...], tuple[Atom, ...]]:
    """Link the words of two phrases: in order where as many, else all with all.

    In a crossed phrase (taking a bath, お風呂 に 入る) the order is reversed.
    """
    words = english.split()
    content = [w for w in words if w not in FUNCTION_WORDS] or words
    terms = [w for w in japanese.split() if w not in PARTICLES]
    parts = len(content) if len(content) == len(terms) else 1

    def side(tokens: list[str], kept: list[str], forward: bool) -> tuple[Atom, ...]:
        atoms, seen = list[Atom](), 0
        for token in tokens:
            near = min(max(seen - (token not in kept and not forward), 0), parts - 1)
            part = parts - 1 - near if crossed and forward else near
            label = (f"{base}{part}",)
            atoms.append(
                Atom(token, label) if token in kept else Atom(token, (), label)
            )
            seen += token in kept
        return tuple(atoms)

    return side(words, content, True), side(japanese.split(), terms, False)


def article(word: str) -> str:
    """Return a or an for the word that follows."""
    silent = word.startswith(("hour", "honest"))
    yoo = word.startswith(("uni", "use", "Europ"))
    return "an" if silent or (word[0].lower() in "aeiou" and not yoo) else "a"


def _head(fill: Fill, number: str) -> tuple[str, str]:
    """Return (determiner before the noun, the noun) in English."""
    noun, kind = fill.noun, fill.determiner
    assert noun is not None
    single = noun.english
    many = noun.plural or single
    if kind in ("a", "adj"):
        kind = {"a": "a", "the": "the", "": "plural"}[noun.article]
        if noun.article == "a":
            return "a", single
    if kind in ("generic", "plural"):
        kind = "the" if noun.article == "the" else "plural"
    if kind == "counted":
        return "", single if number == "one" else many
    if kind == "plural":
        return "", many
    if kind in THIS:
        return THIS[kind][1 if noun.is_plural else 0], single
    return ("the" if kind == "the" else ""), single


def noun_english(name: str, fill: Fill, number: str, own: str) -> list[Atom]:
    """Return a noun phrase in English: determiner, adjective, noun."""
    noun = fill.noun
    assert noun is not None
    before, head = _head(fill, number)
    atoms: list[Atom] = []
    if fill.determiner == "own":
        head = noun.plural if own in ("our", "their") and noun.plural else head
        atoms.append(Atom(own, (), (f"{name}.n0",)))
    elif fill.owner is not None:
        atoms += match(fill.owner.possessive, fill.owner.japanese, f"{name}.o")[0]
    if fill.adjective is not None:
        atoms += match(fill.adjective.english, "x", f"{name}.a")[0]
    atoms += match(head, noun.japanese, f"{name}.n")[0]
    if before == "a":
        before = article(atoms[0].text)
    if before in ("a", "an", "the"):
        atoms.insert(0, Atom(before, (), (f"{name}.n0",)))
    elif before:
        atoms.insert(0, Atom(before, (f"{name}.d",)))
    return atoms


def noun_japanese(name: str, fill: Fill) -> list[Atom]:
    """Return a noun phrase in Japanese: この or 私の, adjective, noun."""
    noun = fill.noun
    assert noun is not None
    atoms: list[Atom] = []
    if fill.determiner in THIS:
        atoms.append(Atom(THIS[fill.determiner][2], (f"{name}.d",)))
    elif fill.owner is not None:
        atoms += person_japanese(f"{name}.o", fill.owner, "の")
    if fill.adjective is not None:
        atoms += adjective_japanese(f"{name}.a0", fill.adjective, "na")
    return [*atoms, *match(noun.english, noun.japanese, f"{name}.n")[1]]


def person_japanese(label: str, person: Person, particle: str) -> list[Atom]:
    """Return a person and the particle after it; 私は is one word."""
    if person.fused and particle in FUSED:
        return [Atom(person.japanese + particle, (f"{label}0",))]
    atoms = list(match(person.english, person.japanese, label)[1])
    return atoms + ([Atom(particle, (), (f"{label}0",))] if particle else [])


def adjective_japanese(label: str, adjective: Adjective, form: str) -> list[Atom]:
    """Return an adjective in one of its forms, the copula a word of its own."""
    best = form.startswith("一番")
    form = form.removeprefix("一番") or "です"
    if adjective.kind == "i":
        text = adjective.japanese.removesuffix("い") + I_FORMS[form]
    else:
        text = adjective.japanese + NA_FORMS[form]
    words = text.split()
    kept = len(adjective.japanese.split())
    atoms = [Atom("一番", (f"{label}.best",))] if best else []
    for index, word in enumerate(words):
        core = index < kept and word not in PARTICLES
        atoms.append(Atom(word, (label,)) if core else Atom(word, (), (label,)))
    return atoms


def adjective_english(label: str, adjective: Adjective, form: str) -> list[Atom]:
    """Return an adjective in English; `er` and `est` may take two words."""
    forms = {"er": adjective.comparative, "est": adjective.superlative}
    words = forms.get(form, adjective.english).split()
    if form == "est" and len(words) == 1:
        return [Atom(words[0], (label, f"{label}.best"))]
    extra = (f"{label}.best",) if form == "est" else ()
    first = [Atom(words[0], extra, (label,))] if len(words) > 1 else []
    return [*first, Atom(words[-1], (label,))]


def verb_english(label: str, text: str) -> list[Atom]:
    """Return a verb's words; what belongs to it (listen to) is possibly linked."""
    first, *rest = text.split()
    atoms = [Atom(first, (label,))]
    for word in rest:
        small = word in FUNCTION_WORDS
        atoms.append(Atom(word, (), (label,)) if small else Atom(word, (label,)))
    return atoms


@cache
def verb_japanese(label: str, verb: Verb, form: str) -> tuple[Atom, ...]:
    """Return a verb in one of its forms, the ending a word of its own."""
    if form in ENDINGS:
        column, ending = ENDINGS[form]
        words = [*getattr(verb, column).split(), ending]
        if verb.plain.endswith("する"):
            words[-2:] = [words[-2] + words[-1]]
    else:
        words = getattr(verb, BARE[form]).split()
        if form == "ない":
            words[-1] += "ない"
    head, *rest = words
    return (Atom(head, (label,)), *(Atom(word, (), (label,)) for word in rest))


def _agree(person: str, form: str) -> str:
    index = {"1s": 0, "3s": 2}.get(person, 1)
    if form in AGREE:
        return AGREE[form][index]
    base, third = form.split("|")
    return third if index == 2 else base


def _person_english(name: str, person: Person, form: str) -> list[Atom]:
    if form in ("", "me", "my"):
        text = {"": "english", "me": "object", "my": "possessive"}[form]
        return list(match(getattr(person, text), person.japanese, f"{name}.p")[0])
    if form == "he":
        return [Atom(person.pronoun, (), (f"{name}.p0",))]
    return [Atom(word) for word in _agree(person.person, form).split()]


class Sentence:
    """One filled pattern, and both of its sides as labelled words."""

    def __init__(self, pattern: Pattern, fills: Fills) -> None:
        self.pattern, self.fills = pattern, fills

    def english(self) -> list[Atom]:
        """Return the English side."""
        return _side(self.pattern.english, self._english)

    def japanese(self) -> list[Atom]:
        """Return the Japanese side."""
        return _side(self.pattern.japanese, self._japanese)

    def _english(self, mark: Mark) -> list[Atom]:
        name, form, fill = mark.slot, mark.form, self.fills[mark.slot]
        if fill.verb is not None:
            return self._verb_english(name, form, fill, fill.verb)
        if fill.noun is not None:
            if form in AGREE:
                return [Atom(_agree("3p" if _many(fill, fill.noun) else "3s", form))]
            if form in THIS:
                return [Atom(THIS[form][1 if _many(fill, fill.noun) else 0])]
            if form == "it":
                word = "they" if fill.noun.is_plural else "it"
                return [Atom(word, (), (f"{name}.n0",))]
            counted = self.fills.get("number", fill).determiner
            return noun_english(name, fill, counted, "")
        if fill.person is not None:
            return _person_english(name, fill.person, form)
        if fill.adjective is not None:
            return adjective_english(f"{name}.a", fill.adjective, form)
        if fill.place is not None:
            place = fill.place
            text = {"at": place.at, "to": place.to}.get(form, place.english)
            return list(match(text, place.japanese, f"{name}.w")[0])
        if fill.counter is not None:
            return [Atom(fill.determiner, (f"{name}.c",))]
        assert fill.word is not None
        return list(_phrase(name, fill.word, "")[0])

    def _verb_english(self, name: str, form: str, fill: Fill, verb: Verb) -> list[Atom]:
        digit = name.lstrip("abcdefghijklmnopqrstuvwxyz")
        who = self.fills.get(f"who{digit}")
        subject = who.person if who else None
        if form == "s":
            form = "third" if subject and subject.person == "3s" else "base"
        atoms = verb_english(f"{name}.v", getattr(verb, form))
        if name.startswith("do") and fill.person is not None:
            person = fill.person
            atoms += match(person.object, person.japanese, f"{name}.p")[0]
        elif name.startswith("do") and fill.noun is not None:
            if "each" in verb.uses and self._several(subject):
                fill = _one_each(fill, fill.noun)
            atoms += noun_english(name, fill, "", subject.own if subject else "your")
        return atoms

    def _several(self, subject: Person | None) -> bool:
        """Return whether several people act; let's and shall we are also we."""
        if subject is None:
            return self.pattern.english[0].text in ("Let's", "Shall")
        return subject.person in ("1p", "3p")

    def _japanese(self, mark: Mark) -> list[Atom]:
        name, form, fill = mark.slot, mark.form, self.fills[mark.slot]
        if fill.verb is not None:
            return self._verb_japanese(name, form, fill, fill.verb)
        if fill.noun is not None:
            if form == "howmany":
                assert fill.counter is not None
                return [Atom(fill.counter.words["how many"])]
            return noun_japanese(name, fill)
        if fill.person is not None:
            return person_japanese(f"{name}.p", fill.person, form)
        if fill.adjective is not None:
            return adjective_japanese(f"{name}.a", fill.adjective, form)
        if fill.place is not None:
            return list(match(fill.place.at, fill.place.japanese, f"{name}.w")[1])
        if fill.counter is not None:
            return [Atom(fill.counter.words[fill.determiner], (f"{name}.c",))]
        assert fill.word is not None
        return list(_phrase(name, fill.word, form)[1])

    def _verb_japanese(
        self, name: str, form: str, fill: Fill, verb: Verb
    ) -> list[Atom]:
        words = list(verb_japanese(f"{name}.v", verb, form))
        if name.startswith("do") and fill.person is not None:
            return [*person_japanese(f"{name}.p", fill.person, verb.particle), *words]
        if name.startswith("do") and fill.noun is not None:
            particle = Atom(verb.particle, (), (f"{name}.n0",))
            return [*noun_japanese(name, fill), particle, *words]
        return words


def _side(marks: tuple[Mark, ...], spell: Callable[[Mark], list[Atom]]) -> list[Atom]:
    atoms: list[Atom] = []
    for mark in marks:
        words = spell(mark) if mark.slot else [Atom(mark.text)]
        if mark.label:
            last, new = words[-1], (mark.label,)
            if mark.form == "?":
                last = Atom(last.text, last.sure, last.possible + new)
            else:
                last = Atom(last.text, last.sure + new, last.possible)
            words = [*words[:-1], last]
        atoms += words
    return atoms


def _many(fill: Fill, noun: Noun) -> bool:
    """Return whether the noun phrase is plural in English."""
    if noun.is_plural:
        return True
    bare = fill.determiner in ("a", "adj") and not noun.article
    generic = fill.determiner in ("generic", "plural") and noun.article != "the"
    return bool(noun.plural) and (bare or generic)


def _one_each(fill: Fill, noun: Noun) -> Fill:
    """Return a noun phrase for several people who have one each (wear red hats)."""
    if fill.determiner in ("a", "adj") and noun.plural:
        return replace(fill, determiner="plural")
    return fill


def _phrase(
    name: str, word: Word, form: str
) -> tuple[tuple[Atom, ...], tuple[Atom, ...]]:
    """Return a word of words.tsv; before and after take the verb last."""
    text, _, later = word.japanese.partition("/")
    if word.kind == "weather" and form == "past":
        text = text.removesuffix("い") + "かった"
    if form == "after" and later:
        text = later
    return match(word.english, text, f"{name}.w", word.kind == "routine")
