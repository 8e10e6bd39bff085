"""Tables and folders as corpora: their columns, their rows, and the Hub offline."""

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from conftest import pairs as tiny_pairs
from conftest import write_tsv
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from data.corpus import Pair, corpus_hashes, read_pairs, split_columns
from data.preparation import prepare
from data.text import TextError

ODD = [
    ("None", "NA"), ("null", "nan"), ("1", "1.0"), ("a\u2028b", "ア\u0085イ"),
    ("a\rb", "ア\x0cイ"), ('say "hi", he said', "「はい」, と"), ("", "空"),
    ("tab\there", "タ\tブ"), (" x ", "\u3000"), ("\ufeff", "true"),
]  # fmt: skip
"""Pairs that other readers change."""


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _write_csv(path: Path, rows: Sequence[Sequence[str]], end: str = "\n") -> str:
    lines = (",".join(map(_quoted, row)) + end for row in rows)
    path.write_bytes("".join(lines).encode())
    return str(path)


def _write_jsonl(path: Path, rows: Sequence[Any], ascii_only: bool = False) -> str:
    lines = (json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows)
    path.write_bytes("".join(lines).encode())
    return str(path)


def _nested(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Return rows as opus-100 has them."""
    return [{"translation": {"en": a, "ja": b}} for a, b in pairs]


def _write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return str(path)


@pytest.mark.parametrize("ascii_only", [True, False])
def test_json_lines(tmp_path: Path, ascii_only: bool) -> None:
    rows = [{"id": n, "en": a, "ja": b} for n, (a, b) in enumerate(ODD)]
    name = _write_jsonl(tmp_path / "a.jsonl", rows, ascii_only)
    assert list(read_pairs(name)) == ODD
    assert list(read_pairs(name, reverse=True)) == [(b, a) for a, b in ODD]
    name = _write_jsonl(tmp_path / "b.jsonl", _nested(ODD))
    for columns in ("", ":en,ja", ":translation.en,translation.ja"):
        assert list(read_pairs(name + columns)) == ODD


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_comma_separated_values(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.csv"
    rows = [("en", "n", "ja"), *((a, "7", b) for a, b in ODD)]
    assert list(read_pairs(_write_csv(path, rows, end))) == ODD
    path.write_bytes(f"\ufeffja,en{end}犬,a dog{end}a\rb,c\rd{end}".encode())
    assert list(read_pairs(str(path))) == [("a dog", "犬"), ("c\rd", "a\rb")]
    path.write_bytes(b'en,ja\n"a\nb",c\nNA,None\n')  # a line end inside quotes is text
    assert list(read_pairs(str(path))) == [("a\nb", "c"), ("NA", "None")]


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1))
def test_any_pairs_come_back_from_tables(pairs: list[Pair]) -> None:
    rows = [{"en": a, "ja": b} for a, b in pairs]
    # A line end is one character inside quotes, however it is written.
    plain = [(a.replace("\r\n", "\n"), b.replace("\r\n", "\n")) for a, b in pairs]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        assert list(read_pairs(_write_jsonl(path / "a.jsonl", rows))) == pairs
        assert list(read_pairs(_write_parquet(path / "a.parquet", rows))) == pairs
        name = _write_csv(path / "a.csv", [("en", "ja"), *plain])
        assert list(read_pairs(name)) == plain


def test_parquet(tmp_path: Path) -> None:
    rows = [{"id": n, "english": a, "non_english": b} for n, (a, b) in enumerate(ODD)]
    name = _write_parquet(tmp_path / "a.parquet", rows)
    assert list(read_pairs(name, columns=("english", "non_english"))) == ODD
    assert list(read_pairs(f"{name}:english,non_english")) == ODD
    # The file is read, and not what the library remembers of it.
    _write_parquet(tmp_path / "a.parquet", rows[:3])
    assert list(read_pairs(f"{name}:english,non_english")) == ODD[:3]


@pytest.mark.parametrize("layout", ["opus-100", "sentence-transformers", "saved jsonl"])
def test_folders_of_the_layouts_of_the_hub(tmp_path: Path, layout: str) -> None:
    pairs, folder = tiny_pairs(), tmp_path / "set" / "en-ja"
    if layout == "opus-100":
        _write_parquet(folder / "train-00000-of-00002.parquet", _nested(pairs[:40]))
        _write_parquet(folder / "train-00001-of-00002.parquet", _nested(pairs[40:]))
        _write_parquet(folder / "test-00000-of-00001.parquet", _nested(pairs[:2]))
        name = str(folder)
    elif layout == "sentence-transformers":
        rows = [{"english": a, "non_english": b} for a, b in pairs]
        _write_parquet(folder / "train-00000-of-00001.parquet", rows)
        name = f"{folder}:english,non_english"
    else:
        folder.mkdir(parents=True)
        _write_jsonl(folder / "train.jsonl", _nested(pairs))
        name = str(folder)
    (folder.parent / "README.md").write_text("---\nlicense: mit\n---\n", "utf-8")
    (folder / ".hidden").write_text("", "utf-8")
    assert list(read_pairs(name)) == pairs
    files = sorted(path for path in folder.iterdir() if path.name != ".hidden")
    assert list(corpus_hashes(name)) == [str(path) for path in files]


def test_a_folder_that_declares_its_files(tmp_path: Path) -> None:
    """As a clone of a set does whose files have names of their own."""
    pairs = tiny_pairs()
    _write_parquet(tmp_path / "odd" / "x.parquet", _nested(pairs))
    _write_parquet(tmp_path / "odd" / "y.parquet", _nested(pairs[:1]))
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n"
        "    path: odd/x.parquet\n---\n",
        "utf-8",
    )
    assert list(read_pairs(str(tmp_path))) == pairs


def test_columns_belong_to_the_name_of_a_table_alone(tmp_path: Path) -> None:
    both = ("english", "other")
    for name in ("a.jsonl", "b/a.csv", "a.parquet", "hub:a/b", "hub:a/b/c", "x:y.csv"):
        assert split_columns(f"{name}:english,other") == (name, both)
        assert split_columns(name, both) == (name, both)
    assert split_columns(f"{tmp_path}:english,other") == (str(tmp_path), both)
    for name in ("a:b.en,a:b.ja", "a.en,a.ja", "a.tsv", "starter"):
        assert split_columns(name) == (name, ("en", "ja"))
    rows = [("a", "ア"), ("b", "イ")]
    for side, name in ((0, "x:1.en"), (1, "x:1.ja")):
        (tmp_path / name).write_text("".join(r[side] + "\n" for r in rows), "utf-8")
    assert list(read_pairs(f"{tmp_path}/x:1.en,{tmp_path}/x:1.ja")) == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"x": "1", "y": {"en": "2", "z": 3}}\n',
         "a.jsonl has no column 'en'; it has x, y.en, y.z: name two as /"),
        ("a.jsonl", "", "a.jsonl holds no sentence pair"),
        ("a.jsonl", '{"en": "1", "ja": "2"}\n[1]\n', "a.jsonl, line 2: no JSON object"),
        ("a.jsonl", '{"en": "1", "ja": "2"}\n\n', "a.jsonl, line 2: no JSON object"),
        ("a.jsonl", "[" * 100_000, "a.jsonl, line 1: no JSON object"),
        ("a.jsonl", '{"en": "1", "ja": "2"}\n{"en": "1"}\n',
         "a.jsonl, line 2: ja is missing; give every row both sentences"),
        ("a.jsonl", '{"en": "1", "ja": null}\n', "a.jsonl, line 1: ja is missing"),
        ("a.jsonl", '{"en": 1, "ja": "2"}\n', "a.jsonl, line 1: en is no text"),
        ("a.jsonl", '{"en": "\\ud800", "ja": "2"}\n', "line 1: en is not Unicode"),
        ("a.csv", "", "a.csv holds no sentence pair"),
        ("a.csv", "en,ja\n", "a.csv holds no sentence pair"),
        ("a.csv", "english,japanese\na,b\n",
         "a.csv has no column 'en'; it has english, japanese"),
        ("a.csv", "en,ja\na,b\nc\n", "a.csv, line 3: 1 values under 2 columns"),
        ("a.csv", "en,ja\na,b\n\n", "a.csv, line 3: the line is blank; delete it"),
        ("a.csv", "en,ja\n \t\na,b\n", "a.csv, line 2: the line is blank"),
        ("a.csv", "en,ja\nYes, I do.,はい\n", "line 2: 3 values under 2 columns; put"),
        ("a.csv", 'en,ja\na,"b\nc,d\n', "a.csv, line 3: unexpected end of data"),
        ("a.csv", 'en,ja\n"a"b,c\n', "a.csv, line 2: "),
        ("a.csv", b"en,ja\n\xff,b\n", "a.csv, line 2, byte 1: not UTF-8"),
        ("a.parquet", "no such thing", "a.parquet: "),
    ],
)  # fmt: skip
def test_broken_tables_are_refused_in_a_line(
    name: str, content: str | bytes, message: str, tmp_path: Path
) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(TextError) as refused:
        list(read_pairs(str(tmp_path / name)))
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_rows_without_a_text_are_refused_by_number(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = _nested(tiny_pairs())
    rows[41] = {"translation": {"en": "Hi.", "ja": None}}
    name = _write_parquet(tmp_path / "a.parquet", rows)
    with pytest.raises(TextError, match=r"row 42: translation.ja is missing"):
        list(read_pairs(name))
    rows[41] = {"translation": None}
    name = _write_parquet(tmp_path / "b.parquet", rows)
    with pytest.raises(TextError, match=r"row 42: translation.en is missing"):
        list(read_pairs(name))
    name = _write_parquet(tmp_path / "c.parquet", [{"en": 1, "ja": "x"}])
    with pytest.raises(TextError, match=r"row 1: en is no text"):
        list(read_pairs(name))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (None, "", "set: "),  # nothing in it
        ("train.csv", "en,ja\na,b\n", "set holds text files: give one of them by its"),
        ("train.txt", "a\n", "set holds text files"),
    ],
)
def test_folders_that_are_no_corpus(
    file: str | None, content: str, message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    if file:
        (folder / file).write_text(content, "utf-8")
    with pytest.raises(TextError) as refused:
        list(read_pairs(str(folder)))
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_folder_with_a_script_of_its_name(tmp_path: Path) -> None:
    """The library read such scripts once, and now raises an error of another kind."""
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "old.py").write_text("", "utf-8")
    with pytest.raises(TextError, match="scripts are no longer supported"):
        list(read_pairs(str(folder)))


def test_a_set_without_a_train_split(tmp_path: Path) -> None:
    _write_parquet(tmp_path / "test-00000-of-00001.parquet", _nested(tiny_pairs()))
    with pytest.raises(TextError, match="train"):
        list(read_pairs(str(tmp_path)))


# -------------------------------------------------------------------------- the Hub


def test_the_hub_is_asked_once_and_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens there, and no library tries again."""
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for use in (corpus_hashes, lambda name: list(read_pairs(name))):
        with pytest.raises(TextError, match="does not answer; give a local file") as no:
            use("hub:owner/name/en-ja:english,non_english")
        assert "hub:owner/name/en-ja: http://127.0.0.1:9" in str(no.value)
    assert not slept


def test_offline_the_hub_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(TextError, match="hub:owner/name: ") as refused:
        corpus_hashes("hub:owner/name")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["hub:", "hub:name", "hub:/name", "hub:owner/"])
def test_names_that_the_hub_cannot_have(name: str) -> None:
    with pytest.raises(TextError, match="give hub:OWNER/NAME or hub:OWNER/NAME/CONFIG"):
        corpus_hashes(name)


def test_a_set_of_the_hub_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a set of the library's own class in place of a download."""
    found = Dataset.from_list(_nested(tiny_pairs()))
    monkeypatch.setattr("data.corpus._hub_set", lambda name: found)
    assert list(read_pairs("hub:owner/name/en-ja")) == tiny_pairs()
    assert corpus_hashes("hub:owner/name/en-ja:en,ja") == {
        "hub:owner/name/en-ja": found._fingerprint
    }


# ---------------------------------------------------------------------------- mixed


def test_corpora_of_all_kinds_are_mixed(tmp_path: Path) -> None:
    rows = tiny_pairs()
    tsv = str(write_tsv(tmp_path / "a.tsv", rows[:10]))
    jsonl = _write_jsonl(tmp_path / "b.jsonl", _nested(rows[10:20]))
    table = [{"english": a, "japanese": b} for a, b in rows[20:40]]
    own = _write_parquet(tmp_path / "c.parquet", table) + ":english,japanese"
    folder = tmp_path / "set"
    _write_parquet(folder / "train.parquet", _nested(rows[40:]))
    said: list[str] = []
    material = prepare(
        [tsv, jsonl, own, str(folder)], f"{own}", None, reverse=False, vocabulary=400,
        max_length=32, seed=1, say=said.append,
    )  # fmt: skip
    assert said[0] == (
        "64 pairs read, 44 kept; removed: 20 that share a side with dev or test"
    )
    assert [*zip(*material.pairs[:].values(), strict=True)] == rows[:20] + rows[40:]
    assert list(material.dev) == rows[20:40]
