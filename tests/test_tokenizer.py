"""Tokenizers: nothing is lost on the target side, nothing unknown on the source's."""

import itertools

import pytest
from conftest import pairs
from hypothesis import example, given
from hypothesis import strategies as st

from data.tokenizer import END, PADDING, START, UNKNOWN, Tokenizer, train_tokenizer

FULL_WIDTH = "これは、「テスト」です？！　１２３"
JAPANESE = st.text(
    st.characters(min_codepoint=0x3000, max_codepoint=0x30FF)
    | st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF)
    | st.characters(min_codepoint=0xFF01, max_codepoint=0xFFEF)
)


@pytest.fixture(scope="module")
def target() -> Tokenizer:
    texts = [b for _, b in pairs()] + [FULL_WIDTH] * 3 + ["全角（カッコ）、Ａ。"] * 3
    return train_tokenizer(texts, 500, "target")


@pytest.fixture(scope="module")
def source() -> Tokenizer:
    return train_tokenizer([a for a, _ in pairs()], 400, "source")


def test_the_case_of_full_width_punctuation(target: Tokenizer) -> None:
    ids = target.encode(FULL_WIDTH)
    assert target.decode(ids) == FULL_WIDTH
    vocabulary = set("".join(target.tokens(list(range(len(target))))))
    assert set("、「」？！。（）　１") <= vocabulary
    assert not any(token.startswith("<0x") for token in target.tokens(ids))


@given(JAPANESE)
@example("　全角　スペース　")
@example("、。「」！？・ー〜")
def test_japanese_comes_back(target: Tokenizer, text: str) -> None:
    assert target.decode(target.encode(text)) == text


def test_the_one_exception_is_stated(target: Tokenizer) -> None:
    assert target.decode(target.encode("a\u2581b")) == "a b"


@pytest.mark.parametrize(
    ("typed", "plain"),
    [
        ("“We’re” ‘here’", "\"We're\" 'here'"),
        ("Ｗｅ　ｓｌｅｅｐ　ａｔ　ｈｏｍｅ．", "We sleep at home."),
        ("We  sleep\u00a0at home – now—", "We sleep at home - now-"),
        (" We sleep at home.\u200b ", "We sleep at home."),
    ],
)
def test_what_people_type_reads_as_what_was_trained_on(
    source: Tokenizer, typed: str, plain: str
) -> None:
    assert source.encode(typed) == source.encode(plain)


def test_a_known_sentence_has_no_bytes(source: Tokenizer) -> None:
    tokens = source.tokens(source.encode("Ｗｅ　ｓｌｅｅｐ　ａｔ　ｈｏｍｅ．"))
    assert not any(token.startswith("<0x") for token in tokens)
    assert tokens[0].startswith("▁") and "".join(tokens) == "▁We▁sleep▁at▁home."


def test_special_tokens(target: Tokenizer) -> None:
    assert target.tokens([PADDING, START, END, UNKNOWN]) == [
        "<pad>", "<s>", "</s>", "<unk>",
    ]  # fmt: skip
    ids = target.encode("私は")
    assert target.decode([START, *ids, END, PADDING, PADDING]) == "私は"
    assert target.decode([]) == "" and target.encode("") == []


def test_the_same_text_gives_the_same_bytes() -> None:
    texts = [b for _, b in pairs()]
    models = {train_tokenizer(texts, 450, "target").model for _ in range(3)}
    assert len(models) == 1
    again = train_tokenizer(reversed(texts), 450, "target")
    assert Tokenizer(models.pop(), "target").encode(texts[0]) == again.encode(texts[0])


WORDS = ["私は", "機械", "学習", "が", "大好き", "です", "。", "ケーキ", "駅へ", "行く"]


def test_no_piece_crosses_two_given_words() -> None:
    texts = list(itertools.permutations(WORDS[:6], 3)) + [tuple(WORDS)] * 50
    words = train_tokenizer(texts, 2_000, "target")
    plain = train_tokenizer(["".join(text) for text in texts], 2_000, "target")
    vocabulary = words.tokens(list(range(len(words))))
    crossing = [a[-1] + b[0] for a in WORDS for b in WORDS]
    inside = "\0".join(WORDS)
    crossing = [join for join in crossing if join not in inside]
    assert not [t for t in vocabulary if any(join in t for join in crossing)]
    assert not any("\ue000" in token for token in vocabulary)
    # Given as whole texts, the same sentences do make such pieces.
    others = plain.tokens(list(range(len(plain))))
    assert [t for t in others if any(join in t for join in crossing)]
    ids = words.encode_words(WORDS)
    assert words.tokens(ids) == WORDS
    assert words.decode(ids) == "".join(WORDS)


@given(st.lists(JAPANESE.filter(bool), max_size=5))
def test_words_come_back_together(target: Tokenizer, words: list[str]) -> None:
    ids = target.encode_words(words)
    assert target.decode(ids) == "".join(words)
    assert ids == [token for word in words for token in target.encode(word)]


def test_a_vocabulary_without_room_is_refused() -> None:
    with pytest.raises(
        ValueError, match="of 100 is too small.*raise --vocab"
    ) as caught:
        train_tokenizer(["私は"], 100, "target")
    assert "0.98" not in str(caught.value)  # SentencePiece's complaint of a coverage


@pytest.mark.parametrize("size", [320, 340, 400])
def test_the_vocabulary_is_a_limit(size: int) -> None:
    tokenizer = train_tokenizer([b for _, b in pairs()], size, "target")
    assert len(tokenizer) <= size
    assert (
        tokenizer.decode(tokenizer.encode("両親は家で寝ます。")) == "両親は家で寝ます。"
    )


def test_texts_that_hold_line_ends_train_as_one_text() -> None:
    tokenizer = train_tokenizer(["ab\ncd\r\0ef"] * 9, 400, "target")
    assert tokenizer.decode(tokenizer.encode("ab\ncd")) == "ab\ncd"
    assert not any("\n" in t for t in tokenizer.tokens(list(range(len(tokenizer)))))


def test_pieces_drawn_at_random_are_of_the_same_text() -> None:
    tokenizer = train_tokenizer([" ".join(WORDS), "".join(WORDS)] * 5, 320, "target")
    texts = ["".join(WORDS)] * 20
    sampled = tokenizer.sample(texts, 0.3, seed=1)
    assert {tokenizer.decode(ids) for ids in sampled} == {"".join(WORDS)}
    assert len({tuple(ids) for ids in sampled}) > 1
    assert tokenizer.sample(texts, 0.3, seed=1) == sampled
    assert tokenizer.sample(texts, 0.3, seed=2) != sampled
    plain = tokenizer.encode("".join(WORDS))
    assert tokenizer.sample(texts[:1], 0.0, seed=1) == [plain]
    assert min(map(len, sampled)) >= len(plain)


def test_words_drawn_at_random_stay_apart() -> None:
    tokenizer = train_tokenizer(["".join(WORDS)] * 5, 320, "target")
    for ids in tokenizer.sample([WORDS] * 20, 0.3, seed=1):
        text, ends = "", {len("".join(WORDS[: n + 1])) for n in range(len(WORDS))}
        for token in ids:
            text += tokenizer.decode([token])
            ends.discard(len(text))
        assert text == "".join(WORDS) and not ends
