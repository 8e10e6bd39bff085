"""Minimum-Bayes-risk decoding: chrF against sacreBLEU's, the choice against a table."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF

import translate
from explain.translator import Translator
from model.consensus import TEMPERATURE, NGrams, chrf, expected_chrf

TEXTS = st.text("私は猫犬がabc 　。", max_size=12)


@given(TEXTS, TEXTS)
def test_chrf_is_sacrebleus(hypothesis: str, reference: str) -> None:
    wanted = CHRF().sentence_score(hypothesis, [reference]).score
    ours, theirs = NGrams.of(hypothesis), NGrams.of(reference)
    assert chrf(ours.shared(theirs), ours, theirs) == pytest.approx(wanted, abs=1e-6)


def test_expected_chrf_by_hand() -> None:
    # As probable as each other, each is its own reference and that of the others. Of
    # 猫 and 猫: 100; of 猫 and 犬: 0.
    assert expected_chrf(["猫", "猫", "犬"], [-1.0, -1.0, -1.0]) == pytest.approx(
        [200 / 3, 200 / 3, 100 / 3]
    )
    # The first is e times as probable after division by the temperature.
    first, second = expected_chrf(["猫", "犬"], [0.0, -TEMPERATURE])
    assert first / second == pytest.approx(math.e)


def test_many_alike_outvote_the_most_probable() -> None:
    texts = ["彼は走る。", "彼女が歩いた。", "彼女は歩いた。", "彼女も歩いた。"]
    found = expected_chrf(texts, [-1.0, -1.2, -1.2, -1.2])
    assert max(found) != found[0]


def test_translator_ranks_by_agreement(translator: Translator) -> None:
    texts = ["I like cats.", "", "The dog sleeps."]
    plain = translator.translate(texts, beam=6)
    agreed = translator.translate(texts, beam=6, consensus=True)
    assert agreed[1] == []
    for before, after in zip(plain, agreed, strict=True):
        assert {one.text for one in before} == {one.text for one in after}
        scores = [one.score for one in after]
        assert scores == sorted(scores, reverse=True)
        assert all(one.agreement is not None and 0 <= one.score <= 100 for one in after)
        assert all(one.score == one.hypothesis.score for one in before)


def test_command(
    tiny_run: Path, translator: Translator, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", str(tiny_run), "I like cats.", "--scores", "--consensus"]
    assert translate.main([*flags, "--beam", "6", "--n-best", "2"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    [[best, other, *_]] = translator.translate(["I like cats."], 6, consensus=True)
    assert [row[2] for row in rows] == [f"{best.score:.4f}", f"{other.score:.4f}"]
    assert [row[3] for row in rows] == [best.text, other.text]
    for wrong in (["--beam", "2"], ["--beam", "4", "--target", "猫"]):
        assert translate.main([*flags, *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
