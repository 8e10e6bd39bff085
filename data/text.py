"""Lines of text: reading them strictly, and the forms in which they are compared."""

import io
import select
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

_BOM = b"\xef\xbb\xbf"
_TYPOGRAPHIC = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′ʼ", "'"),
        **dict.fromkeys("“”„‟", '"'),
        **dict.fromkeys("‐‑‒–—―−", "-"),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", None),
        "▁": " ",  # as SentencePiece reads it: else alone it is a token of nothing
    }
)


class TextError(ValueError):
    """Text that breaks the contract of line files; says where and what to do."""


def read_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 stream, without their ends.

    Only `\n` ends a line; one `\r` before it is dropped, as is a byte order mark at the
    start. U+2028, U+0085, form feeds and the like stay inside a line. Raises
    `TextError` that names the stream, the line and the byte where the bytes are not
    UTF-8.
    """
    for number, raw in enumerate(stream, start=1):
        if number == 1:
            raw = raw.removeprefix(_BOM)
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TextError(
                f"{name}, line {number}, byte {error.start + 1}: not UTF-8; save the "
                "file as UTF-8"
            ) from None


def read_file(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file; raises `TextError`, or `OSError`."""
    with path.open("rb") as file:
        return list(read_lines(file, str(path)))


class ArrivingLines:
    """The lines of a pipe as they arrive, and whether the writer pauses between them.

    `for line in ArrivingLines(stream.raw)` gives what `for line in stream` gives.
    """

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self._lines: list[bytes] = []  # whole ones, the first of them last
        self._rest: list[bytes] = []  # parts of a line whose end has not come yet
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        while True:
            while not self._lines and not self._ended:
                self._read()
            if not self._lines:
                return
            yield self._lines.pop()

    def paused(self, seconds: float = 0.2) -> bool:
        """Return whether no further line, nor the end, comes within some seconds."""
        while not self._lines and not self._ended:
            if not select.select([self._raw], [], [], seconds)[0]:
                return True
            self._read()
        return False

    def _read(self) -> None:
        block = self._raw.read(1 << 16)
        if block is None:  # the parent made the pipe a non-blocking one
            select.select([self._raw], [], [])
        elif not block:
            self._ended = True
            self._lines = [line] if (line := b"".join(self._rest)) else []
        elif b"\n" not in block:
            self._rest.append(block)
        else:
            *ended, rest = b"".join([*self._rest, block]).split(b"\n")
            self._lines = [line + b"\n" for line in reversed(ended)]
            self._rest = [rest]


def normalise(text: str) -> str:
    """Return text as a source tokenizer reads it.

    Unicode's NFKC (full-width letters become ordinary ones), typographic quotes and
    dashes made plain, invisible characters dropped, white space (▁ as well) folded.
    """
    text = text.replace("″", '"')  # NFKC would make two single ones of it
    plain = unicodedata.normalize("NFKC", text).translate(_TYPOGRAPHIC)
    # Once more: an invisible character may have stood between a letter and its accent.
    return " ".join(unicodedata.normalize("NFKC", plain).split())


def words_of(text: str) -> list[str]:
    """Return the words of a text as `source_words.txt` lists them, but for case."""
    stripped = (
        word.strip(".,;:!?\"'()[]{}…-。、！？「」") for word in normalise(text).split()
    )
    return [word for word in stripped if word]


def comparison_key(text: str) -> str:
    """Return text without case, width, punctuation and space, to find equal sentences.

    Text that consists of such characters alone is its own key.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    key = "".join(c for c in folded if unicodedata.category(c)[0] in "LNM")
    return key or folded.strip()
