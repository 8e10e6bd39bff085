"""Which test sentences are new, and which are near twins of training sentences."""

import subprocess
import sys
from pathlib import Path

from benchmarks.quality import masked, select

TRAIN = ["Yesterday Tom saw Mary.", "I love my dog.", "It's cold today.", "Let us go."]


def test_names_and_pronouns_are_masked() -> None:
    names = frozenset({"tom", "mary"})
    assert masked("She's with Tom's dog, Mary.", names) == "* 's with * 's dog *"
    assert masked("Summer is here.", names) == "summer is here"


def test_new_sentences_and_near_twins() -> None:
    # `Tom` and `Mary` are names, being written with a capital inside a sentence.
    english = ["i LOVE my dog!", "He loves his dog.", "We love our dog.",
               "Yesterday Mary saw Tom.", "Go!"]  # fmt: skip
    groups = select([(sentence, "犬") for sentence in english], TRAIN)
    assert groups == {
        "whose English was not trained on": [1, 2, 3, 4],
        "near twins": [2, 3],
        "of these neither": [1, 4],
    }
    assert list(select([("Go!", "x")], TRAIN)) == ["near twins", "of these neither"]


def test_scores_of_two_systems(tmp_path: Path) -> None:
    pairs = [(f"It is {n}.", f"それは{n}です。") for n in range(30)]
    files = {
        "test.tsv": "".join(f"{a}\t{b}\n" for a, b in pairs),
        "right.txt": "".join(f"{b}\n" for _, b in pairs),
        "wrong.txt": "違います。\n" * len(pairs),
        "short.txt": "違います。\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")

    def compare(*names: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "benchmarks.quality", "--samples", "50",
                   "--test", tmp_path / "test.tsv",
                   *(tmp_path / name for name in names)]  # fmt: skip
        return subprocess.run(command, capture_output=True, encoding="utf-8")

    lines = compare("right.txt", "wrong.txt").stdout.splitlines()
    right, wrong = lines[1].split(), lines[2].split()
    assert right[:3] == ["right", "BLEU", "100.00"] and "p" not in right
    assert wrong[0] == "wrong" and float(wrong[2]) < 30 and "p" in wrong
    assert any("tok:ja-mecab" in line for line in lines)
    failed = compare("right.txt", "short.txt")
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1 and "1 lines for 30" in failed.stderr
