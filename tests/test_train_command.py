"""train.py from end to end, on a corpus that trains in seconds."""

import dataclasses
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
from conftest import (
    BIRD,
    SMALL,
    Main,
    Said,
    pairs,
    refused,
    weights,
    write_file,
    write_tsv,
)
from safetensors.torch import load_file
from sealing import change_config
from torch.nn import functional as F

import train
import translate
from data.batching import make_batch, plan_batches
from data.metrics import Scores
from data.preparation import prepare
from explain.translator import Translator
from model.checkpoint import is_run, load_model, load_state
from model.command import Stop
from model.presets import PRESETS

ROOT = Path(__file__).parent.parent
SHORT = (*SMALL, "--width=16", "--steps=20", "--validations=1")


def _train(corpus: object, out: Path, *flags: str) -> Path:
    assert train.main(["--corpus", str(corpus), *SHORT, "--out", str(out), *flags]) == 0
    return out


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").open("rb")]


# ------------------------------------------------------------------- train.py refuses


@pytest.mark.parametrize(
    ("written", "corpus", "message"),
    [
        (
            {"a.en": "1\n2\n3\n", "a.ja": "1\n2\n"}, "a.en,a.ja",
            ["a.en has 3 lines", "a.ja has 2", "line N translates line N"],
        ),
        (
            {"a.tsv": b"a\tb\n" + "犬\t猫\n".encode("shift_jis")}, "a.tsv",
            ["a.tsv, line 2, byte 1", "not UTF-8; save the file as UTF-8"],
        ),
        ({"a.tsv": ""}, "a.tsv", ["a.tsv holds no sentence pair", "another corpus"]),
        ({"a.tsv": "a\tb\nc\n"}, "a.tsv", ["a.tsv, line 2: no tab"]),
        ({"a.tsv": "a\t\n\tb\n"}, "a.tsv", ["is fit for training"]),
        ({"a.tsv": "a\tb\nA\tc\n"}, "a.tsv", ["--dev"]),
        ({"a.csv": "x,y\na,b\n"}, "a.csv", ["a.csv has no column 'en'; it has x, y"]),
        ({"a.jsonl": '{"en": "a", "ja": null}'}, "a.jsonl:en,ja",
         ["a.jsonl, line 1: ja is missing"]),
        ({}, "hub:owner", ["hub:owner: give hub:OWNER/NAME"]),
        ({}, "hub:a/b", ["hub:a/b: http://127.0.0.1:9 does not answer; give a local"]),
        ({}, "none.jsonl", ["none.jsonl: No such file"]),
        ({}, "none.tsv", ["none.tsv: No such file"]),
        ({"a.en": "1\n"}, "a.en,none.ja", ["none.ja: No such file"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("flag", ["--corpus", "--dev", "--test"])
def test_broken_corpora(
    written: dict[str, str | bytes], corpus: str, message: list[str], flag: str,
    tiny_corpus: Path, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, content in written.items():
        write_file(tmp_path, name, content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", "http://127.0.0.1:9")
    argv: list[object] = [*SHORT, "--out", "out"]
    if flag == "--corpus":
        argv += ["--corpus", corpus]
    elif "fit for" in message[0] or "--dev" in message[0]:
        pytest.skip("what only a corpus to train on is refused for")
    else:
        argv += ["--corpus", tiny_corpus, flag, corpus]
    line = refused(train.main, argv, capsys, tmp_path)
    assert all(part in line for part in message)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--heads", "3"], "heads is 3, which does not divide the width 16"),
        (["--width", "6.5"], "--width"),
        (["--nonsense", "1"], "Unrecognized options: --nonsense"),
        (["--preset", "huge"], "invalid choice 'huge' for argument '--preset'"),
        (["--steps", "0"], "must be more than 0"),
        (["--steps", "-3"], "must be more than 0"),
        (["--steps", "9" * 400], "must be more than 0 and 1,000,000,000 at most"),
        (["--steps"], "Missing value for argument '--steps'"),
        (["--epochs", "2"], "give one of --steps, --epochs and --minutes"),
        (["--seed", "-1"], "--seed -1: give 0 to 2^63 - 1"),
        (["--seed", str(2**64)], "--seed"),
        (["--validations", "0"], "--validations 0: give 1 or more"),
        (["--device", "abacus"], "--device abacus is not usable here"),
        (["--device", "meta"], "--device meta is not usable here"),
        (["--device", "cuda:99"], "--device cuda:99 is not usable here"),
        (["--learning-rate", "0"], "learning_rate is 0.0: give more than 0"),
        (["--warmup", "-1"], "warmup and weight_decay are numbers from 0 up"),
        (["--dropout", "1"], "dropout is 1.0: give a number from 0"),
        (["--vocabulary", "9"], "vocabulary is 9: give 260 to 1,000,000"),
        (["--vocabulary", "3000000000"], "vocabulary is 3000000000: give 260 to"),
        (["--max-length", "0"], "max_length is 0: give a whole number from 1"),
        (["--resume", "nowhere"], "--resume takes no other flag"),
        (["--init", "nowhere"], "--init keeps that run's shape: leave out --width"),
    ],
)
def test_flags_that_make_no_training(
    flags: list[str], message: str, tiny_corpus: Path, tmp_path: Path, capsys: Said
) -> None:
    argv = ["--corpus", tiny_corpus, *SHORT, "--out", tmp_path / "out", *flags]
    assert message in refused(train.main, argv, capsys, tmp_path)


def test_a_damaged_run_may_be_overwritten(
    tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    content = (run / "config.json").read_bytes()
    (run / "config.json").write_bytes(content[: len(content) // 2])
    _train(tiny_corpus, run, "--overwrite")
    assert Translator.load(run).model.config.width == 16
    (run / "config.json").write_bytes(content[: len(content) // 2])
    (run / "model.safetensors").unlink()
    assert not is_run(run)  # it might be anybody's folder


def test_a_shape_is_refused_before_anything_is_read(capsys: Said) -> None:
    assert train.main(["--corpus", "none.tsv", "--heads", "5"]) == 2
    assert "heads is 5, which does not divide" in capsys.readouterr().err


def test_a_run_to_start_from_that_is_none(capsys: Said) -> None:
    assert train.main(["--init", "nowhere", "--out", "none"]) == 2
    assert "no model in nowhere" in capsys.readouterr().err


def test_no_time_for_a_step(tiny_corpus: Path, tmp_path: Path, capsys: Said) -> None:
    argv = ["--corpus", str(tiny_corpus), *SMALL, "--minutes=0.0001"]
    assert train.main([*argv, "--out", str(tmp_path / "out")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("train.py: after preparing, no step fits into 0.0001 min")
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize(
    "length", ["--epochs=inf", "--epochs=1e308", "--minutes=nan", "--epochs=0"]
)
def test_lengths_that_are_none(
    length: str, tiny_corpus: Path, tmp_path: Path, capsys: Said
) -> None:
    argv = ["--corpus", tiny_corpus, *SMALL, "--out", tmp_path / "out", length]
    assert "must be more than 0" in refused(train.main, argv, capsys, tmp_path)


def test_an_existing_folder_is_kept(
    tiny_corpus: Path, tmp_path: Path, capsys: Said
) -> None:
    run = _train(tiny_corpus, tmp_path / "run")
    argv = ["--corpus", tiny_corpus, *SHORT, "--out", run]
    line = refused(train.main, argv, capsys, tmp_path)
    assert "is there already: give --overwrite or another --out" in line
    other = tmp_path / "thesis"
    other.mkdir()
    write_file(other, "config.json", '{"model_type": "years of work"}')
    argv = ["--corpus", tiny_corpus, *SHORT, "--out", other, "--overwrite"]
    assert "is no run directory" in refused(train.main, argv, capsys, tmp_path)
    # A failure before the first step leaves the old run whole.
    argv = ["--corpus", tmp_path / "none.tsv", "--out", run, "--overwrite"]
    refused(train.main, argv, capsys, tmp_path)
    before = weights(run)
    write_file(run, "stale", "")
    _train(tiny_corpus, run, "--overwrite", "--seed=2")
    assert weights(run) != before and not (run / "stale").exists()


def test_a_loss_that_is_no_number_is_reported(
    tiny_corpus: Path, tmp_path: Path, capsys: Said
) -> None:
    argv = ["--corpus", str(tiny_corpus), *SHORT, "--out", str(tmp_path / "run")]
    assert train.main([*argv, "--learning-rate=1e38", "--warmup=1"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    line = said.splitlines()[-1]
    assert "train.py: the loss is " in line and " at step " in line
    assert "(learning rate " in line and "lower --learning-rate" in line
    named = [source for source, _ in pairs() if repr(source) in line]
    assert len(named) == 3


# --------------------------------------------------------------------- train.py trains


def test_the_run_learns_the_corpus(tiny_run: Path, translator: Translator) -> None:
    found = translator.translate([source for source, _ in pairs()])
    right = [best.text == target for [best], (_, target) in
             zip(found, pairs(), strict=True)]  # fmt: skip
    assert sum(right) >= 60
    lines = _metrics(tiny_run)
    assert lines[-1]["event"] == "finished"
    for line in lines[:-1]:
        assert {"step", "seconds"} < set(line)
        assert "dev_loss" in line or {
            "loss", "lr", "target_tokens_per_second"
        } <= set(line)  # fmt: skip
    best = max(line["dev_chrf"] for line in lines if "dev_chrf" in line)
    card = (tiny_run / "README.md").read_text("utf-8")
    assert f"{best:.1f}" in card and "600 steps" in card and "nrefs:1" in card


def test_a_run_can_be_made_again_from_its_config(
    tiny_corpus: Path, tmp_path: Path
) -> None:
    run = _train(tiny_corpus, tmp_path / "run", "--seed=5")
    before = weights(run)
    config = json.loads((run / "config.json").read_text("utf-8"))
    python, script, *argv = shlex.split(config["command"])
    assert (python, script) == ("python", "train.py")
    assert train.main([*argv, "--overwrite"]) == 0
    assert weights(run) == before
    assert weights(_train(tiny_corpus, tmp_path / "other", "--seed=6")) != before


def test_two_files_and_other_line_ends_are_the_same_corpus(
    tiny_corpus: Path, tmp_path: Path
) -> None:
    wide = "".join(f"{a}\t{b}\tCC0\t#1\n" for a, b in pairs())
    write_file(tmp_path, "wide.tsv", "\ufeff" + wide.replace("\n", "\r\n"))
    for name, side in (("a.en", 0), ("a.ja", 1)):
        write_file(tmp_path, name, "".join(pair[side] + "\n" for pair in pairs()))
    two = f"{tmp_path / 'a.en'},{tmp_path / 'a.ja'}"
    runs = [
        _train(corpus, tmp_path / f"run{number}")
        for number, corpus in enumerate([tiny_corpus, tmp_path / "wide.tsv", two])
    ]
    for name in ("source.spm", "target.spm", "model.safetensors"):
        assert len({(run / name).read_bytes() for run in runs}) == 1
    corpora = json.loads((runs[2] / "config.json").read_text("utf-8"))["corpora"]
    assert set(corpora) == {str(tmp_path / "a.en"), str(tmp_path / "a.ja")}


def test_the_other_direction(tiny_corpus: Path, tmp_path: Path, capsys: Said) -> None:
    swapped = write_tsv(tmp_path / "swapped.tsv", [(b, a) for a, b in pairs()])
    back = _train(tiny_corpus, tmp_path / "back", "--direction=ja-en")
    there = _train(swapped, tmp_path / "there")
    for name in ("source.spm", "target.spm"):
        assert (back / name).read_bytes() == (there / name).read_bytes()
    config = json.loads((back / "config.json").read_text("utf-8"))
    assert config["languages"] == ["ja", "en"]
    assert Translator.load(back).languages == ("ja", "en")
    capsys.readouterr()
    assert translate.main(["--model", str(back), "私は猫が好きです。"]) == 0
    said = capsys.readouterr()
    assert "not seen" not in said.err  # a sentence without spaces is no unknown word
    [line] = said.out.splitlines()
    assert line.isascii()
    assert translate.main(["--model", str(back), "--evaluate", str(tiny_corpus)]) == 0
    assert "tok:13a" in capsys.readouterr().out


def test_dev_and_test_sentences_are_scored_and_never_trained_on(
    tiny_corpus: Path, tmp_path: Path, capsys: Said
) -> None:
    dev = write_tsv(tmp_path / "dev.tsv", [*pairs()[:3], ("", "空"), ("x", "")])
    rows = [(BIRD.upper(), "別"), ("q", "学生たちはお茶を飲みます")]
    test = write_tsv(tmp_path / "test.tsv", rows)
    run = _train(tiny_corpus, tmp_path / "run", f"--dev={dev}", f"--test={test}")
    said = capsys.readouterr().out
    assert (
        "64 pairs read, 59 kept; removed: 5 that share a side with dev or test" in said
    )
    *_, scored, last = _metrics(run)
    assert last["event"] == "finished"
    assert 0 <= scored["test_bleu"] <= 100 and 0 <= scored["test_chrf"] <= 100
    found = Translator.load(run).translate([source for source, _ in rows])
    texts = [best.text for [best] in found]
    chrf = sacrebleu.corpus_chrf(texts, [[target for _, target in rows]]).score
    assert scored["test_chrf"] == pytest.approx(chrf)
    corpora = json.loads((run / "config.json").read_text("utf-8"))["corpora"]
    assert set(corpora) == {str(tiny_corpus), str(dev), str(test)}


def test_fine_tuning_starts_from_the_other_run(
    tiny_run: Path,
    tiny_corpus: Path,
    tmp_path: Path,
    capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other, steps = tmp_path / "tiny", train._train
    shutil.copytree(tiny_run, other)

    def from_there_on_alone(training: train.Training, stop: Stop) -> bool:
        shutil.rmtree(other)  # as it may be when a training is resumed
        return steps(training, stop)

    monkeypatch.setattr("train._train", from_there_on_alone)
    long = ("My parents go home. " * 3, "両親は家へ行きます。" * 4)  # over 31 tokens
    new = write_tsv(tmp_path / "new.tsv", [*pairs()[:30], long])
    dev = write_tsv(tmp_path / "dev.tsv", pairs()[40:])
    out = tmp_path / "run"
    argv = ["--corpus", str(new), "--dev", str(dev), "--init", str(other),
            "--out", str(out), "--steps=10", "--precision=fp32",
            "--batch-tokens=400"]  # fmt: skip
    assert train.main(argv) == 0
    assert "1 pairs of 32 tokens or more left out" in capsys.readouterr().out
    for name in ("source.spm", "target.spm"):
        assert (out / name).read_bytes() == (tiny_run / name).read_bytes()
    [first, *_] = [line["loss"] for line in _metrics(out) if "loss" in line]
    scratch = [line["loss"] for line in _metrics(tiny_run) if "loss" in line][0]
    assert first < scratch / 2
    assert weights(out) != weights(tiny_run)
    shapes = [json.loads((r / "config.json").read_text("utf-8"))["model"]
              for r in (out, tiny_run)]  # fmt: skip
    assert shapes[0] == shapes[1]
    # What the other run had learned from, and knew, is not forgotten.
    config = json.loads((out / "config.json").read_text("utf-8"))
    assert set(config["corpora"]) == {str(new), str(dev)}
    assert config["learned_from"] == [str(new), str(tiny_corpus)]
    card = (out / "README.md").read_text("utf-8")
    assert "- Data: new.tsv; 30 pairs" in card
    assert "\n- Started from: tiny, which learned from\n  tiny.tsv.\n" in card
    words = [
        (r / "source_words.txt").read_text("utf-8").split() for r in (out, tiny_run)
    ]
    assert set(words[1]) <= set(words[0])


def test_fine_tuning_the_other_way_is_refused(
    tiny_run: Path, tiny_corpus: Path, tmp_path: Path, capsys: Said
) -> None:
    argv = ["--corpus", tiny_corpus, "--init", tiny_run, "--out", tmp_path / "run",
            "--direction", "ja-en"]  # fmt: skip
    line = refused(train.main, argv, capsys, tmp_path)
    assert line.endswith("tiny translates en-ja: give --direction en-ja")


def test_fine_tuning_starts_from_a_shared_model(
    tiny_run: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []
    monkeypatch.setattr(
        "model.hub._fetched", lambda name: fetched.append(name) or tiny_run
    )
    out = tmp_path / "run"
    argv = ["--corpus", str(tiny_corpus), "--init", "hub:me/tiny", "--out", str(out)]
    assert train.main([*argv, "--steps=1", "--precision=fp32"]) == 0
    assert fetched == ["me/tiny"]
    assert (out / "source.spm").read_bytes() == (tiny_run / "source.spm").read_bytes()
    card = (out / "README.md").read_text("utf-8")
    assert "Started from: hub:me/tiny, which learned from\n  tiny.tsv.\n" in card


def test_columns_are_no_part_of_what_was_learned_from(tmp_path: Path) -> None:
    rows = "".join(f'{{"a": "{a}", "b": "{b}"}}\n' for a, b in pairs())
    write_file(tmp_path, "c.jsonl", rows)
    run = _train(f"{tmp_path}/c.jsonl:a,b", tmp_path / "run", "--steps=1")
    config = json.loads((run / "config.json").read_text("utf-8"))
    assert config["learned_from"] == list(config["corpora"]) == [f"{tmp_path}/c.jsonl"]


def test_the_words_of_a_run_that_lists_none_are_not_known(
    tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(tiny_run, tmp_path / "other"))
    (other / "source_words.txt").unlink()
    files = json.loads((other / "config.json").read_text("utf-8"))["files"]
    del files["source_words.txt"]
    change_config(other, files=files)
    argv = ["--corpus", str(tiny_corpus), "--init", str(other), "--steps=1",
            "--out", str(tmp_path / "run"), "--precision=fp32"]  # fmt: skip
    assert train.main(argv) == 0
    assert not (tmp_path / "run" / "source_words.txt").exists()


def test_epochs_are_counted_in_batches(tiny_corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = [*SMALL, "--width=16", "--epochs=2.5", "--validations=1"]
    assert train.main(["--corpus", str(tiny_corpus), *flags, "--out", str(out)]) == 0
    material = prepare([str(tiny_corpus)], None, None, reverse=False, vocabulary=340,
                       max_length=32, seed=1, say=len)  # fmt: skip
    batches = len(plan_batches(material.train, 400))
    assert _metrics(out)[-1]["step"] == -(-5 * batches // 2)


@pytest.mark.parametrize(
    "flags",
    [["--minutes=1", "--precision=auto"], ["--precision=bf16", "--steps=3"],
     ["--steps=3", "--warmup=0"], ["--steps=3", "--optimizer=muon"]],
)  # fmt: skip
def test_other_ways_to_train(
    flags: list[str], tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = train._trial  # what it finds does not matter here, but takes its way
    monkeypatch.setattr("train._trial", lambda *given: 10 + 0 * trial(*given))
    out = tmp_path / "run"
    argv = ["--corpus", str(tiny_corpus), *SMALL, "--width=16", "--out", str(out)]
    assert train.main([*argv, *flags]) == 0
    assert 1 <= _metrics(out)[-1]["step"] <= 5
    assert _metrics(out)[-1]["event"] == "finished"
    config = json.loads((out / "config.json").read_text("utf-8"))
    if "--precision=bf16" in flags:
        assert config["precision"] == "bf16"
    assert {t.dtype for t in load_file(out / "model.safetensors").values()} == {
        torch.float32
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bf16_without_hardware_is_doubted(
    precision: str,
    tiny_corpus: Path,
    tmp_path: Path,
    capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("model.hardware.hardware_precisions", lambda _: ("fp32",))
    _train(tiny_corpus, tmp_path / "run", f"--precision={precision}", "--steps=1")
    doubted = "cpu is not known to multiply bf16" in capsys.readouterr().err
    assert doubted == (precision == "bf16")


@pytest.mark.parametrize("faster", ["fp32", "bf16"])
def test_the_faster_precision_is_chosen(
    faster: str, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.common_precisions", lambda *_: ("fp32", "bf16"))
    monkeypatch.setattr("train._trial", lambda *given: 1 if given[3] == faster else 2)
    run = _train(tiny_corpus, tmp_path / "run", "--precision=auto", "--steps=1")
    config = json.loads((run / "config.json").read_text("utf-8"))
    assert config["precision"] == faster


@pytest.mark.parametrize(
    ("argv", "preset", "width", "vocabulary", "optimizer", "length"),
    [
        ([], "tiny", 128, 2_000, "adamw", (3_000, None)),
        (["--corpus", "starter", "a.tsv"], "small", 192, 4_000, "muon", (None, 10)),
        (["--corpus", "a.tsv"], "small", 192, 4_000, "muon", (None, 10)),
        (["--corpus", "a.tsv", "--preset=mini"],
         "mini", 128, 4_000, "muon", (None, 10)),
        (["--preset", "base"], "base", 256, 8_000, "muon", (None, 60)),
        (["--preset=base", "--width", "64", "--optimizer=adamw"],
         "base", 64, 8_000, "adamw", (None, 60)),
    ],
)  # fmt: skip
def test_what_a_preset_stands_for(
    argv: list[str], preset: str, width: int, vocabulary: int, optimizer: str,
    length: tuple[int | None, int | None],
) -> None:  # fmt: skip
    arguments = train.parse_arguments(argv)
    assert arguments.preset == preset
    assert (arguments.shape.width, arguments.shape.vocabulary) == (width, vocabulary)
    assert arguments.recipe.optimizer == optimizer
    chosen = PRESETS[preset]
    assert (chosen.steps, chosen.minutes) == length


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--minutes=0.5"], True),
        (["--minutes=0.5", "--width=16"], False),  # a shape of one's own
        (["--minutes=0.5", "--preset=mini"], False),
        (["--minutes=0.5", "--batch-tokens=300"], False),
        (["--minutes=0.5", "--init"], False),  # which keeps that run's shape
        (["--steps=2"], False),  # which teach a larger model no less
    ],
)
def test_a_smaller_preset_is_named_where_few_steps_fit(
    flags: list[str], named: bool, tiny_corpus: Path, tiny_run: Path,
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("train._trial", lambda *_: 10.0)
    out = tmp_path / "run"
    argv = ["--corpus", str(tiny_corpus), "--precision=fp32", *flags]
    argv += [str(tiny_run)] if flags[-1] == "--init" else []
    argv += ["--out", str(out)]
    assert train.main(argv) == 0
    said = capsys.readouterr().out
    assert ("So few teach a smaller model more: --preset mini" in said) == named


@pytest.mark.parametrize(("scores", "step"), [((50, 10), 3), ((10, 50), 6)])
def test_the_best_validation_is_kept(
    scores: tuple[float, float], step: int, tiny_corpus: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    left = iter(scores)
    monkeypatch.setattr("train.score", lambda *_: Scores(1.0, next(left), "b", "c"))
    run = _train(tiny_corpus, tmp_path / "run", "--steps=6", "--validations=2")
    averaged = load_state(run)[0]["state"]["averaged"]  # at the last step
    kept = load_file(run / "model.safetensors")
    is_last = all(torch.equal(averaged[name], kept[name]) for name in kept)
    assert is_last == (step == 6)
    card = (run / "README.md").read_text("utf-8")
    assert f"those of step {step}, averaged" in card and "chrF\n  50.0," in card


def test_the_dev_loss_is_the_mean_over_all_tokens(
    tiny_run: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch has it for all pairs padded together; ours are several batches."""
    monkeypatch.setattr("train.plan_batches", lambda some, tokens: cut)
    material = prepare([str(tiny_corpus)], None, None, reverse=False, vocabulary=340,
                       max_length=32, seed=1, say=len)  # fmt: skip
    model, some = load_model(tiny_run), material.train
    cut = plan_batches(some, 200)
    assert len(cut) > 3
    whole = make_batch(some, np.arange(len(some)), padding=0)
    with torch.inference_mode():
        logits = model(whole.source, whole.target_in).flatten(0, 1)
    mean = F.cross_entropy(logits, whole.target_out.flatten(), ignore_index=0)
    assert train.dev_loss(model, some) == pytest.approx(mean.item(), rel=1e-5)


def test_what_fails_leaves_no_folder(tmp_path: Path, capsys: Said) -> None:
    out = tmp_path / "new" / "folder" / "run"
    corpus = str(tmp_path / "none.tsv")
    refused(train.main, ["--corpus", corpus, "--out", out], capsys, tmp_path)


def test_three_pairs_train(tmp_path: Path, capsys: Said) -> None:
    corpus = write_tsv(tmp_path / "three.tsv", pairs()[::9][:3])
    _train(corpus, tmp_path / "run", "--vocabulary=30000", "--steps=2")
    said = capsys.readouterr().out
    assert (
        "source vocabulary: " in said and "all that the corpus fills of 30,000" in said
    )


@pytest.mark.parametrize("main", [train.main, translate.main])
def test_help_names_every_flag(main: Main, capsys: Said) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    module = sys.modules[main.__module__]
    for field in dataclasses.fields(module.Arguments):
        if field.name not in {"texts", "shape", "recipe"}:
            assert f"--{field.name.replace('_', '-')} " in said
    if main is train.main:
        for flag in ("--width", "--heads", "--learning-rate", "--label-smoothing"):
            assert f"{flag} " in said
