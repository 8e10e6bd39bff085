"""The starter corpus's tables (UTF-8 TSV beside this file), read strictly.

A line that begins with `#` is a note, one with `##` names the theme of the rows below
it; the first other line holds the column names. `-` is an empty field.
"""

from dataclasses import dataclass
from pathlib import Path

from data.text import read_file

HERE = Path(__file__).parent
# Words that stand for none of the other side: links to them are only possible.
FUNCTION_WORDS = frozenset(
    ("a", "an", "the", "to", "at", "in", "on", "of", "for", "by", "my")
)
PARTICLES = frozenset(
    ("は", "が", "を", "に", "で", "へ", "と", "も", "の", "な", "いた", "だった")
)


COLUMNS = {
    name: frozenset(columns.split(", "))
    for name, columns in {
        "adjectives.tsv": "english, comparative, superlative, japanese, kind, reading, "
        "describes, group, tone, combine",
        "counters.tsv": "counter, reading, one, two, three, four, five, six, how many",
        "groups.tsv": "name, members",
        "joins.tsv": "before, after",
        "little_words.tsv": "word, reading, meaning",
        "nouns.tsv": "english, plural, article, japanese, reading, counter, classes, "
        "times, not_with",
        "patterns.tsv": "name, weight, slots, english, japanese",
        "people.tsv": "english, object, possessive, pronoun, own, person, japanese, "
        "reading, joined, groups",
        "places.tsv": "english, at, to, japanese, reading, tags",
        "times.tsv": "english, japanese, reading, tense, times",
        "verbs.tsv": "base, third, past, participle, ing, plain, stem, te, ta, "
        "negative, reading, particle, objects, article, habit, adjectives, uses, "
        "places, times, combine",
        "words.tsv": "kind, english, japanese, reading, tags",
    }.items()
}
"""The columns that each table must have."""


@dataclass(frozen=True, eq=False)
class Row:
    """One line of a table, with the place it came from."""

    path: Path
    line: int
    theme: str
    fields: dict[str, str]

    def error(self, message: str) -> ValueError:
        """Return the error that names this row's file and line."""
        return ValueError(f"{self.path}:{self.line}: {message}")

    def text(self, column: str) -> str:
        """Return a field; `-` is the empty string."""
        value = self.fields[column]
        return "" if value == "-" else value

    def items(self, column: str) -> tuple[str, ...]:
        """Return a field's comma-separated list."""
        value = self.text(column)
        return tuple(item.strip() for item in value.split(",")) if value else ()

    def choice(self, column: str, allowed: tuple[str, ...]) -> str:
        """Return a field that must be one of `allowed`."""
        value = self.fields[column]
        if value not in allowed:
            raise self.error(
                f"{column} is {value!r}; write one of {', '.join(allowed)}"
            )
        return value


def read_table(path: Path) -> list[Row]:
    """Read one table; every row must have as many columns as its header.

    The header must name those of COLUMNS.
    """
    theme, header, rows = "", list[str](), list[Row]()
    for number, line in enumerate(read_file(path), 1):
        if line.startswith("## "):
            theme = line.removeprefix("## ").strip()
        if not line or line.startswith("#"):
            continue
        cells = line.split("\t")
        if not header:
            header = cells
            if missing := COLUMNS.get(path.name, frozenset()) - set(header):
                raise ValueError(
                    f"{path}:{number}: no column is called {min(missing)}; name all "
                    f"of {', '.join(sorted(COLUMNS[path.name]))}"
                )
            continue
        if len(cells) != len(header) or not all(cell.strip() for cell in cells):
            raise ValueError(
                f"{path}:{number}: {len(cells)} columns where the header has "
                f"{len(header)}; separate columns with one tab and write - for none"
            )
        fields = dict(zip(header, cells, strict=True))
        rows.append(Row(path, number, theme, fields))
    return rows


@dataclass(frozen=True, eq=False)
class Person:
    """Someone a sentence can be about: a pronoun, a name or a relative."""

    english: str
    object: str
    possessive: str
    pronoun: str
    own: str
    person: str
    japanese: str
    reading: str
    fused: bool
    groups: frozenset[str]
    row: Row


@dataclass(frozen=True, eq=False)
class Noun:
    """A thing, with what it may be joined to."""

    english: str
    plural: str
    article: str
    japanese: str
    reading: str
    counter: str
    classes: tuple[str, ...]
    times: frozenset[str]
    not_with: tuple[str, ...]
    row: Row

    @property
    def is_plural(self) -> bool:
        """True for a noun without a singular (shoes)."""
        return self.plural == self.english


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb in all its forms, with the objects, places and times that it takes."""

    base: str
    third: str
    past: str
    participle: str
    ing: str
    plain: str
    stem: str
    te: str
    ta: str
    negative: str
    reading: str
    particle: str
    objects: tuple[str, ...]
    article: tuple[str, ...]
    habit: str
    adjectives: frozenset[str]
    uses: frozenset[str]
    places: frozenset[str]
    times: frozenset[str]
    combine: bool
    row: Row


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective in all its forms, with what it may describe."""

    english: str
    comparative: str
    superlative: str
    japanese: str
    kind: str
    reading: str
    describes: tuple[str, ...]
    group: str
    tone: str
    combine: bool
    row: Row


@dataclass(frozen=True, eq=False)
class Place:
    """Where something is done, or where one goes."""

    english: str
    at: str
    to: str
    japanese: str
    reading: str
    tags: frozenset[str]
    row: Row


@dataclass(frozen=True, eq=False)
class Word:
    """A time, an adverb or a set phrase: one English and one Japanese form."""

    kind: str
    english: str
    japanese: str
    reading: str
    tags: frozenset[str]
    row: Row


@dataclass(frozen=True, eq=False)
class Counter:
    """A counter joined with each number, and how the two are read together."""

    name: str
    words: dict[str, str]
    readings: dict[str, str]
    row: Row


@dataclass(frozen=True, eq=False)
class Lexicon:
    """All tables; tuples keep the order of the files."""

    people: tuple[Person, ...]
    nouns: tuple[Noun, ...]
    verbs: tuple[Verb, ...]
    adjectives: tuple[Adjective, ...]
    places: tuple[Place, ...]
    words: tuple[Word, ...]
    counters: tuple[Counter, ...]
    joins: tuple[tuple[str, str], ...]

    def nouns_of(self, names: tuple[str, ...], row: Row) -> tuple[Noun, ...]:
        """Return the nouns of some classes; a name that is no class is a noun's own."""
        found: list[Noun] = []
        for name in names:
            if name.startswith("people:"):
                continue
            some = [noun for noun in self.nouns if name in noun.classes]
            some = some or [noun for noun in self.nouns if noun.english == name]
            if not some:
                raise row.error(
                    f"no class and no noun is called {name!r}; see nouns.tsv"
                )
            found += [noun for noun in some if noun not in found]
        return tuple(found)

    def people_of(self, names: tuple[str, ...], row: Row) -> tuple[Person, ...]:
        """Return the people whose groups are named as `people:group`."""
        groups = [n.removeprefix("people:") for n in names if n.startswith("people:")]
        for group in groups:
            if not any(group in person.groups for person in self.people):
                raise row.error(f"no people are in group {group!r}; see people.tsv")
        return tuple(p for p in self.people if p.groups & frozenset(groups))


def _person(row: Row) -> Person:
    return Person(
        english=row.text("english"),
        object=row.text("object"),
        possessive=row.text("possessive"),
        pronoun=row.text("pronoun"),
        own=row.text("own"),
        person=row.choice("person", ("1s", "2", "3s", "1p", "3p")),
        japanese=row.text("japanese"),
        reading=row.text("reading"),
        fused=row.choice("joined", ("fused", "-")) == "fused",
        groups=frozenset(row.items("groups")),
        row=row,
    )


def _noun(row: Row, counters: frozenset[str]) -> Noun:
    row.choice("article", ("a", "the", "-"))
    if row.text("counter") and row.text("counter") not in counters:
        raise row.error(f"unknown counter {row.text('counter')!r}; see counters.tsv")
    return Noun(
        english=row.text("english"),
        plural=row.text("plural"),
        article=row.text("article"),
        japanese=row.text("japanese"),
        reading=row.text("reading"),
        counter=row.text("counter"),
        classes=row.items("classes"),
        times=frozenset(row.items("times")),
        not_with=row.items("not_with"),
        row=row,
    )


def _verb(row: Row) -> Verb:
    return Verb(
        base=row.text("base"),
        third=row.text("third"),
        past=row.text("past"),
        participle=row.text("participle"),
        ing=row.text("ing"),
        plain=row.text("plain"),
        stem=row.text("stem"),
        te=row.text("te"),
        ta=row.text("ta"),
        negative=row.text("negative"),
        reading=row.text("reading"),
        particle=row.text("particle"),
        objects=row.items("objects"),
        article=row.items("article"),
        habit=row.text("habit"),
        adjectives=frozenset(row.items("adjectives")),
        uses=frozenset(row.items("uses")),
        places=frozenset(row.items("places")),
        times=frozenset(row.items("times")),
        combine=row.choice("combine", ("yes", "no")) == "yes",
        row=row,
    )


def _adjective(row: Row) -> Adjective:
    return Adjective(
        english=row.text("english"),
        comparative=row.text("comparative"),
        superlative=row.text("superlative"),
        japanese=row.text("japanese"),
        kind=row.choice("kind", ("i", "na")),
        reading=row.text("reading"),
        describes=row.items("describes"),
        group=row.text("group"),
        tone=row.choice("tone", ("good", "bad", "neutral")),
        combine=row.choice("combine", ("yes", "no")) == "yes",
        row=row,
    )


def _place(row: Row) -> Place:
    return Place(
        english=row.text("english"),
        at=row.text("at"),
        to=row.text("to"),
        japanese=row.text("japanese"),
        reading=row.text("reading"),
        tags=frozenset(row.items("tags")),
        row=row,
    )


def _word(row: Row, kind: str) -> Word:
    tags = row.items("tags") if kind != "when" else row.items("tense")
    times = row.items("times") if kind == "when" else ()
    return Word(
        kind=kind,
        english=row.text("english"),
        japanese=row.text("japanese"),
        reading=row.text("reading"),
        tags=frozenset(tags + times),
        row=row,
    )


def _counter(row: Row) -> Counter:
    words, readings = {}, {}
    for number in list(row.fields)[2:]:
        parts = row.fields[number].split(" ")
        if len(parts) != 2:
            raise row.error(f"{number}: write the word, a space and its reading")
        words[number], readings[number] = parts
    return Counter(row.text("counter"), words, readings, row)


def _check(lexicon: Lexicon) -> None:
    """Refuse references to classes, groups and places that no table has."""
    tags = {t for place in lexicon.places for t in (*place.tags, place.english)}
    groups = {adjective.group for adjective in lexicon.adjectives}
    for verb in lexicon.verbs:
        lexicon.nouns_of(verb.objects, verb.row)
        lexicon.people_of(verb.objects, verb.row)
        for name in sorted(verb.places - tags):
            raise verb.row.error(f"no place or tag is called {name!r}; see places.tsv")
        for name in sorted(verb.adjectives - groups - {"yes"}):
            raise verb.row.error(f"no adjectives are {name!r}; see adjectives.tsv")
    for adjective in lexicon.adjectives:
        lexicon.nouns_of(adjective.describes, adjective.row)
        lexicon.people_of(adjective.describes, adjective.row)


def read_lexicon(folder: Path = HERE) -> Lexicon:
    """Read all tables of a folder; ValueError names the file and line at fault."""
    counters = tuple(_counter(row) for row in read_table(folder / "counters.tsv"))
    names = frozenset(counter.name for counter in counters)
    times = (_word(row, "when") for row in read_table(folder / "times.tsv"))
    words = (_word(r, r.text("kind")) for r in read_table(folder / "words.tsv"))
    joins = read_table(folder / "joins.tsv")
    lexicon = Lexicon(
        people=tuple(_person(row) for row in read_table(folder / "people.tsv")),
        nouns=tuple(_noun(row, names) for row in read_table(folder / "nouns.tsv")),
        verbs=tuple(_verb(row) for row in read_table(folder / "verbs.tsv")),
        adjectives=tuple(
            _adjective(row) for row in read_table(folder / "adjectives.tsv")
        ),
        places=tuple(_place(row) for row in read_table(folder / "places.tsv")),
        words=(*times, *words),
        counters=counters,
        joins=tuple((row.text("before"), row.text("after")) for row in joins),
    )
    _check(lexicon)
    return lexicon
