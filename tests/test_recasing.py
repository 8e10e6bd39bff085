"""English in lower case is written as people write it."""

import subprocess
import sys
from pathlib import Path

import pytest

from data.recasing import recase, usual_forms

KEPT = [
    "Will Emi see Mr. Brown in May?",
    "May I ask if the U.S. is far, or May is?",
    "He said, \"Will you?\" to Emi, and I said, \"Say Mrs White will.\"",
    "It will rain, I'm sure.",
]  # fmt: skip


def test_usual_forms_are_those_inside_sentences() -> None:
    # `May I` and `Will you` begin; what follows a full stop might, as Brown does.
    assert usual_forms(KEPT) == {
        "emi": "Emi", "mr": "Mr", "may": "May", "i": "I", "u.s": "U.S",
        "mrs": "Mrs", "white": "White",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lowered", "written"),
    [
        ("don 't tell emi .", "Don't tell Emi."),
        ("i 'm sure , mr. brown 's dog will .", "I'm sure, Mr. Brown's dog will."),
        ("he said , '' don 't go . ''", 'He said, "Don\'t go."'),
        ("they call emi '' white '' .", 'They call Emi "White".'),
        ("so what ? is it six o 'clock ?", "So what? Is it six o'clock?"),
        ("ten minutes ' walk in the u.s .", "Ten minutes' walk in the U.S."),
        ("again ? not again ! !", "Again? Not again!!"),
        ("we lived in the u.s. for years .", "We lived in the U.S. for years."),
        ("it is 1,000 or 0.5 .", "It is 1,000 or 0.5."),
        ("", ""),
    ],
)
def test_recase(lowered: str, written: str) -> None:
    assert recase(lowered, usual_forms(KEPT)) == written


def test_what_is_written_so_already_stays() -> None:
    usual = usual_forms(KEPT)
    for sentence in ("Don't tell Emi.", 'He said, "Don\'t go."', "I'm sure, Emi."):
        assert recase(sentence, usual) == sentence


def test_command(tmp_path: Path) -> None:
    (tmp_path / "kept.tsv").write_text("Ask Emi.\tx\n", encoding="utf-8")
    (tmp_path / "low.tsv").write_text("emi isn 't in .\tいない。\n", encoding="utf-8")
    line = [sys.executable, "-m", "data.recasing", tmp_path / "kept.tsv"]
    out = tmp_path / "out.tsv"
    done = subprocess.run([*line, tmp_path / "low.tsv", out], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert out.read_text("utf-8") == "Emi isn't in.\tいない。\n"
    missing = subprocess.run([*line, tmp_path / "none.tsv", out], capture_output=True)
    assert missing.returncode == 2
    assert missing.stderr.count(b"\n") == 1 and b"none.tsv" in missing.stderr
    assert out.read_text("utf-8") == "Emi isn't in.\tいない。\n"
