"""What the views of a trace share: names that people can read, and a choice of maps.

Layers and heads are counted from 1 wherever a person gives or reads them.
"""

import contextlib
from collections.abc import Sequence
from unicodedata import east_asian_width

from explain.glossary import Entry, Glossary
from explain.kinds import KINDS, Kind
from explain.trace import AttentionMap, AttentionTrace
from explain.words import (
    MARKS,
    SegmenterMissing,
    byte_of,
    character_of_bytes,
    target_words,
)

KIND_NAMES: dict[Kind, str] = {
    "encoder_self": "Encoder self-attention",
    "decoder_self": "Decoder masked self-attention",
    "cross": "Cross-attention",
}
ARTICLES_SOURCE, ARTICLES_TARGET = "love", "私は"
"""The tokens whose attention the article works out; a view shows theirs by itself."""
_SPACE = "▁"


def source_labels(trace: AttentionTrace) -> tuple[str, ...]:
    """Return the source tokens as a person reads them.

    The mark of a space is dropped; a piece that goes on a word begins with a hyphen,
    but in Japanese, where a space begins no word.
    """
    return tuple(
        _source_label(token, begins=not index)
        for index, token in enumerate(_characters(trace.source.tokens))
    )


def _source_label(token: str, begins: bool) -> str:
    text = printable(token.removeprefix(_SPACE).replace(_SPACE, "␣"))
    if token.startswith(_SPACE):
        return text or "␣"
    goes_on = token[:1].isalnum() and east_asian_width(token[0]) not in "WF"
    return f"-{text}" if goes_on and not begins else text


def target_labels(tokens: Sequence[str]) -> tuple[str, ...]:
    """Return target tokens as a person reads them.

    Bytes that make up one character become that character and their place in it, as in
    鬱 1/3; a character that cannot be seen becomes its number, as in U+3000.
    """
    return tuple(
        token if token in MARKS else printable(token.replace(_SPACE, "␣"))
        for token in _characters(tokens)
    )


def printable(text: str) -> str:
    """Return text in which every character that a terminal might obey is a number."""
    return "".join(c if c.isprintable() else f"U+{ord(c):04X}" for c in text)


def row_labels(
    trace: AttentionTrace, kind: Kind, form: str = "reads {} → predicts {}"
) -> tuple[str, ...]:
    """Return what to call each row of a kind of map: what it reads and predicts."""
    if kind == "encoder_self":
        return source_labels(trace)
    reads = target_labels(trace.target.tokens_in)
    predicts = target_labels(trace.target.tokens_out)
    return tuple(
        form.format(read, predicted)
        for read, predicted in zip(reads, predicts, strict=True)
    )


def column_labels(trace: AttentionTrace, kind: Kind) -> tuple[str, ...]:
    """Return what to call each column of a kind of map."""
    if kind == "decoder_self":
        return target_labels(trace.target.tokens_in)
    return source_labels(trace)


def entries(tokens: Sequence[str], glossary: Glossary) -> tuple[Entry | None, ...]:
    """Return what a glossary adds to each target token, None where it adds nothing.

    A word of several tokens stands at its last, which completes it. Where nothing here
    can tell words apart, each token is taken for one. A reading that is the word itself
    is left out. A terminal may be given what is returned.
    """
    words = dict(enumerate(tokens))
    with contextlib.suppress(SegmenterMissing):
        found = target_words(tokens, glossary) if glossary else ()
        words = {
            w.parts[-1][0]: w.text for w in found if w.parts and w.text in glossary
        }
    return tuple(_added(words.get(i), glossary) for i in range(len(tokens)))


def _added(word: str | None, glossary: Glossary) -> Entry | None:
    if word is None or word not in glossary:
        return None
    entry = glossary[word]
    reading = "" if entry.reading == word else entry.reading
    if not reading and not entry.meaning:
        return None
    return Entry(printable(reading), printable(entry.meaning))


def find_row(tokens: Sequence[str], labels: Sequence[str], word: str) -> int | None:
    """Return the first row that reads a token, or that completes a word of several."""
    for row, names in enumerate(zip(tokens, labels, strict=True)):
        if word in names:
            return row
    text = b""
    for row, token in enumerate(tokens):
        if token not in MARKS:
            text += byte_of(token) or token.encode()
        if word and word.encode() in text:
            return row
    return None


def default_row(trace: AttentionTrace) -> int:
    """Return the target row that reads 私は, else the first after the start mark."""
    tokens = trace.target.tokens_in
    row = find_row(tokens, target_labels(tokens), ARTICLES_TARGET)
    return min(1, len(tokens) - 1) if row is None else row


def choose(
    trace: AttentionTrace,
    kinds: Sequence[Kind] | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> list[tuple[AttentionMap, tuple[int, ...]]]:
    """Return the maps that are asked for, each with the heads to show (from 1).

    Nothing asked for gives all. A layer that some kind of map lacks is left out of that
    kind. Raises `ValueError` where a layer or a head is in none of them.
    """
    for kind in kinds or ():
        if kind not in KINDS:
            raise ValueError(f"no kind of map {kind!r}: give one of {', '.join(KINDS)}")
    maps = [found for found in trace.maps if not kinds or found.kind in kinds]
    if not maps:
        raise ValueError(f"this trace has no maps of {', '.join(kinds or KINDS)}")
    layers = max((found.layer + 1 for found in maps), default=0)
    heads = max((len(found.weights) for found in maps), default=0)
    for name, value, most in (("layer", layer, layers), ("head", head, heads)):
        if value is not None and not 1 <= value <= most:
            raise ValueError(f"there is no {name} {value}: give one from 1 to {most}")
    return [
        (found, tuple(range(1, len(found.weights) + 1)) if head is None else (head,))
        for found in maps
        if layer in {None, found.layer + 1}
    ]


def _characters(tokens: Sequence[str]) -> list[str]:
    """Return tokens, with the bytes of a whole character named after it."""
    named = list(tokens)
    index = 0
    while index < len(tokens):
        index += _name_bytes(named, index) or 1
    return named


def _name_bytes(tokens: list[str], start: int) -> int:
    """Name the byte pieces of the character that begins at start; return how many."""
    character, size = character_of_bytes(tokens[start : start + 4])
    for place in range(size):
        part = f" {place + 1}/{size}" if size > 1 else ""
        tokens[start + place] = printable(character) + part
    return size
