"""What is prepared once: served again when nothing changed, and never stale."""

import os
import shutil
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import datasets
import numpy as np
import pytest
from conftest import pairs as tiny_pairs
from conftest import write_tsv
from datasets import Dataset
from numpy.typing import NDArray

import data.starter
from data import cache, preparation
from data.cache import fingerprint, kept
from data.corpus import Pair, pairs_of
from data.preparation import Material, corpus_hashes, prepare
from data.starter.compose import compose
from data.starter.lexicon import HERE
from data.text import TextError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for each test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "tiny-enja"


def _prepare(path: Path, **more: object) -> tuple[Material, list[str]]:
    said: list[str] = []
    options = {"vocabulary": 400, "max_length": 32, "reverse": False, "seed": 1} | more
    return prepare([str(path)], None, None, say=said.append, **options), said


def _same(one: Material, other: Material) -> bool:
    """Return whether two materials are the same, tokenizers and all."""
    ids = [
        [[side[row] for row in range(len(side))] for side in (e.source, e.target)]
        for m in (one, other)
        for e in (m.train, m.dev_encoded)
    ]
    texts = [(pairs_of(m.pairs), m.dev, m.test, m.source_words) for m in (one, other)]
    models = [(m.source.model, m.target.model) for m in (one, other)]
    return ids[:2] == ids[2:] and texts[0] == texts[1] and models[0] == models[1]


def _forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be cleaned, tokenized or trained."""
    for name in ("_map", "write_dataset", "train_tokenizer"):
        monkeypatch.setattr(preparation, name, None)


def test_a_second_start_does_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*tiny_pairs(), ("", "空"), ("Too long. " * 20, "長すぎます。" * 20)]
    path = write_tsv(tmp_path / "a.tsv", rows)
    first, said = _prepare(path)
    assert said[0].startswith("66 pairs read, 65 kept") and len(said) >= 3
    assert any("left out" in line for line in said)
    _forbid(monkeypatch)
    second, again = _prepare(path)
    assert _same(first, second) and again == said
    # As a resumed training does, which has its tokenizers.
    third, again = _prepare(path, tokenizers=(first.source, first.target))
    assert _same(first, third)


@pytest.mark.parametrize(
    "more", [{"seed": 2}, {"vocabulary": 380}, {"max_length": 8}, {"reverse": True}]
)
def test_another_training_gets_material_of_its_own(
    more: dict[str, object], tmp_path: Path
) -> None:
    path = write_tsv(tmp_path / "a.tsv", tiny_pairs())
    first, _ = _prepare(path)
    other, _ = _prepare(path, **more)
    assert not _same(first, other)
    assert _same(first, _prepare(path)[0])
    assert _same(other, _prepare(path, **more)[0])


def test_a_changed_file_is_never_served_stale(tmp_path: Path) -> None:
    rows = tiny_pairs()
    path = write_tsv(tmp_path / "a.tsv", rows)
    first, _ = _prepare(path)
    before = path.stat()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"bread", b"bears"))  # as long, as old
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    changed, _ = _prepare(path)
    assert any("bears" in row["source"] for row in changed.pairs)
    path.write_bytes(content)
    assert _same(first, _prepare(path)[0])


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    path = write_tsv(tmp_path / "a.tsv", tiny_pairs())
    original = preparation.write_dataset

    def write_and_change(pairs: Sequence[Pair], to: Path) -> Dataset:
        found = original(pairs, to)
        path.write_bytes(path.read_bytes() + "One more.\tもう一つ。\n".encode())
        return found

    monkeypatch.setattr(preparation, "write_dataset", write_and_change)
    with pytest.raises(TextError, match="was changed while it was read: start again"):
        _prepare(path)
    assert not list(own_cache.iterdir())


def test_what_fails_leaves_nothing(tmp_path: Path, own_cache: Path) -> None:
    path = write_tsv(tmp_path / "a.tsv", [("", "x")])
    with pytest.raises(TextError, match="fit for training: 1 pairs read, 0 kept"):
        _prepare(path)
    assert not list(own_cache.iterdir())


def test_processes_share_the_work_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = write_tsv(tmp_path / "a.tsv", [*tiny_pairs(), *tiny_pairs()[:9]])
    alone, said = _prepare(path)
    shutil.rmtree(own_cache)
    assert capfd.readouterr() == ("", "")  # a package shows nothing by itself
    monkeypatch.setattr(preparation, "LARGE", 20)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(os, "environ", os.environ)  # `datasets` leaves a copy there
    together, again = _prepare(path, bars=True)
    assert _same(alone, together) and said == again
    bars = capfd.readouterr().err
    for name in ("Cleaning (num_proc=3)", "Tokenizing (num_proc=3)"):
        assert name in bars
    assert not datasets.are_progress_bars_disabled()


def test_training_reads_what_is_mapped(tmp_path: Path) -> None:
    material, _ = _prepare(write_tsv(tmp_path / "a.tsv", tiny_pairs()))

    def is_mapped(array: NDArray[np.int32]) -> bool:
        return isinstance(array, np.memmap) or (
            array.base is not None and is_mapped(array.base)
        )

    assert is_mapped(material.train.source.flat)
    assert is_mapped(material.train.target.flat)
    assert material.pairs.cache_files


def test_tokenizers_of_a_large_corpus_see_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    path = write_tsv(tmp_path / "a.tsv", tiny_pairs())
    whole, _ = _prepare(path)
    shutil.rmtree(own_cache)
    monkeypatch.setattr(preparation, "TOKENIZER_PAIRS", 30)
    sampled, _ = _prepare(path)
    shutil.rmtree(own_cache)
    assert sampled.source.model != whole.source.model
    assert _prepare(path)[0].source.model == sampled.source.model
    assert pairs_of(sampled.pairs) != []


def test_the_starter_corpus_may_lie_under_a_name_with_commas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(HERE.glob("*.tsv"))
    folder = tmp_path / "a,b,c:en,ja"
    folder.mkdir()
    for path in files:
        shutil.copy(path, folder)
    monkeypatch.setattr(data.starter, "__file__", str(folder / "__init__.py"))
    assert corpus_hashes(["starter"]) == {
        f"starter:{path.name}": sha256(path.read_bytes()).hexdigest() for path in files
    }


def test_a_pair_or_none_may_be_added_to_the_starter_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starter = compose(1, 100)
    monkeypatch.setattr(preparation, "compose", lambda seed: starter)
    said: list[str] = []

    def pairs_with(name: str, rows: list[Pair]) -> set[Pair]:
        """Return the training pairs of the starter corpus and a file of these rows."""
        corpora = ["starter", str(write_tsv(tmp_path / name, rows))]
        material = prepare(corpora, None, None, False, 4_000, 99, 1, say=said.append)
        assert material.dev == tuple((pair.source, pair.target) for pair in starter.dev)
        return set(pairs_of(material.pairs))

    ours = starter.train[0]
    new = [("Zyx!", "駄駄！"), ("zyx", "駄々。"), ("Zyx.", "駄駄。")]
    without = pairs_with("none.tsv", [(ours.source, ours.target)])
    assert pairs_with("one.tsv", new[:1]) == without | set(new[:1])
    assert pairs_with("one_group.tsv", new) == without | set(new)
    assert not any("held out" in line for line in said)


# ------------------------------------------------------------------------ the cache


def test_the_fingerprint_is_of_parts_and_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [(), ("a",), ("a", "b"), (("a", "b"),), ("ab",), (1,), ("1",), (b"a",)]
    assert len({fingerprint(*some) for some in parts}) == len(parts)
    before = fingerprint("a")
    copy = tmp_path / "data"
    shutil.copytree(Path(cache.__file__).parent, copy)
    monkeypatch.setattr(cache, "__file__", str(copy / "cache.py"))
    try:
        cache._code.cache_clear()
        assert fingerprint("a") == before
        rules = (copy / "cleaning.py").read_text("utf-8")
        changed = rules.replace("MAX_CHARACTERS = 600", "MAX_CHARACTERS = 601")
        assert changed != rules
        (copy / "cleaning.py").write_text(changed, "utf-8")
        cache._code.cache_clear()
        assert fingerprint("a") != before
    finally:
        cache._code.cache_clear()


def test_two_that_make_the_same_get_the_same(own_cache: Path) -> None:
    def make(folder: Path, scratch: Path) -> None:
        (folder / "a.txt").write_text("mine")
        # Another process is faster.
        (own_cache / "name").mkdir()
        (own_cache / "name" / "a.txt").write_text("theirs")

    folder = kept("name", make)
    assert (folder / "a.txt").read_text() == "theirs"
    assert [path.name for path in own_cache.iterdir()] == ["name"]


def test_an_interrupted_one_leaves_nothing(own_cache: Path) -> None:
    def make(folder: Path, scratch: Path) -> None:
        (folder / "half.txt").write_text("half")
        (scratch / "other.txt").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept("name", make)
    assert not list(own_cache.iterdir())
