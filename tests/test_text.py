"""The text contract: what a line is, and the forms in which texts are compared."""

import io
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.text import (
    ArrivingLines,
    TextError,
    comparison_key,
    normalise,
    read_file,
    read_lines,
)

INSIDE_A_LINE = {
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
    "next line": "\u0085",
    "form feed": "\x0c",
    "vertical tab": "\x0b",
    "file separator": "\x1c",
    "ideographic space": "\u3000",
    "lone carriage return": "\r",
    "byte order mark in the middle": "\ufeff",
}

LINES = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=12)
    # A \r at its end is the end of the line, which is accepted and dropped.
    .filter(lambda line: not line.endswith("\r"))
)


def _lines(content: bytes) -> list[str]:
    return list(read_lines(io.BytesIO(content), "x"))


@pytest.mark.parametrize("character", INSIDE_A_LINE.values(), ids=INSIDE_A_LINE)
def test_only_a_line_feed_ends_a_line(character: str) -> None:
    content = f"one{character}two\nthree{character}\nfour\n".encode()
    if character == "\r":
        assert _lines(content) == ["one\rtwo", "three", "four"]
    else:
        assert _lines(content) == [f"one{character}two", f"three{character}", "four"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("closed", [True, False])
def test_line_ends_and_byte_order_marks_are_dropped(
    end: str, mark: str, closed: bool
) -> None:
    content = mark + end.join(["a", "", " b ", "\ufeffc"]) + (end if closed else "")
    assert _lines(content.encode()) == ["a", "", " b ", "\ufeffc"]


def test_one_carriage_return_belongs_to_the_end_and_no_more() -> None:
    assert _lines(b"a\r\r\n\r\n\rb\r") == ["a\r", "", "\rb"]
    assert _lines(b"a \t\r\n") == ["a \t"]


def test_nothing_has_no_lines() -> None:
    assert _lines(b"") == []
    assert _lines(b"\n") == [""]
    assert _lines(b"\xef\xbb\xbf\n") == [""]


@given(LINES, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_lines_come_back(lines: list[str], end: str, closed: bool) -> None:
    content = "\ufeff" + end.join(lines) + (end if closed and lines else "")
    expected = lines
    if not closed and lines and lines[-1] == "":
        expected = lines[:-1]  # an end with nothing after it
        if len(lines) == 1:
            expected = [""]  # the mark alone makes a line
    if not lines:
        expected = [""]
    assert _lines(content.encode()) == expected


@given(st.lists(st.text("ab\n\r\u2028", max_size=6).map(str.encode), max_size=6))
def test_what_arrives_in_parts_is_the_same_lines(parts: list[bytes]) -> None:
    source, sink = os.pipe()
    with open(source, "rb", buffering=0) as raw:
        found, lines = [], ArrivingLines(raw)
        for part in parts:
            os.write(sink, part)
            # Only what ends in \n is a line as yet.
            found += [next(iter(lines)) for _ in range(part.count(b"\n"))]
            assert lines.paused(0)
        os.close(sink)
        assert not lines.paused(0)
        assert [*found, *lines] == list(io.BytesIO(b"".join(parts)))


def test_a_pipe_that_does_not_block_is_waited_for() -> None:
    source, sink = os.pipe()
    os.set_blocking(source, False)
    with open(source, "rb", buffering=0) as raw:
        lines = ArrivingLines(raw)
        threading.Timer(0.05, lambda: (os.write(sink, b"a\nb"), os.close(sink))).start()
        assert list(lines) == [b"a\n", b"b"]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("あ\n".encode() + "日本\n".encode("shift_jis"), "line 2, byte 1"),
        (b"abc\xff\n", "line 1, byte 4"),
        (b"\xef\xbb\xbfabc\xff\n", "line 1, byte 4"),
        (b"ok\nok\r\n\xe3\x81", "line 3, byte 1"),
        ("a".encode("utf-16"), "line 1, byte 1"),
        (b"\xed\xa0\x80\n", "line 1, byte 1"),  # a lone surrogate
    ],
)
def test_what_is_not_utf8_is_named(content: bytes, where: str, tmp_path: Path) -> None:
    path = tmp_path / "text.tsv"
    path.write_bytes(content)
    with pytest.raises(TextError, match=f"text.tsv, {where}: not UTF-8; save"):
        read_file(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ｉ　ｌｏｖｅ　ｉｔ！", "I love it!"),
        ("“It’s” – she said…", '"It\'s" - she said...'),
        ("  a \t b\u00a0c\u2028d ", "a b c d"),
        ("soft\u00adhyphen\u200b\ufeff", "softhyphen"),
        ("cafe\u0301", "café"),
        ("cafe\u200b\u0301", "café"),
        ("か\u00ad\u3099", "が"),
        ("ﬁne ①", "fine 1"),
        ("naïve", "naïve"),
        ("\u200b \u3000", ""),
        ("a▁▁b ▁", "a b"),
        ("▁", ""),
        ("5′ 6″", "5' 6\""),
    ],
)
def test_normalisation_of_the_source(text: str, expected: str) -> None:
    assert normalise(text) == expected
    assert normalise(expected) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Where is it?", "where is it"),
        ("それは、何ですか？", "それは何ですか"),
        ("ＡＢＣ １２３", "abc123"),
        ("ｶﾞﾗｽ", "ガラス"),
        ("STRASSE", "straße"),
        ("It's", "Its"),
        ("  a  b ", "ab"),
    ],
)
def test_texts_that_count_as_equal(one: str, other: str) -> None:
    assert comparison_key(one) == comparison_key(other)


@pytest.mark.parametrize(
    ("one", "other"), [("か", "が"), ("?", "!"), ("1", "2"), ("は", "ハ"), ("?", "")]
)
def test_texts_that_do_not(one: str, other: str) -> None:
    assert comparison_key(one) != comparison_key(other)
