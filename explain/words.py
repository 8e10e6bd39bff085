"""The words of a text, and the tokens that each of them is made of.

Words are found (`source_words`, `target_words`), or known beforehand (`given_words`).
docs/alignment.md states every rule.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction

MARKS = frozenset({"<pad>", "<s>", "</s>", "<unk>"})
"""Tokens that are no text."""
_SPACE = "▁"
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_ENGLISH_PUNCTUATION = ".?!,"


class SegmenterMissing(ValueError):
    """Japanese words were asked for, and what finds them is not installed."""


@dataclass(frozen=True)
class Word:
    """One word, and the tokens that it is made of."""

    text: str
    parts: tuple[tuple[int, float], ...]
    """(index of a token, share of that token's characters that are this word's)."""


def source_words(tokens: Sequence[str], marks: bool = False) -> list[Word]:
    """Return the words of a text in a language that writes spaces.

    A comma at the end of a word, and what of . ? ! , closes the text, are words of
    their own. `marks` gives `</s>` and its like as words too.
    """
    text = "".join(c.text for c in _characters(tokens))
    words = split_punctuation(text.split())
    return _with_marks(tokens, given_words(tokens, words), marks)


def target_words(tokens: Sequence[str], glossary: Collection[str] = ()) -> list[Word]:
    """Return the words of a Japanese text.

    They are the fewest of the glossary's words and punctuation marks that make up the
    text, cutting as few tokens as can be. Where the glossary alone does not make it up,
    MeCab's words with its IPA dictionary are added to choose from. Raises
    `SegmenterMissing` where those are needed and not installed.
    """
    stretches, cuts, start = [], _cuts(tokens), 0
    for text in "".join(c.text for c in _characters(tokens)).split():
        inside = {cut - start for cut in cuts if start < cut < start + len(text)}
        stretches.append(_japanese_words(text, inside, glossary))
        start += len(text)
    words = [word for stretch in stretches for word in stretch]
    return given_words(tokens, words)


def text_words(
    tokens: Sequence[str], language: str, glossary: Collection[str] = ()
) -> list[Word]:
    """Return the words of a text in Japanese (`ja`), or in a language with spaces."""
    if language == "ja":
        return target_words(tokens, glossary)
    return source_words(tokens)


def given_words(tokens: Sequence[str], words: Sequence[str]) -> list[Word]:
    """Return words known beforehand, such as gold ones, with their tokens.

    Spaces are not compared; a word of nothing else has no parts. Raises `ValueError`
    where the words are not the tokens' text.
    """
    characters = [c for c in _characters(tokens) if not c.text.isspace()]
    bare = ["".join(word.replace(_SPACE, " ").split()) for word in words]
    text = "".join(c.text for c in characters)
    if "".join(bare) != text:
        raise ValueError(
            f"the words {' '.join(words)!r} are not the text of the tokens, {text!r}: "
            "give the words of the text that was encoded"
        )
    found, start = [], 0
    for word, letters in zip(words, bare, strict=True):
        parts: dict[int, Fraction] = {}
        for character in characters[start : start + len(letters)]:
            for index, share in character.parts:
                parts[index] = parts.get(index, Fraction(0)) + share
        found.append(Word(word, tuple((i, float(s)) for i, s in parts.items())))
        start += len(letters)
    return found


def split_punctuation(words: Sequence[str]) -> list[str]:
    """Return words with every closing comma, and the text's last marks, made words."""
    split = []
    for number, word in enumerate(words, start=1):
        closing = _ENGLISH_PUNCTUATION if number == len(words) else ","
        stem = word.rstrip(closing)
        split += [stem] * bool(stem) + list(word[len(stem) :])
    return split


def mecab_words(text: str) -> list[str]:
    """Return the words of Japanese text as MeCab finds them with its IPA dictionary.

    This is the segmentation that sacrebleu's `ja-mecab` counts. Raises
    `SegmenterMissing` where MeCab is not installed.
    """
    parse = _mecab()
    return [word for stretch in text.split() for word in _parsed(parse, stretch)]


def _parsed(parse: Callable[[str], str], stretch: str) -> list[str]:
    words = parse(stretch).split()
    # MeCab stops at a NUL character: then the stretch stays whole.
    return words if "".join(words) == stretch else [stretch]


@functools.cache
def _mecab() -> Callable[[str], str]:
    try:
        import ipadic
        import MeCab
    except ImportError:
        raise SegmenterMissing(
            "Japanese words need MeCab: install it with "
            "`pip install -c constraints.txt '.[ja]'`"
        ) from None
    parse: Callable[[str], str] = MeCab.Tagger(f"{ipadic.MECAB_ARGS} -Owakati").parse
    return parse


def _japanese_words(
    text: str, cuts: Set[int], glossary: Collection[str]
) -> Sequence[str]:
    """Return the words of a stretch without spaces; cuts are where its tokens meet."""
    if not glossary:
        return mecab_words(text)
    spans = _glossary_spans(text, glossary)
    words = _fewest_words(text, spans, cuts)
    if words is None:
        end = 0
        for word in mecab_words(text):
            spans.add((end, end + len(word)))
            end += len(word)
        words = _fewest_words(text, spans, cuts)
    assert words is not None, "MeCab's words alone make up the text"
    return words


def _glossary_spans(text: str, glossary: Collection[str]) -> set[tuple[int, int]]:
    """Return where the glossary's words, and punctuation marks, stand in a text."""
    longest = max(map(len, glossary))
    spans = {(i, i + 1) for i, c in enumerate(text) if not c.isalnum()}
    for start in range(len(text)):
        for end in range(start + 1, min(start + longest, len(text)) + 1):
            if text[start:end] in glossary:
                spans.add((start, end))
    return spans


def _fewest_words(
    text: str, spans: Collection[tuple[int, int]], cuts: Set[int]
) -> list[str] | None:
    """Return the spans that make up a text, at the least (cut tokens, words).

    None where none do. Of equals, the one whose last words are longer.
    """
    best: dict[int, tuple[int, int, int]] = {0: (0, 0, 0)}
    for start, end in sorted(spans, key=lambda span: (span[1], span[0])):
        if start in best:
            split, words, _ = best[start]
            split += end < len(text) and end not in cuts
            best[end] = min(best.get(end, (len(text), 0, 0)), (split, words + 1, start))
    if len(text) not in best:
        return None
    found, end = [], len(text)
    while end:
        start = best[end][2]
        found.append(text[start:end])
        end = start
    return found[::-1]


@dataclass(frozen=True)
class _Character:
    """A character of a text and its share of each token that holds it."""

    text: str
    parts: tuple[tuple[int, Fraction], ...]


def _characters(tokens: Sequence[str]) -> list[_Character]:
    """Return the text that tokens spell, byte pieces merged to characters.

    A piece is shared out equally among its characters. Spaces have no share; a piece of
    nothing but spaces belongs to the character after it, or to the last one.
    """
    found: list[_Character] = []
    waiting: list[int] = []
    for text, held in _spelled(tokens):
        letters = sum(not character.isspace() for character in text)
        if not letters:
            waiting += held
        for character in text:
            parts: tuple[tuple[int, Fraction], ...] = ()
            if not character.isspace():
                shares = [(i, Fraction(1, letters)) for i in held]
                parts = (*((i, Fraction(1)) for i in waiting), *shares)
                waiting = []
            found.append(_Character(character, parts))
    last = max((i for i, c in enumerate(found) if c.parts), default=None)
    if waiting and last is not None:
        rest = tuple((i, Fraction(1)) for i in waiting)
        found[last] = _Character(found[last].text, found[last].parts + rest)
    return found


def _spelled(tokens: Sequence[str]) -> Iterable[tuple[str, list[int]]]:
    """Yield the text of a piece, or a character made of bytes, and its tokens."""
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if byte_of(token):
            text, length = character_of_bytes(tokens[index : index + 4])
            length = max(length, 1)
            # A byte of no character reads as it does where SentencePiece decodes it.
            yield text or "\ufffd", list(range(index, index + length))
            index += length
            continue
        if token not in MARKS:
            yield token.replace(_SPACE, " "), [index]
        index += 1


def byte_of(token: str) -> bytes:
    """Return the byte that a piece such as <0xE3> stands for; of others nothing."""
    match = _BYTE.fullmatch(token)
    return bytes.fromhex(match[1]) if match else b""


def character_of_bytes(tokens: Sequence[str]) -> tuple[str, int]:
    """Return the character that byte pieces begin with, and how many they are.

    Where they make none, it is "" and 0.
    """
    found = b""
    for byte in map(byte_of, tokens[:4]):
        if not byte:
            break
        found += byte
        with contextlib.suppress(UnicodeDecodeError):
            return found.decode("utf-8"), len(found)
    return "", 0


def _cuts(tokens: Sequence[str]) -> set[int]:
    """Return after how many characters, spaces not counted, one token gives way."""
    cuts, length = set(), 0
    for text, _ in _spelled(tokens):
        length += sum(not character.isspace() for character in text)
        cuts.add(length)
    return cuts


def _with_marks(tokens: Sequence[str], words: list[Word], marks: bool) -> list[Word]:
    """Return words, with the tokens that are no text put in their places if asked."""
    if not marks:
        return words
    special = [Word(t, ((i, 1.0),)) for i, t in enumerate(tokens) if t in MARKS]
    placed = [word for word in words if word.parts]
    return sorted(special + placed, key=lambda word: word.parts[0][0])
