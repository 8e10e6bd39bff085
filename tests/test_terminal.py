"""What the terminal shows: every number, no masked zero, nothing wider than it is."""

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from rich.cells import cell_len
from rich.console import Console
from small_model import ENGLISH, GLOSSARY, JAPANESE, renamed, trace

from explain.glossary import Entry, Glossary
from explain.terminal import show
from explain.trace import AttentionTrace
from explain.views import entries, source_labels, target_labels
from explain.words import SegmenterMissing


def printed(
    found: AttentionTrace,
    glossary: Glossary = GLOSSARY,
    width: int = 80,
    colour: bool = False,
    **options: Any,
) -> str:
    console = Console(
        width=width, file=io.StringIO(), force_terminal=colour,
        color_system="truecolor" if colour else None,
    )  # fmt: skip
    for shown in show(found, glossary, **options):
        console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def row(text: str, start: str) -> list[str]:
    """Return the cells of the first row that starts so, shading taken off."""
    (line, *_) = (line for line in text.split("\n") if line.startswith(start))
    return [cell.lstrip("░▒▓█") for cell in line.removeprefix(start).split()]


def test_every_number_of_a_map_is_shown_and_what_is_masked_is_not() -> None:
    found = trace()
    text = printed(found, {}, kinds=["decoder_self"], layer=2, head=3, width=120)
    weights = found.map("decoder_self", 1).weights[2]
    assert "Decoder masked self-attention, layer 2, head 3" in text
    names = zip(found.target.tokens_in, found.target.tokens_out, strict=True)
    for t, (read, predicted) in enumerate(names):
        cells = row(text, f"reads {read} → predicts {predicted}")
        assert cells == [f"{w:.2f}" for w in weights[t, : t + 1]] + ["·"] * (7 - t)


def test_a_cross_map_has_target_rows_and_source_columns() -> None:
    found = trace(
        "I love machine learning", ("私は", "学習", "が", "大好き", "です", "。")
    )
    assert (len(found.source.ids), len(found.target.ids_in)) == (5, 7)
    text = printed(found, {}, kinds=["cross"], layer=1, head=1)
    assert row(text, " ") == ["I", "love", "machine", "learning", "</s>"]
    shown = [line for line in text.split("\n") if line.startswith("reads ")]
    assert len(shown) == 7 and "·" not in text
    cells = row(text, "reads <s> → predicts 私は")
    assert cells == [f"{w:.2f}" for w in found.map("cross", 0).weights[0, 0]]


def test_a_digest_is_shown_by_default() -> None:
    found = trace()
    text = printed(found)
    for layer in (1, 2):
        assert f"Cross-attention, layer {layer}, mean of 4 heads" in text
        for head, weights in enumerate(found.map("cross", layer - 1).weights, 1):
            cells = row(text, f"layer {layer} head {head}")
            assert cells == [f"{w:.2f}" for w in weights[1]]
    assert "the row that reads 私は → predicts 機械" in text
    assert "self-attention" not in text
    mean = found.map("cross", 1).weights.mean(axis=0)[6]
    (line,) = (s for s in text.split("\n\n") if "layer 2, mean" in s)
    assert row(line, "reads です → predicts 。") == [f"{w:.2f}" for w in mean]


def test_readings_and_meanings_stand_under_the_tokens() -> None:
    text = printed(trace(), kinds=["cross"], layer=1, head=1)
    lines = text.split("\n")
    (at,) = (i for i, line in enumerate(lines) if "reads 私は" in line)
    assert "わたしは I (topic) → きかい machine" in lines[at + 1]
    text = printed(trace(), kinds=["decoder_self"], layer=1, head=1)
    assert "がくしゅう" in text and "learning" in text
    assert "わたしは" not in printed(trace(), {})


def test_a_word_of_several_tokens_is_explained_where_it_ends() -> None:
    found = entries(("<s>", "私", "は", "が", "大好き"), GLOSSARY)
    assert [entry and entry.reading for entry in found] == [
        None, None, "わたしは", None, "だいすき",
    ]  # fmt: skip


def test_a_piece_of_a_longer_word_is_no_word() -> None:
    school = {"が": Entry("が", "(subject)"), "がっこう": Entry("がっこう", "school")}
    assert entries(("が", "っこう", "が"), school) == (
        None, Entry("", "school"), Entry("", "(subject)"),
    )  # fmt: skip
    assert entries(("が", "っこう"), {}) == (None, None)


def test_without_a_segmenter_tokens_are_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object) -> NoReturn:
        raise SegmenterMissing

    monkeypatch.setattr("explain.views.target_words", missing)
    found = entries(("私は", "学校"), GLOSSARY)
    assert found == (Entry("わたしは", "I (topic)"), None)


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("words", [JAPANESE[:3], JAPANESE + JAPANESE[2:6]])
def test_nothing_is_wider_than_the_terminal(
    words: Sequence[str], width: int, colour: bool
) -> None:
    found = trace(" ".join(ENGLISH + ENGLISH[4:9]), words)
    kinds = ["encoder_self", "decoder_self", "cross"]
    text = printed(found, width=width, colour=colour, kinds=kinds, head=1)
    plain = printed(found, width=width, kinds=kinds, head=1)
    assert max(cell_len(line) for line in plain.split("\n")) <= width
    assert ("\x1b[" in text) == colour
    if width >= 80:
        weights = found.map("cross", 0).weights[0]
        for w in (weights[0, 0], weights[-1, -1]):
            assert f"{w:.2f}" in plain


def test_columns_of_full_width_characters_stand_under_each_other() -> None:
    text = printed(trace(), {}, kinds=["cross"], layer=1, head=1)
    ends = {
        cell_len(line[: line.rindex(".") + 3])
        for line in text.split("\n")
        if line.startswith("reads ")
    }
    assert len(ends) == 1


def test_colours_shade_a_cell_on_a_scale_from_0_to_1() -> None:
    text = printed(trace(), {}, colour=True, kinds=["decoder_self"], layer=1, head=1)
    assert "\x1b[38;2;255;255;255;48;2;8;48;107m" in text  # white on the darkest: 1.00


def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(width=80, file=io.StringIO(), force_terminal=True)
    for shown in show(trace(), {}, kinds=["decoder_self"], layer=1, head=1):
        console.print(shown)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "█1.00" in text and "48;2" not in text


def test_equal_tokens_are_both_shown() -> None:
    found = trace("the cat saw the dog", ("猫", "が", "犬", "を", "見た"))
    text = printed(found, {}, kinds=["encoder_self"], layer=1, head=1)
    assert row(text, "  ")[:5] == ["the", "cat", "saw", "the", "dog"]
    assert len(re.findall(r"^the +\S?\d\.\d\d", text, re.MULTILINE)) == 2


def test_tokens_that_look_like_markup_or_commands_are_shown_literally() -> None:
    tokens = ("<s>", "[bold]", "\x1b[31m", "&", "<b>x</b>", "{}", "\u2028", "$x$")
    text = printed(renamed(trace(), tokens), {}, kinds=["cross"], layer=1, head=1)
    for shown in ("reads [bold]", "reads U+001B[31m", "reads &", "reads <b>x</b>",
                  "reads {}", "reads U+2028", "reads $x$"):  # fmt: skip
        assert shown in text


def test_no_escape_of_a_strangers_run_reaches_the_terminal() -> None:
    found = trace()
    tokens = ("▁learn", "ing\x1b[31m", "\x1b[2J", "", "</s>")
    found = replace(found, source=replace(found.source, tokens=tokens))
    assert source_labels(found) == (
        "learn", "-ingU+001B[31m", "U+001B[2J", "", "</s>",
    )  # fmt: skip
    glossary = {"私は": Entry("わ\x1b[31mたしは", "I\x9b2J"), "が": Entry("が", "\x07")}
    kinds = ["encoder_self", "decoder_self", "cross"]
    text = printed(found, glossary) + printed(found, glossary, kinds=kinds)
    assert all(line.isprintable() for line in text.split("\n"))
    for shown in ("わU+001B[31mたしは IU+009B2J", "U+0007", "-ingU+001B"):
        assert shown in text


def test_the_bytes_of_a_character_are_named_after_it() -> None:
    # 鬱 is U+9B31: e9 ac b1 in UTF-8.
    tokens = ("<s>", "<0xE9>", "<0xAC>", "<0xB1>", "だ", "<0xE9>", "<0x41>")
    assert target_labels(tokens) == (
        "<s>",
        "鬱 1/3",
        "鬱 2/3",
        "鬱 3/3",
        "だ",
        "<0xE9>",
        "A",
    )


def test_english_pieces_say_whether_they_begin_a_word() -> None:
    found = trace()
    tokens = ("▁learn", "ing", ".", "▁", "</s>")
    found = replace(found, source=replace(found.source, tokens=tokens))
    assert source_labels(found) == ("learn", "-ing", ".", "␣", "</s>")


def test_one_token_on_each_side() -> None:
    found = trace("I", ())
    assert found.map("cross", 0).weights.shape == (4, 1, 2)
    assert "reads <s> → predicts </s>" in printed(found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kinds": ["crss"]}, "no kind of map 'crss': give one of encoder_self"),
        ({"kinds": ["cross"], "layer": 3}, "no layer 3: give one from 1 to 2"),
        ({"layer": 0}, "no layer 0"),
        ({"head": 5}, "no head 5: give one from 1 to 4"),
    ],
)
def test_what_is_not_there_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        printed(trace(), **options)
