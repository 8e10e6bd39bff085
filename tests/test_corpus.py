"""Corpora: reading, cleaning and splitting."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import pairs as tiny_pairs
from conftest import write_tsv
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from properties import texts

from data.cleaning import (
    EXAMINED,
    KEYS,
    MAX_CHARACTERS,
    Cleaning,
    clean,
    examine,
    hold_out,
)
from data.corpus import Pair, make_dataset, pairs_of, read_corpus, write_dataset
from data.preparation import prepare
from data.text import TextError, comparison_key

INSIDE_A_LINE = ["\u2028", "\u2029", "\u0085", "\x0c", "\u3000", "\x0b", "\x1c", "\r"]


def _read(content: bytes, *others: bytes, reverse: bool = False) -> list[Pair]:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{n}.txt") for n in range(1 + len(others))]
        for path, bytes_ in zip(paths, (content, *others), strict=True):
            path.write_bytes(bytes_)
        return pairs_of(read_corpus(",".join(map(str, paths)), reverse))


@pytest.mark.parametrize("character", INSIDE_A_LINE)
def test_pairs_stay_aligned(character: str) -> None:
    rows = [("a", "ア"), (f"b{character}b", f"イ{character}イ"), ("c", "ウ")]
    content = "".join(f"{a}\t{b}\n" for a, b in rows)
    assert _read(content.encode()) == rows
    sources, targets = ("".join(r[side] + "\n" for r in rows) for side in (0, 1))
    assert _read(sources.encode(), targets.encode()) == rows


def test_words_that_other_readers_take_for_missing_values() -> None:
    words = ["None", "NA", "null", "nan", "", "N/A", "NULL", "-", "1", "1.0", "true"]
    rows = [(word, word) for word in words]
    content = "".join(f"{a}\t{b}\n" for a, b in rows)
    assert _read(content.encode()) == rows


def test_quotes_are_characters() -> None:
    rows = [('"', '「"'), ('"a', "b"), ("c", '"d'), ("e'", 'f"g"'), ("h", "i")]
    content = "".join(f"{a}\t{b}\n" for a, b in rows)
    assert _read(content.encode()) == rows


def test_the_dataset_declares_strings(tmp_path: Path) -> None:
    dataset = read_corpus(str(write_tsv(tmp_path / "a.tsv", [("1", "2"), ("", "x")])))
    assert dataset.column_names == ["source", "target"]
    assert {feature.dtype for feature in dataset.features.values()} == {"string"}
    assert dataset[0] == {"source": "1", "target": "2"}


def test_the_fingerprint_is_the_content(tmp_path: Path) -> None:
    path, other = tmp_path / "a.tsv", tmp_path / "b.tsv"
    first = read_corpus(str(write_tsv(path, [("a", "b"), ("c", "d")])))._fingerprint
    same = read_corpus(str(write_tsv(other, [("a", "b"), ("c", "d")])))._fingerprint
    assert first == same
    again = read_corpus(str(write_tsv(path, [("a", "b"), ("c", "e")])))
    assert again._fingerprint != first
    assert pairs_of(again) == [("a", "b"), ("c", "e")]  # nothing stale
    kinds = [[("a", "bc")], [("ab", "c")], [("", "abc")], [("a", "b"), ("", "c")]]
    prints = {make_dataset(kind)._fingerprint for kind in kinds}
    assert len(prints) == len(kinds)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.tsv": ""}, "a.tsv holds no sentence pair: give another corpus"),
        ({"a.tsv": "a\tb\nno tab here\n"}, "a.tsv, line 2: no tab"),
        ({"a.tsv": "a\tb\n\n"}, "a.tsv, line 2: no tab"),
        (
            {"a.en": "1\n2\n3\n", "a.ja": "1\n2\n"},
            r"a.en has 3 lines and \S*a.ja has 2",
        ),
        ({"a.en": "", "a.ja": ""}, "holds no sentence pair"),
        ({"a": "1\n", "b": "1\n", "c": "1\n"}, "give one file, or two text files"),
    ],
)
def test_broken_corpora_are_refused(
    files: dict[str, str], message: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(TextError, match=message):
        read_corpus(",".join(str(tmp_path / name) for name in files))


@given(st.lists(st.tuples(texts(), texts())))
def test_what_is_written_is_read_from_the_disk(pairs: list[Pair]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written = write_dataset(iter(pairs), Path(folder, "a.arrow"))
        assert pairs_of(written) == pairs
        assert written.features == make_dataset(pairs).features


# ------------------------------------------------------------------------- cleaning


def _clean(
    pairs: Sequence[Pair], held_out: Sequence[Pair] = ()
) -> tuple[list[Pair], Cleaning]:
    """Return the pairs that cleaning keeps, and its report."""
    batch = {"source": [a for a, _ in pairs], "target": [b for _, b in pairs]}
    examined = Dataset.from_dict(examine(batch), features=EXAMINED)
    rows, report = clean(examined, held_out)
    return pairs_of(examined.select(rows)), report


def _hold_out(
    pairs: Sequence[Pair], count: int, seed: int
) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs of both sides of a split."""
    batch = {"source": [a for a, _ in pairs], "target": [b for _, b in pairs]}
    keys = [np.array(examine(batch)[key], dtype=np.int64) for key in KEYS]
    held = hold_out(*keys, count, seed)
    return (
        [pair for pair, is_held in zip(pairs, held, strict=True) if not is_held],
        [pair for pair, is_held in zip(pairs, held, strict=True) if is_held],
    )


def test_cleaning_counts_what_it_removes() -> None:
    read = [
        (" Good night. ", "おやすみ。\u3000"),  # kept, without its space
        ("Good night.", "おやすみ。"),  # said twice
        ("", "空"),  # empty
        ("nothing", " \u3000"),  # empty
        ("x" * (MAX_CHARACTERS + 1), "x" * MAX_CHARACTERS),  # long
        ("Hi!", "長" * 39),  # unlike: over 6 * 3 + 20
        ("Hi!", "長" * 38),  # kept, just
        ("good morning", "おはようございます。"),  # shares a source with dev
        ("Hello there.", "やあ！"),  # shares a target with test
        ("Hi! ", "短い"),  # kept
    ]
    held_out = [("GOOD MORNING", "x"), ("y", "やあ")]
    kept, report = _clean(read, held_out)
    night = ("Good night.", "おやすみ。")
    assert kept == [night, ("Hi!", "長" * 38), ("Hi!", "短い")]
    assert (report.read, report.kept) == (10, 3)
    assert (report.empty, report.long, report.ratio) == (2, 1, 1)
    assert (report.duplicate, report.shared) == (1, 2)
    said = str(report)
    assert "10 pairs read, 3 kept" in said
    for part in ("2 with an empty side", "1 said twice", "2 that share a side"):
        assert part in said


def test_cleaning_keeps_order_and_without_faults_all() -> None:
    kept, report = _clean(tiny_pairs())
    assert kept == tiny_pairs()
    assert str(report) == "64 pairs read, 64 kept; removed: none"


@pytest.mark.parametrize(
    "dev",
    [
        ("what is it", "x"),
        ("ＷＨＡＴ ＩＳ ＩＴ？！", "x"),
        ("x", "それは何です?"),
        ("x", "それは、何です。"),
    ],
)
def test_a_pair_that_stands_in_dev_leaves_training(dev: Pair) -> None:
    kept, report = _clean(
        [("What is it?", "それは何です？"), ("Yes.", "はい。")], [dev]
    )
    assert kept == [("Yes.", "はい。")]
    assert report.shared == 1


def test_a_side_is_compared_with_its_own_side_alone() -> None:
    kept, _ = _clean([("OK", "はい"), ("no", "OK")], [("x", "ok"), ("はい", "y")])
    assert kept == [("OK", "はい")]


PAIRS = st.lists(
    st.tuples(st.sampled_from("abcdefghij"), st.sampled_from("0123456789"))
)


@given(
    PAIRS.filter(lambda pairs: len(pairs) > 1), st.integers(0, 12), st.integers(0, 9)
)
def test_no_sentence_stands_on_both_sides_of_a_split(
    pairs: list[Pair], count: int, seed: int
) -> None:
    try:
        train, dev = _hold_out(pairs, count, seed)
    except TextError:
        assert _groups(pairs) == 1
        return
    assert _groups(pairs) > 1
    assert train and dev
    assert sorted(train + dev) == sorted(pairs)
    for side in (0, 1):
        assert not {p[side] for p in train} & {p[side] for p in dev}
    assert (train, dev) == _hold_out(pairs, count, seed)


def _groups(pairs: Sequence[Pair]) -> int:
    """Count connected groups by merging sets until none touch."""
    groups: list[set[tuple[int, str]]] = []
    for a, b in pairs:
        mine = {(0, comparison_key(a)), (1, comparison_key(b))}
        touching = [group for group in groups if group & mine]
        groups = [group for group in groups if not group & mine]
        groups.append(mine.union(*touching))
    return len(groups)


def test_pairs_are_held_out_by_connected_groups() -> None:
    """a-1, 1-b', b-2 hang together through B/b; so do the last two through 9."""
    pairs = [("a", "1"), ("B!", "1"), ("b", "2"), ("c", "3"), ("d", "9"), ("e", "9。")]
    for seed in range(20):
        train, dev = _hold_out(pairs, 2, seed)
        assert len(dev) in (1, 2)
        assert set(pairs[:3]) <= set(train)
        assert (pairs[4] in dev) == (pairs[5] in dev)
    seen = {tuple(_hold_out(pairs, 1, seed)[1]) for seed in range(20)}
    assert seen == {(("c", "3"),)}  # the only group of one


def test_groups_that_are_all_larger_than_asked_are_still_split() -> None:
    pairs = [("a", "1"), ("A.", "2"), ("b", "3"), ("B.", "4"), ("c", "5"), ("C", "6"),
             ("c!", "7")]  # fmt: skip
    train, dev = _hold_out(pairs, 1, seed=1)
    assert len(dev) == 2 and len(train) == 5


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(TextError, match="cannot be split: name sentences.*--dev"):
        _hold_out([("a", "1"), ("a", "2"), ("b", "2")], 1, seed=1)


# ---------------------------------------------------------------------- preparation


def _prepare(
    tmp_path: Path, rows: Sequence[Pair], dev: Sequence[Pair] = (), **more: object
) -> tuple[object, list[str]]:
    said: list[str] = []
    corpus = write_tsv(tmp_path / "train.tsv", rows)
    dev_file = str(write_tsv(tmp_path / "dev.tsv", dev)) if dev else None
    options = {"vocabulary": 4_000, "max_length": 32, "reverse": False} | more
    material = prepare(
        [str(corpus)], dev_file, None, seed=1, say=said.append, **options
    )
    return material, said


def test_three_pairs_get_the_largest_vocabulary_they_fill(tmp_path: Path) -> None:
    rows = [("I sing.", "歌う。"), ("You run.", "走る。"), ("We eat.", "食べる。")]
    material, said = _prepare(tmp_path, rows)
    assert len(material.pairs) == 2 and len(material.dev) == 1
    for tokenizer in (material.source, material.target):
        size = len(tokenizer)
        assert 260 < size < 400
        assert any(
            line == f"{tokenizer.side} vocabulary: {size} tokens, all that the corpus "
            "fills of 4,000"
            for line in said
        )
    # As large as it gets: each training sentence is very few pieces.
    assert len(material.source.encode(material.pairs[0]["source"])) <= 3


def test_tokenizers_see_the_training_text_only(tmp_path: Path) -> None:
    dev = [("Zyxw zyxw zyxw", "駄駄駄"), *tiny_pairs()[:4]]
    with_dev, said = _prepare(tmp_path, tiny_pairs(), dev)
    without, _ = _prepare(tmp_path, tiny_pairs()[4:], [("q", "ぬ")])
    assert with_dev.source.model == without.source.model
    assert with_dev.target.model == without.target.model
    assert said[0] == (
        "64 pairs read, 60 kept; removed: 4 that share a side with dev or test"
    )
    assert pairs_of(with_dev.pairs) == pairs_of(without.pairs) == tiny_pairs()[4:]


def test_the_other_direction_swaps_everything(tmp_path: Path) -> None:
    there, _ = _prepare(tmp_path, tiny_pairs(), tiny_pairs()[:4])
    back, _ = _prepare(tmp_path, tiny_pairs(), tiny_pairs()[:4], reverse=True)
    assert pairs_of(back.pairs) == [(b, a) for a, b in pairs_of(there.pairs)]
    assert back.dev == tuple((b, a) for a, b in there.dev)


def test_ids_are_those_of_the_text_between_its_marks(tmp_path: Path) -> None:
    material, _ = _prepare(tmp_path, tiny_pairs())
    assert len(material.train) == len(material.pairs) == 63
    for row, (source, target) in enumerate(pairs_of(material.pairs)):
        assert material.train.source[row] == [*material.source.encode(source), 2]
        assert material.train.target[row] == [1, *material.target.encode(target), 2]


def test_pairs_that_the_model_cannot_read_are_counted(tmp_path: Path) -> None:
    long = ("zyx wvu qpo nml kji hgf edc ba " * 3, "言葉" * 40)
    material, said = _prepare(tmp_path, [long, *tiny_pairs()], vocabulary=330)
    dropped = 64 - len(material.dev) + 1 - len(material.pairs)
    assert dropped >= 1
    assert f"{dropped} pairs of 32 tokens or more left out" in said
    lengths = [*material.train.source.lengths, *(material.train.target.lengths - 1)]
    assert max(lengths) <= 32


def test_nothing_left_to_train_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="no pair of .* is fit for training"):
        _prepare(tmp_path, [("", "x"), ("y", "")])
    with pytest.raises(TextError, match="raise --max-length"):
        _prepare(tmp_path, tiny_pairs(), max_length=1)


@pytest.mark.parametrize("change", ["crlf", "bom", "both"])
def test_line_ends_and_marks_change_no_tokenizer(tmp_path: Path, change: str) -> None:
    plain, _ = _prepare(tmp_path, tiny_pairs())
    content = (tmp_path / "train.tsv").read_bytes()
    if change != "bom":
        content = content.replace(b"\n", b"\r\n")
    if change != "crlf":
        content = b"\xef\xbb\xbf" + content
    (tmp_path / "other.tsv").write_bytes(content)
    other = prepare([str(tmp_path / "other.tsv")], None, None, reverse=False,
                    vocabulary=4_000, max_length=32, seed=1, say=len)  # fmt: skip
    assert other.source.model == plain.source.model
    assert other.target.model == plain.target.model
    assert pairs_of(other.pairs) == pairs_of(plain.pairs)


def test_several_corpora_are_mixed(tmp_path: Path) -> None:
    rows = tiny_pairs()
    one = write_tsv(tmp_path / "one.tsv", rows[:40])
    for side, name in ((0, "two.en"), (1, "two.ja")):
        text = "".join(pair[side] + "\n" for pair in rows[30:])
        (tmp_path / name).write_text(text, "utf-8")
    said: list[str] = []
    material = prepare(
        [str(one), f"{tmp_path}/two.en,{tmp_path}/two.ja"], None, None, reverse=False,
        vocabulary=400, max_length=32, seed=1, say=said.append,
    )  # fmt: skip
    assert said[0] == "74 pairs read, 64 kept; removed: 10 said twice"
    assert set(pairs_of(material.pairs)) | set(material.dev) == set(rows)
