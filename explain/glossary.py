"""Readings and meanings of the words that a run knows, from its glossary.tsv."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from data.text import TextError, read_file


@dataclass(frozen=True)
class Entry:
    """One Japanese word, as learners' dictionaries give it."""

    reading: str
    """How it is read, in kana."""
    meaning: str
    """What it means, in English; empty where it only has a function."""


Glossary = Mapping[str, Entry]


def read_glossary(path: Path) -> dict[str, Entry]:
    """Return a glossary.tsv (word, reading, meaning); empty where there is no file."""
    if not path.is_file():
        return {}
    entries = {}
    for number, line in enumerate(read_file(path), start=1):
        columns = line.split("\t")
        if len(columns) != 3:
            raise TextError(
                f"{path}, line {number}: not a word, a reading and a meaning: train "
                "the model again"
            )
        entries[columns[0]] = Entry(*columns[1:])
    return entries


class Listed(Protocol):
    """A word with what a learner's dictionary says of it."""

    @property
    def word(self) -> str: ...
    @property
    def reading(self) -> str: ...
    @property
    def meaning(self) -> str: ...


def write_glossary(path: Path, entries: Iterable[Listed]) -> None:
    """Write entries as the glossary.tsv that `read_glossary` reads."""
    rows = (f"{entry.word}\t{entry.reading}\t{entry.meaning}\n" for entry in entries)
    path.write_text("".join(rows), "utf-8")
