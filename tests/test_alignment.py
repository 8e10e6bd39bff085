"""Words, alignments and their scores, on values that can be checked by hand."""

import itertools
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.tokenizer import END, START, train_tokenizer
from explain import words as words_module
from explain.alignment import (
    Example,
    Gold,
    Heads,
    align,
    chosen_on,
    cross_weights,
    diagonal,
    forced_weights,
    links,
    measure,
    parse_links,
    pharaoh,
    score,
    word_matrix,
)
from explain.trace import AttentionTrace, ModelNote, Source, Target, trace_attention
from explain.words import (
    SegmenterMissing,
    Word,
    given_words,
    mecab_words,
    source_words,
    split_punctuation,
    target_words,
)
from model.config import ModelConfig
from model.transformer import Transformer

GOLD_WORDS = {"私は", "私の", "機械", "学習", "が", "大好き", "です", "好き", "は"}


def texts(words: list[Word]) -> list[str]:
    return [word.text for word in words]


# ------------------------------------------------------------------- tokens to words


def test_english_words_end_at_spaces_and_marks_stand_alone() -> None:
    tokens = ["▁I", "▁lo", "ve", "▁machine", "▁learning", ".", "</s>"]
    assert source_words(tokens) == [
        Word("I", ((0, 1.0),)),
        Word("love", ((1, 1.0), (2, 1.0))),
        Word("machine", ((3, 1.0),)),
        Word("learning", ((4, 1.0),)),
        Word(".", ((5, 1.0),)),
    ]
    assert source_words(tokens, marks=True)[-1] == Word("</s>", ((6, 1.0),))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Yes, I don't.", ["Yes", ",", "I", "don't", "."]),
        ("Really?!", ["Really", "?", "!"]),
        ("Is Ms. Mori here?", ["Is", "Ms.", "Mori", "here", "?"]),
        ("It costs 1,000 yen", ["It", "costs", "1,000", "yen"]),
        ("It's Ken's dog.", ["It's", "Ken's", "dog", "."]),
        (".", ["."]),
        ("", []),
    ],
)
def test_punctuation(text: str, words: list[str]) -> None:
    assert split_punctuation(text.split()) == words


def test_a_piece_across_a_word_and_its_mark_is_shared_out_by_characters() -> None:
    assert source_words(["▁dogs."]) == [
        Word("dogs", ((0, 0.8),)),
        Word(".", ((0, 0.2),)),
    ]


def test_a_lone_space_belongs_to_the_word_after_it() -> None:
    tokens = ["▁", "é", "t", "▁", "a", "▁"]
    assert source_words(tokens) == [
        Word("ét", ((0, 1.0), (1, 1.0), (2, 1.0))),
        Word("a", ((3, 1.0), (4, 1.0), (5, 1.0))),
    ]


def test_gold_words_are_found_and_straddling_pieces_shared_out() -> None:
    tokens = ["私", "は機械", "学習が", "大好き", "です", "。", "</s>"]
    third = pytest.approx(1 / 3)
    assert target_words(tokens, GOLD_WORDS) == [
        Word("私は", ((0, 1.0), (1, third))),
        Word("機械", ((1, pytest.approx(2 / 3)),)),
        Word("学習", ((2, pytest.approx(2 / 3)),)),
        Word("が", ((2, third),)),
        Word("大好き", ((3, 1.0),)),
        Word("です", ((4, 1.0),)),
        Word("。", ((5, 1.0),)),
    ]


def test_gold_words_follow_the_pieces_where_both_readings_fit() -> None:
    glossary = {"これは", "これ", "はし", "は", "し"}
    assert texts(target_words(["これは", "し"], glossary)) == ["これは", "し"]
    assert texts(target_words(["これ", "はし"], glossary)) == ["これ", "はし"]
    assert texts(target_words(["これはし"], {"これ", "は", "これは", "し"})) == [
        "これは",
        "し",
    ]


def test_text_beyond_the_glossary_takes_the_segmenters_words_in() -> None:
    pytest.importorskip("MeCab")
    tokens = ["私は", "サマン", "サ", "が", "大好き", "です", "。"]
    assert texts(target_words(tokens, GOLD_WORDS)) == [
        "私は",
        "サマンサ",
        "が",
        "大好き",
        "です",
        "。",
    ]
    # は of the glossary must not be cut out of はさみ.
    assert texts(target_words(["はさみ", "は"], GOLD_WORDS)) == ["はさみ", "は"]


def test_japanese_words_without_a_glossary_are_mecabs() -> None:
    pytest.importorskip("MeCab")
    tokens = ["私は", "機械学習が", "大好き", "です。", "</s>"]
    expected = ["私", "は", "機械", "学習", "が", "大好き", "です", "。"]
    assert texts(target_words(tokens)) == expected
    assert mecab_words("Tom Smith\u3000です") == ["Tom", "Smith", "です"]
    assert mecab_words("a\0b") == ["a\0b"]
    assert target_words([]) == target_words(["</s>"]) == []


def test_without_mecab_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    words_module._mecab.cache_clear()
    assert len(target_words(["私は", "です"], GOLD_WORDS)) == 2
    with pytest.raises(SegmenterMissing, match=r"pip install .*\.\[ja\]"):
        target_words(["犬", "です"], GOLD_WORDS)
    words_module._mecab.cache_clear()


def test_byte_pieces_become_one_character() -> None:
    tokens = ["<0xE5>", "<0xA5>", "<0xBD>", "きです"]  # 好
    assert target_words(tokens, {"好き", "です"}) == [
        Word("好き", ((0, 1.0), (1, 1.0), (2, 1.0), (3, pytest.approx(1 / 3)))),
        Word("です", ((3, pytest.approx(2 / 3)),)),
    ]
    # A byte that begins no character is one U+FFFD and spoils nothing beside it.
    assert given_words(["<0xE5>", "<0xE5>", "<0xA5>", "<0xBD>"], ["\ufffd", "好"]) == [
        Word("\ufffd", ((0, 1.0),)),
        Word("好", ((1, 1.0), (2, 1.0), (3, 1.0))),
    ]


def test_other_words_than_the_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="give the words of the text that was encoded"):
        given_words(["▁I", "▁love"], ["I", "loved"])


def test_words_of_real_tokenizers() -> None:
    english = ["I love machine learning.", "She loves dogs."] * 8
    japanese = ["私は機械学習が大好きです。", "私の犬です。"] * 8
    source = train_tokenizer(english, 320, "source")
    target = train_tokenizer(japanese, 320, "target")
    found = source_words(source.tokens([*source.encode("She loves foxes. 🦊"), END]))
    assert texts(found) == ["She", "loves", "foxes.", "🦊"]
    tokens = target.tokens([*target.encode("私は🦊好きです！"), END])
    assert sum(token.startswith("<0x") for token in tokens) >= 4
    words = target_words(tokens, GOLD_WORDS)
    assert texts(words) == ["私は", "🦊", "好き", "です", "！"]
    _check_shares(words, len(tokens) - 1)


def _check_shares(words: list[Word], tokens: int) -> None:
    """Every one of the first `tokens` tokens is shared out whole."""
    total = np.zeros(tokens)
    for word in words:
        for index, share in word.parts:
            total[index] += share
    np.testing.assert_allclose(total, 1, atol=1e-12)


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Draw a text's words, and the same text as arbitrary pieces, some in bytes."""
    letters = st.sampled_from("aé私は機械学習🦊。")
    words = draw(st.lists(st.text(letters, min_size=1, max_size=5), max_size=6))
    spaced = draw(st.booleans())
    text = "▁".join(words) if spaced else "".join(words)
    tokens: list[str] = []
    while text:
        length = draw(st.integers(1, 4))
        piece, text = text[:length], text[length:]
        if draw(st.booleans()):
            tokens.append(piece)
        else:
            tokens += [f"<0x{byte:02X}>" for byte in piece.replace("▁", " ").encode()]
    return words, tokens


@given(cut_texts())
@settings(max_examples=300)
def test_every_token_is_shared_out_whole(drawn: tuple[list[str], list[str]]) -> None:
    words, tokens = drawn
    found = given_words(tokens, words)
    assert texts(found) == words
    if words:
        _check_shares(found, len(tokens))


@given(
    st.text("あいう", min_size=1, max_size=7),
    st.sets(st.text("あいう", min_size=1, max_size=3), min_size=1, max_size=8),
    st.sets(st.integers(1, 6)),
)
@settings(max_examples=300)
def test_no_other_words_are_fewer_or_cut_fewer_tokens(
    text: str, glossary: set[str], cuts: set[int]
) -> None:
    spans = words_module._glossary_spans(text, glossary)
    found = words_module._fewest_words(text, spans, cuts)

    def cost(words: list[str]) -> tuple[int, int]:
        ends = list(itertools.accumulate(map(len, words)))[:-1]
        return sum(end not in cuts for end in ends), len(words)

    ways = []
    for count in range(len(text)):
        for inner in itertools.combinations(range(1, len(text)), count):
            edges = (0, *inner, len(text))
            words = [text[a:b] for a, b in itertools.pairwise(edges)]
            if glossary.issuperset(words):
                ways.append(words)
    assert (found is None) == (not ways)
    if found is not None:
        assert glossary.issuperset(found) and "".join(found) == text
        assert cost(found) == min(map(cost, ways))


# ------------------------------------------------------------------ words to links


def test_word_matrix_by_hand() -> None:
    # Rows: two pieces of one word, then one piece that two words share by halves.
    weights = [[0.2, 0.3, 0.5], [0.4, 0.4, 0.2], [0.0, 0.6, 0.4]]
    rows = [
        Word("a", ((0, 1.0), (1, 1.0))),
        Word("b", ((2, 0.5),)),
        Word("c", ((2, 0.5),)),
    ]
    columns = [Word("x", ((0, 1.0), (1, 0.5))), Word("y", ((1, 0.5),))]
    mark = Word("</s>", ((2, 1.0),))
    # a: columns (0.3, 0.35, 0.35) on average; x = 0.3 + 0.35 / 2, y = 0.35 / 2.
    np.testing.assert_allclose(
        word_matrix(weights, rows, [*columns, mark]),
        [[0.475, 0.175, 0.35], [0.3, 0.3, 0.4], [0.3, 0.3, 0.4]],
    )
    np.testing.assert_allclose(
        word_matrix(weights, rows, columns, renormalise=True),
        [[0.475 / 0.65, 0.175 / 0.65], [0.5, 0.5], [0.5, 0.5]],
    )
    assert word_matrix([weights] * 4, rows, columns).shape == (4, 3, 2)


def test_a_word_whose_tokens_get_no_weight_keeps_a_row_of_zeros() -> None:
    words = [Word("a", ((0, 1.0),))]
    assert word_matrix([[0.0, 1.0]], words, words, renormalise=True).tolist() == [[0.0]]
    assert links(np.zeros((1, 2))) == links(np.zeros((1, 0))) == set()


@given(cut_texts(), cut_texts(), st.integers(0, 2**32 - 1))
@settings(max_examples=200)
def test_rows_of_words_sum_to_one(
    rows: tuple[list[str], list[str]], columns: tuple[list[str], list[str]], seed: int
) -> None:
    (row_texts, row_tokens), (column_texts, column_tokens) = rows, columns
    row_words = given_words(row_tokens, row_texts)
    column_words = given_words(column_tokens, column_texts)
    marked = [*column_words, Word("</s>", ((len(column_tokens), 1.0),))]
    shape = (2, len(row_tokens), len(column_tokens) + 1)
    weights = np.random.default_rng(seed).random(shape)
    weights /= weights.sum(axis=2, keepdims=True)
    whole = word_matrix(weights, row_words, marked)
    np.testing.assert_allclose(whole.sum(axis=2), 1, atol=1e-12)
    rest = whole[:, :, :-1]
    if column_words:
        np.testing.assert_allclose(
            word_matrix(weights, row_words, column_words, renormalise=True),
            rest / rest.sum(axis=2, keepdims=True),
        )


def test_links_go_to_the_largest_weight_and_are_written_in_order() -> None:
    words = np.array([[0.1, 0.7, 0.2], [0.6, 0.2, 0.2], [0.4, 0.4, 0.2]])
    assert links(words) == {(1, 0), (0, 1), (0, 2)}
    assert pharaoh(links(words)) == "0-1 0-2 1-0"
    assert parse_links("0-1 0?2 10-0") == Gold(
        frozenset({(0, 1), (10, 0)}), frozenset({(0, 2)})
    )
    assert parse_links("") == Gold(frozenset())
    for wrong in ("0", "0:1", "a-b", "-1-0", "1-"):
        with pytest.raises(ValueError, match="is no link"):
            parse_links(wrong)


def test_the_diagonal() -> None:
    assert diagonal(4, 4) == [0, 1, 2, 3]
    assert diagonal(2, 4) == [0, 0, 1, 1]
    assert diagonal(4, 2) == [1, 3]
    assert diagonal(1, 3) == [0, 0, 0]


# ------------------------------------------------------------------ heads and scores


def test_scores_by_hand() -> None:
    gold = Gold(frozenset({(0, 0), (1, 1)}), frozenset({(2, 1), (2, 2)}))
    found = score([({(0, 0), (2, 1), (2, 0)}, gold)])
    assert (found.sentences, found.links) == (1, 3)
    assert found.error_rate == pytest.approx(1 - (1 + 2) / (3 + 2))
    assert found.precision == pytest.approx(2 / 3)
    assert found.recall == pytest.approx(2 / 4)
    assert found.sure_recall == pytest.approx(1 / 2)


def test_scores_of_the_nltk_documentations_example() -> None:
    gold = Gold(frozenset({(0, 0), (1, 1), (2, 2)}))
    found = score([({(0, 0), (1, 2), (2, 1)}, gold)])
    assert found.error_rate == pytest.approx(0.6666666666666667)
    assert found.precision == found.recall == pytest.approx(1 / 3)


def test_possible_links_never_cost_anything() -> None:
    gold = Gold(frozenset({(0, 0)}), frozenset({(1, 1)}))
    assert score([({(0, 0)}, gold)]).error_rate == 0
    assert score([({(0, 0), (1, 1)}, gold)]).error_rate == 0


def test_scores_count_over_all_sentences_together() -> None:
    one, three = Gold(frozenset({(0, 0)})), Gold(frozenset({(0, 0), (1, 1), (2, 2)}))
    found = score([({(0, 0)}, one), ({(1, 0), (0, 1), (1, 2)}, three)])
    assert found.error_rate == pytest.approx(
        1 - (1 + 1) / (4 + 4)
    )  # no mean of 0 and 1


def test_heads_choose_one_a_layers_mean_or_all() -> None:
    weights = np.arange(12.0).reshape(2, 3, 1, 2)
    assert Heads(1, 2).of(weights).tolist() == [[10.0, 11.0]]
    assert Heads(1).of(weights).tolist() == [[8.0, 9.0]]
    assert Heads().of(weights).tolist() == [[5.0, 6.0]]
    assert [str(h) for h in (Heads(1, 2), Heads(1), Heads())] == [
        "layer 2, head 3",
        "layer 2, mean",
        "mean of all",
    ]
    for wrong in (Heads(2), Heads(-1), Heads(0, 3), Heads(None, 0)):
        with pytest.raises(ValueError, match="give"):
            wrong.of(weights)


def _example() -> Example:
    """Two layers of two heads; 2 source words and the end mark, 3 target words."""
    source = [Word("a", ((0, 1.0),)), Word("b", ((1, 1.0),))]
    target = [Word(t, ((i, 1.0),)) for i, t in enumerate("xyz")]
    right = [[0.8, 0.1, 0.1], [0.2, 0.3, 0.5], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]]
    wrong = [[0.1, 0.8, 0.1], [0.9, 0.1, 0.0], [0.7, 0.3, 0.0], [0.0, 0.0, 1.0]]
    weights = [[right, wrong], [wrong, wrong]]
    return Example(weights, source, target, parse_links("0-0 1-1 1?2"))


def test_measure_by_hand() -> None:
    found = measure([_example()])
    right = found.heads[Heads(0, 0)]
    # Target words 0 and 1 have sure links; 2 is not asked for.
    assert (right.sentences, right.links, right.error_rate) == (1, 2, 0)
    assert (right.precision, right.sure_recall) == (1, 1)
    assert right.recall == pytest.approx(2 / 3)
    assert right.true_weight == pytest.approx((0.8 / 0.9 + 0.3 / 0.5) / 2)
    assert found.heads[Heads(1, 1)].error_rate == 1
    # Layer 1's mean: rows (0.45, 0.45), a tie that falls left, and (0.55, 0.2).
    assert found.heads[Heads(0)].error_rate == pytest.approx(0.5)
    assert found.diagonal.error_rate == 0  # x, y, z to a, b, b
    assert found.best_head() == Heads(0, 0) and found.best_layer() == Heads(0)
    assert list(chosen_on(found, found)) == [
        "best head (layer 1, head 1)",
        "best layer (layer 1, mean)",
        "mean of all",
        "diagonal",
    ]
    every = measure([_example()], every_word=True)
    assert every.heads[Heads(0, 0)].links == 3
    assert every.heads[Heads(0, 0)].recall == 1
    assert every.diagonal.error_rate == pytest.approx(1 - (2 + 3) / (3 + 2)) == 0


def test_measure_refuses_links_to_no_word_and_nothing() -> None:
    example = _example()
    outside = Example(
        example.weights, example.source, example.target, parse_links("2-0")
    )
    with pytest.raises(ValueError, match="link 2-0 is to no word: there are 2 source"):
        measure([outside])
    with pytest.raises(ValueError, match="at least one sentence pair"):
        measure([])


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=100)
def test_measure_agrees_with_scoring_each_map_alone(seed: int, every: bool) -> None:
    random = np.random.default_rng(seed)
    examples = []
    for _ in range(3):
        sizes = random.integers(1, 6, 2)
        source = [Word("s", ((i, 1.0),)) for i in range(sizes[0])]
        target = [Word("t", ((i, 1.0),)) for i in range(sizes[1])]
        weights = random.random((2, 3, sizes[1] + 1, sizes[0] + 1))
        cells = random.integers(0, 4, sizes)  # 0 sure, 1 possible
        sure, possible = ({(int(s), int(t)) for s, t in np.argwhere(cells == n)}
                          for n in (0, 1))  # fmt: skip
        gold = Gold(frozenset(sure), frozenset(possible))
        examples.append(Example(weights, source, target, gold))
    found = measure(examples, every_word=every)
    for heads, scores in found.heads.items():
        pairs = []
        for example in examples:
            words = word_matrix(
                heads.of(example.weights), example.target, example.source
            )
            asked = {target for _, target in example.gold.sure}
            chosen = {link for link in links(words) if every or link[1] in asked}
            pairs.append((chosen, example.gold))
        alone = score(pairs)
        assert (alone.links, alone.sentences) == (scores.links, scores.sentences)
        for name in ("error_rate", "precision", "recall", "sure_recall"):
            assert getattr(alone, name) == pytest.approx(getattr(scores, name))


# ----------------------------------------------------------------------- with a trace


def _model() -> Transformer:
    torch.manual_seed(1)
    return Transformer(ModelConfig(9, 9, 8, 2, 1, 2, 16)).eval()


def _trace(source_ids: tuple[int, ...], target_ids: tuple[int, ...]) -> AttentionTrace:
    model = _model()
    names = {START: "<s>", END: "</s>", 4: "a", 5: "▁b", 6: "私は", 7: "機械"}
    tokens = tuple(names[i] for i in source_ids)
    reads, predicts = (START, *target_ids), (*target_ids, END)
    target = Target(
        text="",
        tokens_in=tuple(names[i] for i in reads),
        tokens_out=tuple(names[i] for i in predicts),
        ids_in=reads,
        ids_out=predicts,
        log_probs=(),
    )
    note = ModelNote("test", "", {})
    return trace_attention(model, note, Source("", tokens, source_ids), target)


def test_a_traces_alignment_reads_the_rows_that_predict() -> None:
    trace = _trace((4, 5, END), (6, 7))
    source = source_words(trace.source.tokens)
    target = target_words(trace.target.tokens_out, {"私は", "機械"})
    assert texts(source) == ["a", "b"] and texts(target) == ["私は", "機械"]
    assert cross_weights(trace).shape == (2, 2, 3, 3)
    weights = trace.map("cross", 1).weights[0]
    # 私は is predicted by row 0, which reads <s>; the end mark is column 2.
    expected = {(int(weights[row, :2].argmax()), row) for row in (0, 1)}
    assert align(trace, source, target, Heads(1, 0)) == expected
    mean = np.mean([trace.map("cross", i).weights for i in (0, 1)], axis=(0, 1))
    expected = {(int(mean[row, :2].argmax()), row) for row in (0, 1)}
    assert align(trace, source, target) == expected


def test_one_word_and_no_word_at_all() -> None:
    for source_ids, target_ids, expected in [
        ((4, END), (6,), "0-0"),
        ((4, END), (), ""),
        ((END,), (6,), ""),
    ]:
        trace = _trace(source_ids, target_ids)
        source = source_words(trace.source.tokens)
        target = target_words(trace.target.tokens_out, {"私は"})
        assert pharaoh(align(trace, source, target)) == expected


def test_forced_weights_are_those_of_each_pairs_own_trace() -> None:
    random = np.random.default_rng(0)
    pairs = []
    for _ in range(70):
        sizes = random.integers(1, 9, 2)
        source, target = (tuple(map(int, random.integers(4, 8, n))) for n in sizes)
        pairs.append(((*source, END), target))
    model = _model().train()
    found = forced_weights(model, [(s, (START, *t)) for s, t in pairs])
    assert model.training
    for (source, target), weights in zip(pairs[::9], found[::9], strict=True):
        alone = cross_weights(_trace(source, target))
        assert weights.shape == alone.shape
        np.testing.assert_allclose(weights, alone, atol=1e-6)
