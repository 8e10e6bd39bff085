"""The alignment benchmark, on a toy model and a toy gold standard."""

import sys
from pathlib import Path

import pytest
import torch

from benchmarks.alignment import (
    Aligned,
    _on_gold_words,
    as_written,
    grow_diag_final_and,
    main,
    read_gold,
)
from data.tokenizer import train_tokenizer
from explain.alignment import Gold
from model.checkpoint import save_config, save_weights
from model.config import ModelConfig
from model.transformer import Transformer

PAIRS = [("The cat sleeps.", "猫が寝る。"), ("A dog eats.", "犬が食べる。")] * 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory, a corpus and a gold standard of three lines."""
    made = tmp_path_factory.mktemp("alignment")
    run, gold = made / "run", made / "gold"
    run.mkdir()
    gold.mkdir()
    corpus = made / "corpus.tsv"
    corpus.write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), "utf-8")
    tokenizers = [
        train_tokenizer(list(texts), 320, side)
        for texts, side in zip(
            zip(*PAIRS, strict=True), ("source", "target"), strict=True
        )
    ]
    for name, tokenizer in zip(("source", "target"), tokenizers, strict=True):
        (run / f"{name}.spm").write_bytes(tokenizer.model)
    torch.manual_seed(0)
    config = ModelConfig(*map(len, tokenizers), 8, 2, 1, 2, 16, max_length=40)
    about = {"languages": ["en", "ja"], "argv": ["--corpus", str(corpus)]}
    save_config(run, config, about)
    save_weights(run, Transformer(config).state_dict())
    files = {
        "en": ["the cat sleeps .", "wrong", "a dog does not eat " + "very " * 20 + "."],
        "ja": ["猫 が 寝 る 。", "誤り", "犬 は " + "とても " * 20 + "食べ な い 。"],
        "gold": ["1-0 2-2 2-3 3-4", "9-9", "1-0"],
    }
    for name, lines in files.items():
        (gold / f"test.{name}").write_text("\n".join(lines) + "\n", "utf-8")
    return made


def test_gold_is_read_without_the_lines_to_skip(folder: Path) -> None:
    first, *others = read_gold(folder / "gold", skip=(2, 3))
    assert not others
    assert first.source == ["the", "cat", "sleeps", "."]
    assert first.target == ["猫", "が", "寝", "る", "。"]
    assert first.gold == Gold(frozenset({(1, 0), (2, 2), (2, 3), (3, 4)}))


def test_english_as_people_write_it() -> None:
    text = "he ( koun 's son ) did n't come , did he ?"
    words = text.split()
    written = as_written(Aligned(words, [], Gold(frozenset()), text))
    assert written.text == "He (koun's son) didn't come, did he?"
    assert written.source == ["He", *words[1:]]


def _arguments(folder: Path) -> list[str]:
    return [
        "--model",
        str(folder / "run"),
        "--gold",
        str(folder / "gold"),
        "--skip",
        "2",
    ]


@pytest.mark.parametrize("more", [[], ["--as-written"]])
def test_the_table_has_every_head_mean_and_the_diagonal(
    folder: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert main([*_arguments(folder), "--without-eflomal", *more]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert names == [
        *(f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2)),
        "layer 1, mean",
        "layer 2, mean",
        "mean of all",
        "diagonal",
    ]
    # The third line is longer than the model reads. The diagonal gives the first one's
    # five words 0, 1, 2, 2, 3: of its links 2-2, 2-3 and 3-4 are true.
    assert any(line.startswith("1 of the 2 pairs of ") for line in lines)
    diagonal = next(line for line in lines if "diagonal" in line)
    figures = [text.strip() for text in diagonal.split("│")[2:]]
    assert figures[:4] == ["33.3", "60.0", "75.0", "25.0"]


def test_eflomal_stands_beside_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("eflomal")
    pytest.importorskip("MeCab")
    assert main(_arguments(folder)) == 0
    printed = capsys.readouterr().out
    for name in ("forward", "reverse", "both"):
        assert f"eflomal, {name}" in printed


def test_without_eflomal_one_line_says_what_to_install(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "eflomal", None)
    assert main(_arguments(folder)) == 0
    assert "pip install -c constraints.txt '.[bench,ja]'" in capsys.readouterr().out


def test_eflomal_without_a_text_is_refused_before_anything_is_scored(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*_arguments(folder), "--corpus", "starter"]) == 2
    found = capsys.readouterr()
    assert "--without-eflomal" in found.err and found.out == ""


def test_links_move_to_the_gold_words_by_characters() -> None:
    # される|猫 against さ|れる猫: れる猫 has more of される, and both take its link.
    words, gold = ["される", "猫"], ["さ", "れる猫"]
    assert _on_gold_words({(5, 0), (7, 1)}, words, gold) == {(5, 0), (5, 1)}


def test_grow_diag_final_and_by_hand() -> None:
    forward, reverse = {(0, 0), (1, 1), (3, 3)}, {(0, 0), (1, 0), (2, 2)}
    # (0, 0) is in both; (1, 0), (1, 1) grow from it, (2, 2) and (3, 3) by a corner.
    assert grow_diag_final_and(forward, reverse) == forward | reverse
    # (1, 4) is no neighbour and shares no word with what is found: final-and adds it;
    # (0, 5) shares the source word 0, and stays out.
    assert grow_diag_final_and({(0, 0), (1, 4)}, {(0, 0), (0, 5)}) == {(0, 0), (1, 4)}
