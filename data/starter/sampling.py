"""Fill a pattern's slots so that every sentence makes sense and every word gets used.

What may stand beside what is in the tables; this file only follows them. A slot takes
the less used of a few random candidates, so that no word of the lexicon stays rare.
"""

import random
from collections import Counter as Tally
from collections.abc import Sequence
from typing import TypeVar

from data.starter.grammar import Fill, Fills, Pattern, Slot
from data.starter.lexicon import (
    Adjective,
    Lexicon,
    Noun,
    Person,
    Place,
    Row,
    Verb,
    Word,
)

T = TypeVar("T")
Drawn = TypeVar("Drawn", Fill, Person, Verb, Noun, Adjective, Place, Word)
DAY_PARTS = frozenset(("morning", "noon", "evening", "night"))
HABITS = frozenset(("habit", "hobby", "while", "routine", "clock", "dont"))
NUMBERS = {
    "few": ("two", "three"),
    "many": ("two", "three", "four", "five", "six"),
    "some": ("one", "two", "three", "four", "five"),
}
DETERMINERS = frozenset(
    ("a", "the", "this", "that", "his", "your", "generic", "plural", "counted", "bare")
) | {"adj", "goodadj", "own"}


class Impossible(Exception):
    """No candidate fits what the slots before hold."""


def draw(rng: random.Random, items: Sequence[T]) -> T:
    """Pick one item; `random()` alone gives the same stream in every Python."""
    if not items:
        raise Impossible
    return items[int(rng.random() * len(items))]


class Sampler:
    """Fills patterns; remembers how often each row of the lexicon was used."""

    def __init__(self, lexicon: Lexicon, rng: random.Random) -> None:
        self.lexicon, self.rng = lexicon, rng
        self.used: Tally[Row] = Tally()
        self._actions: dict[Slot, list[Fill]] = {}
        self._nouns: dict[Slot, list[Noun]] = {}
        self._known: dict[tuple[object, ...], list[Word]] = {}
        self._objects_of = {
            v: lexicon.nouns_of(v.objects, v.row) for v in lexicon.verbs
        }
        self._goals: dict[tuple[Slot, Verb], list[Noun]] = {}
        self._counters = {counter.name: counter for counter in lexicon.counters}
        self._groups: dict[str, list[Person]] = {}
        for person in lexicon.people:
            for group in sorted(person.groups):
                self._groups.setdefault(group, []).append(person)
        self._adjectives: dict[Noun, list[Adjective]] = {n: [] for n in lexicon.nouns}
        self._traits: dict[Person, list[Adjective]] = {p: [] for p in lexicon.people}
        for adjective in lexicon.adjectives:
            for noun in lexicon.nouns_of(adjective.describes, adjective.row):
                self._adjectives[noun].append(adjective)
            for person in lexicon.people_of(adjective.describes, adjective.row):
                self._traits[person].append(adjective)

    def fill(self, pattern: Pattern) -> Fills:
        """Fill every slot in order; raises Impossible where one cannot be filled."""
        fills: Fills = {}
        for slot in pattern.slots:
            fills[slot.name] = getattr(self, f"_{slot.kind}")(pattern, slot, fills)
        return fills

    def note(self, fills: Fills) -> None:
        """Count the rows that an accepted sentence uses."""
        for fill in fills.values():
            self.used.update(rows_of(fill))

    def _rare(self, items: Sequence[Drawn]) -> Drawn:
        """Draw three and keep the least used."""
        best, fewest = None, 0
        for _ in range(3):
            candidate = draw(self.rng, items)
            if isinstance(candidate, Fill):
                times = min(self.used[row] for row in rows_of(candidate))
            else:
                times = self.used[candidate.row]
            if best is None or times < fewest:
                best, fewest = candidate, times
        assert best is not None
        return best

    # People

    def _who(self, pattern: Pattern, slot: Slot, fills: Fills) -> Fill:
        taken = [fill.person for fill in fills.values() if fill.person]
        person_nouns = [
            f.noun for f in fills.values() if f.noun and "person" in f.noun.classes
        ]
        subject = fills["who"].person if "who" in fills else None
        group = draw(self.rng, slot.options)
        people = [
            person
            for person in self._groups.get(group, ())
            if not any(_includes(person, other) for other in taken)
            and (slot.name == "who" or _is_told(person, subject))
            and all(person.own in noun.classes for noun in person_nouns)
        ]
        return Fill(person=self._rare(people))

    # Verbs and what they take

    def _do(self, pattern: Pattern, slot: Slot, fills: Fills) -> Fill:
        if slot not in self._actions:
            self._actions[slot] = self._list_actions(pattern, slot)
        fill = self._rare(self._actions[slot])
        subject = fills.get(f"who{slot.digit}")
        other = subject.person if subject else None
        if fill.person and other and _includes(fill.person, other):
            raise Impossible
        if fill.person and not _is_told(fill.person, other):
            raise Impossible
        return fill

    def _list_actions(self, pattern: Pattern, slot: Slot) -> list[Fill]:
        uses, _, flag = "+".join(slot.options).partition("/")
        wanted = frozenset(uses.split("+")) - {"transitive"}
        actions: list[Fill] = []
        for verb in self.lexicon.verbs:
            if not wanted <= verb.uses or not self._has_room(pattern, verb):
                continue
            habit = bool(wanted & HABITS)
            if flag:
                actions += self._with_adjective(verb, flag, habit)
            elif verb.objects:
                actions += self._with_object(pattern, verb, habit)
            elif "transitive" not in uses:
                actions += [Fill(verb=verb)] * 3
        if not actions:
            raise pattern.row.error(f"no verb of verbs.tsv fits {slot.name}={uses}")
        return actions

    def _has_room(self, pattern: Pattern, verb: Verb) -> bool:
        """Return whether some place and time of the pattern suit the verb."""
        place, when = pattern.slot("place"), pattern.slot("when")
        return (place is None or bool(self._places(place, verb))) and (
            when is None or bool(self._times(when, verb, None, None))
        )

    def _with_object(self, pattern: Pattern, verb: Verb, habit: bool) -> list[Fill]:
        people = self.lexicon.people_of(verb.objects, verb.row)
        actions = [Fill(verb=verb, person=person) for person in people[::3]]
        determiners = (verb.habit,) if habit and verb.habit else verb.article
        for noun in self._objects_of[verb]:
            for determiner in determiners:
                if determiner == "own" and not _owns(pattern):
                    continue
                actions.append(Fill(verb=verb, noun=noun, determiner=determiner))
        return actions

    def _with_adjective(self, verb: Verb, flag: str, habit: bool) -> list[Fill]:
        actions = []
        for noun in self._objects_of[verb]:
            for adjective in self._adjectives[noun]:
                fits = adjective.group in verb.adjectives
                if adjective.tone == "bad" and adjective.group == "content":
                    fits = fits and "judge" in verb.uses
                if fits and (flag == "adj" or adjective.tone != "bad"):
                    kind = "plural" if "plural" in verb.article else "adj"
                    actions.append(Fill(None, verb, noun, adjective, determiner=kind))
        return actions

    def _verb(self, pattern: Pattern, slot: Slot, fills: Fills) -> Fill:
        """Choose a verb; an object slot of the pattern then takes one of its nouns."""
        goal = pattern.slot("object")
        verbs = [v for v in self.lexicon.verbs if frozenset(slot.options) <= v.uses]
        verbs = [v for v in verbs if v.objects and self._has_room(pattern, v)]
        if goal is not None:
            verbs = [v for v in verbs for _ in self._objects(goal, v)]
        return Fill(verb=self._rare(verbs))

    def _objects(self, slot: Slot, verb: Verb) -> list[Noun]:
        if (slot, verb) not in self._goals:
            self._goals[slot, verb] = self._list_objects(slot, verb)
        return self._goals[slot, verb]

    def _list_objects(self, slot: Slot, verb: Verb) -> list[Noun]:
        nouns = self._objects_of[verb]
        options = [o for o in slot.options if o not in DETERMINERS]
        if options:
            chosen = self.lexicon.nouns_of(tuple(options), verb.row)
            nouns = tuple(noun for noun in nouns if noun in chosen)
        if "counted" in slot.options + slot.forms:
            nouns = tuple(noun for noun in nouns if noun.counter and noun.plural)
        return list(nouns)

    def _object(self, pattern: Pattern, slot: Slot, fills: Fills) -> Fill:
        verb = fills[f"verb{slot.digit}"].verb
        assert verb is not None
        nouns = self._objects(slot, verb)
        if pattern.slot("adj"):
            nouns = [noun for noun in nouns if self._adjectives[noun]]
        kinds = [o for o in slot.options + slot.forms if o in DETERMINERS]
        return Fill(noun=self._rare(nouns), determiner=draw(self.rng, kinds or ("a",)))

    # Nouns

    def _thing(self, pattern: Pattern, slot: Slot, fills: Fills) -> Fill:
        noun = self._thing_noun(pattern, slot, fills)
        determiner = draw(self.rng, slot.forms or ("a",))
        adjective = None
        if determiner.endswith("adj"):
            some = self._adjectives[noun]
            if determiner == "goodadj":
                some = [a for a in some if a.tone != "bad" or a.group == "price"]
            adjective, determiner = self._rare(some), "adj"
        owner = self._owner(noun, determiner)
        counter = self._counters.get(noun.counter)
        return Fill(
            noun=noun,
            determiner=determiner,
            adjective=adjective,
            owner=owner,
            counter=counter,
        )

    def _owner(self, noun: Noun, determiner: str) -> Person | None:
        """Return whose it is; several people own only what they can share."""
        if determiner == "your":
            return self._rare(self._groups["you"])
        if determiner != "his":
            return None
        groups: tuple[str, ...] = ("I", "I", "he", "name", "family")
        if "shared" in noun.classes:
            groups += ("we", "they")
        people = self._groups[draw(self.rng, groups)]
        if "shared" not in noun.classes:
            people = [p for p in people if p.person not in ("1p", "3p")]
        return self._rare(people)

    def _thing_noun(self, pattern: Pattern, slot: Slot, fills: Fills) -> Noun:
        nouns = [fill.noun for fill in fills.values() if fill.noun]
        if slot.options == ("itself",):
            return nouns[0]
        if slot.options == ("same",):
            first = pattern.slot("thing")
            assert first is not None
            kind = nouns[0].classes[0]
            some = [n for n in self._nouns[first] if n.classes[0] == kind]
        else:
            if slot not in self._nouns:
                self._nouns[slot] = self._list_nouns(pattern, slot)
            some = self._nouns[slot]
        return self._rare([n for n in some if not any(_overlap(n, m) for m in nouns)])

    def _list_nouns(self, pattern: Pattern, slot: Slot) -> list[Noun]:
        nouns = list(self.lexicon.nouns_of(slot.options, pattern.row))
        for form in slot.forms:
            if form not in DETERMINERS:
                raise pattern.row.error(f"{slot.name}: unknown form {form!r}")
        if "counted" in slot.forms:
            nouns = [noun for noun in nouns if noun.counter and noun.plural]
        adj = pattern.slot("adj")
        if adj or any(form.endswith("adj") for form in slot.forms):
            tones = adj.options if adj else ()
            nouns = [n for n in nouns if _toned(self._adjectives[n], tones)]
        if not nouns:
            raise pattern.row.error(f"no noun of nouns.tsv fits {slot.name}")
        return nouns

    def _spot(self, pattern: Pattern, slot: Slot, fills: Fills) -> Fill:
        position = fills["position"].word
        taken = [fill.noun for fill in fills.values() if fill.noun]
        assert position is not None
        nouns = [
            noun
            for noun in self.lexicon.nouns
            if noun not in taken
            and position.tags & frozenset(noun.classes)
            and frozenset(slot.options) & frozenset(noun.classes)
        ]
        return Fill(noun=self._rare(nouns), determiner="bare")

    # What describes, counts and places

    def _adj(self, pattern: Pattern, slot: Slot, fills: Fills) -> Fill:
        target = fills.get("thing") or fills.get("object") or fills["who"]
        if target.noun is not None:
            some = self._adjectives[target.noun]
        else:
            assert target.person is not None
            some = self._traits[target.person]
        some = _toned(some, slot.options)
        for fill in list(fills.values()):
            if fill.adjective is not None:
                other = fill.adjective
                mixed = other.group in ("person", "mood")
                some = [
                    a
                    for a in some
                    if a is not other and (mixed or a.group != other.group)
                ]
        return Fill(adjective=self._rare(some))

    def _number(self, pattern: Pattern, slot: Slot, fills: Fills) -> Fill:
        noun = next((fill.noun for fill in fills.values() if fill.noun), None)
        counter = self._counters.get(noun.counter) if noun else None
        if counter is None:
            raise Impossible
        numbers = NUMBERS[slot.options[0] if slot.options else "some"]
        return Fill(counter=counter, determiner=draw(self.rng, numbers))

    def _places(self, slot: Slot, verb: Verb | None) -> list[Place]:
        wanted = frozenset(slot.options)
        places = list(self.lexicon.places)
        if wanted:
            places = [p for p in places if (p.tags | {p.english}) & wanted]
        if any(form == "to" for form in slot.forms) or wanted & {"going", "commute"}:
            places = [place for place in places if place.to]
        if verb is not None:
            places = [p for p in places if (p.tags | {p.english}) & verb.places]
        return places

    def _place(self, pattern: Pattern, slot: Slot, fills: Fills) -> Fill:
        verb = next((fill.verb for fill in fills.values() if fill.verb), None)
        return Fill(place=self._rare(self._places(slot, verb)))

    # Times and other words

    def _times(
        self, slot: Slot, verb: Verb | None, noun: Noun | None, clock: Word | None
    ) -> list[Word]:
        known = (slot, verb, noun, clock)
        if known in self._known:
            return self._known[known]
        wanted = frozenset(slot.options)
        words = [w for w in self.lexicon.words if w.kind == "when" and wanted <= w.tags]
        if verb is not None and verb.times:
            words = [word for word in words if word.tags & verb.times]
        if noun is not None and noun.times:
            words = [word for word in words if word.tags & noun.times]
        if clock is not None:
            words = [word for word in words if _fits_clock(word, clock)]
        self._known[known] = words
        return words

    def _when(self, pattern: Pattern, slot: Slot, fills: Fills) -> Fill:
        verb = next((fill.verb for fill in fills.values() if fill.verb), None)
        noun = next((fill.noun for fill in fills.values() if fill.noun), None)
        clock = fills["clock"].word if "clock" in fills else None
        return Fill(word=self._rare(self._times(slot, verb, noun, clock)))

    def _clock(self, pattern: Pattern, slot: Slot, fills: Fills) -> Fill:
        times = frozenset[str]()
        for fill in fills.values():
            for source in (fill.verb, fill.noun):
                if source is not None and source.times:
                    parts = (source.times & DAY_PARTS) or DAY_PARTS
                    times = parts & times if times else parts
        words = [w for w in self.lexicon.words if w.kind == "clock"]
        if times:
            words = [word for word in words if word.tags & times]
        return Fill(word=self._rare(words))

    def _words(self, slot: Slot) -> list[Word]:
        if (slot,) not in self._known:
            wanted = frozenset(slot.options)
            words = [word for word in self.lexicon.words if word.kind == slot.kind]
            self._known[slot,] = [w for w in words if not wanted or w.tags & wanted]
        return self._known[slot,]

    def _word(self, pattern: Pattern, slot: Slot, fills: Fills) -> Fill:
        return Fill(word=self._rare(self._words(slot)))

    _often = _weather = _state = _sky = _routine = _means = _word

    def _degree(self, pattern: Pattern, slot: Slot, fills: Fills) -> Fill:
        adjective = fills["adj"].adjective if "adj" in fills else None
        words = self._words(slot)
        if adjective is not None:
            words = [w for w in words if not w.tags or adjective.tone in w.tags]
        return Fill(word=self._rare(words))

    def _position(self, pattern: Pattern, slot: Slot, fills: Fills) -> Fill:
        spot = pattern.slot("spot")
        assert spot is not None
        words = [w for w in self._words(slot) if w.tags & frozenset(spot.options)]
        return Fill(word=self._rare(words))


def _includes(one: Person, other: Person) -> bool:
    """Return whether one is the other, or one of them (my mother, my parents)."""
    adults = {"adult", "adults"}
    return one is other or adults <= (one.groups | other.groups)


def _is_told(person: Person, subject: Person | None) -> bool:
    """Return whether the Japanese says whose a person is, where it leaves out 私の.

    娘 is the speaker's daughter beside 私は, and the student's beside 学生は.
    """
    if not person.english.startswith("my "):
        return True
    groups = subject.groups if subject else frozenset()
    return bool(groups & {"I", "we"}) or "family" in groups & person.groups


def _overlap(one: Noun, other: Noun) -> bool:
    """Return whether one is a kind of the other (roses, flowers; modern art, art)."""
    return (
        one is other
        or one.english in other.classes
        or other.english in one.classes
        or f" {one.english}".endswith(f" {other.english}")
        or f" {other.english}".endswith(f" {one.english}")
    )


def _owns(pattern: Pattern) -> bool:
    """Return whether `his` or `your` has someone to belong to."""
    words = {mark.text.lower() for mark in pattern.english}
    has_who = any(slot.kind == "who" for slot in pattern.slots)
    another = "who" in words  # in a clause of its own, as in: do you know the man who
    return has_who or (bool(words & {"you", "please"}) and not another)


def _fits_clock(word: Word, clock: Word) -> bool:
    parts = word.tags & DAY_PARTS
    if "evening" in parts:
        parts = parts | {"night"}
    return not parts or bool(parts & clock.tags)


def _toned(adjectives: list[Adjective], options: tuple[str, ...]) -> list[Adjective]:
    """Keep the adjectives of a tone; `gradable` ones have a comparative."""
    found = adjectives
    tones = frozenset(options) & {"good", "bad", "neutral"}
    if tones:
        found = [a for a in found if a.tone in tones]
    if frozenset(options) & {"gradable", "compared"}:
        found = [a for a in found if a.comparative]
    return found


def rows_of(fill: Fill) -> list[Row]:
    """Return the rows of the lexicon that a filling uses."""
    entries = (fill.person, fill.verb, fill.noun, fill.adjective, fill.owner)
    more = (fill.place, fill.word, fill.counter)
    return [entry.row for entry in (*entries, *more) if entry is not None]
