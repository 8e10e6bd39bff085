"""train.py and translate.py from end to end, on a corpus that trains in seconds."""

import dataclasses
import io
import json
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from conftest import SMALL, pairs, write_tsv
from safetensors.torch import load_file

import train
import translate
from data.batching import plan_batches
from data.preparation import prepare
from explain import files
from explain.trace import AttentionTrace
from explain.translator import Translator
from model.checkpoint import is_run, load_model, save_weights
from model.command import INTERRUPTED

ROOT = Path(__file__).parent.parent
SHORT = (*SMALL, "--width=16", "--steps=20", "--validations=1")
BIRD = "We see a red bird."
Main = Callable[[Sequence[str]], int]
Said = pytest.CaptureFixture[str]


def _refused(main: Main, argv: Sequence[object], capsys: Said, folder: Path) -> str:
    """Return the one line on stderr; no file in folder may appear or change."""
    before = _content(folder)
    capsys.readouterr()
    assert main([str(word) for word in argv]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert _content(folder) == before
    assert line.startswith(("train.py: ", "translate.py: "))
    return line


def _content(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def _train(corpus: object, out: Path, *flags: str) -> Path:
    assert train.main(["--corpus", str(corpus), *SHORT, "--out", str(out), *flags]) == 0
    return out


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").open("rb")]


def _weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


# ------------------------------------------------------------------- train.py refuses


def _write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


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
        _write(tmp_path, name, content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", "http://127.0.0.1:9")
    argv: list[object] = [*SHORT, "--out", "out"]
    if flag == "--corpus":
        argv += ["--corpus", corpus]
    elif "fit for" in message[0] or "--dev" in message[0]:
        return  # of a training corpus alone
    else:
        argv += ["--corpus", tiny_corpus, flag, corpus]
    line = _refused(train.main, argv, capsys, tmp_path)
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
        (["--steps"], "Missing value for argument '--steps'"),
        (["--epochs", "2"], "give one of --steps, --epochs and --minutes"),
        (["--seed", "-1"], "--seed -1: give a whole number from 0 up"),
        (["--seed", str(2**64)], "--seed"),
        (["--validations", "0"], "--validations 0: give 1 or more"),
        (["--device", "abacus"], "--device abacus is not usable here"),
        (["--device", "meta"], "--device meta is not usable here"),
        (["--device", "cuda:99"], "--device cuda:99 is not usable here"),
        (["--learning-rate", "0"], "learning_rate is 0.0: give more than 0"),
        (["--warmup", "-1"], "warmup and weight_decay cannot be negative"),
        (["--dropout", "1"], "dropout is 1.0: give a number from 0"),
        (["--vocabulary", "9"], "vocabulary of 9 is too small"),
        (["--max-length", "0"], "max_length is 0: give a whole number from 1"),
        (["--resume", "nowhere"], "--resume takes no other flag"),
        (["--init", "nowhere"], "--init keeps that run's shape: leave out --width"),
    ],
)
def test_flags_that_make_no_training(
    flags: list[str], message: str, tiny_corpus: Path, tmp_path: Path, capsys: Said
) -> None:
    argv = ["--corpus", tiny_corpus, *SHORT, "--out", tmp_path / "out", *flags]
    assert message in _refused(train.main, argv, capsys, tmp_path)


def test_a_damaged_run_may_be_overwritten(tiny_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    content = (run / "config.json").read_bytes()
    (run / "config.json").write_bytes(content[: len(content) // 2])
    assert is_run(run)
    (run / "model.safetensors").unlink()
    assert not is_run(run)


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


@pytest.mark.parametrize("length", ["--epochs=inf", "--minutes=nan", "--epochs=0"])
def test_lengths_that_are_none(
    length: str, tiny_corpus: Path, tmp_path: Path, capsys: Said
) -> None:
    argv = ["--corpus", tiny_corpus, *SMALL, "--out", tmp_path / "out", length]
    assert "must be more than 0" in _refused(train.main, argv, capsys, tmp_path)


def test_an_existing_folder_is_kept(
    tiny_corpus: Path, tmp_path: Path, capsys: Said
) -> None:
    run = _train(tiny_corpus, tmp_path / "run")
    argv = ["--corpus", tiny_corpus, *SHORT, "--out", run]
    line = _refused(train.main, argv, capsys, tmp_path)
    assert "is there already: give --overwrite or another --out" in line
    other = tmp_path / "thesis"
    other.mkdir()
    _write(other, "config.json", '{"model_type": "years of work"}')
    argv = ["--corpus", tiny_corpus, *SHORT, "--out", other, "--overwrite"]
    assert "is no run directory" in _refused(train.main, argv, capsys, tmp_path)
    # A failure before the first step leaves the old run whole.
    argv = ["--corpus", tmp_path / "none.tsv", "--out", run, "--overwrite"]
    _refused(train.main, argv, capsys, tmp_path)
    before = _weights(run)
    _write(run, "stale", "")
    _train(tiny_corpus, run, "--overwrite", "--seed=2")
    assert _weights(run) != before and not (run / "stale").exists()


def test_a_loss_that_is_no_number_is_reported(
    tiny_corpus: Path, tmp_path: Path, capsys: Said
) -> None:
    argv = ["--corpus", str(tiny_corpus), *SHORT, "--out", str(tmp_path / "run")]
    assert train.main([*argv, "--learning-rate=1e38", "--warmup=1"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "train.py: the loss is " in line and " at step " in line
    assert "(learning rate " in line and "lower --learning-rate" in line
    named = [source for source, _ in pairs() if repr(source) in line]
    assert len(named) == 3
    lines = [*capsys.readouterr().err.splitlines(), line]
    assert not any("Traceback" in text for text in lines)


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
    before = _weights(run)
    config = json.loads((run / "config.json").read_text("utf-8"))
    python, script, *argv = shlex.split(config["command"])
    assert (python, script) == ("python", "train.py")
    assert train.main([*argv, "--overwrite"]) == 0
    assert _weights(run) == before
    assert _weights(_train(tiny_corpus, tmp_path / "other", "--seed=6")) != before


def test_two_files_and_other_line_ends_are_the_same_corpus(
    tiny_corpus: Path, tmp_path: Path
) -> None:
    wide = "".join(f"{a}\t{b}\tCC0\t#1\n" for a, b in pairs())
    _write(tmp_path, "wide.tsv", "\ufeff" + wide.replace("\n", "\r\n"))
    for name, side in (("a.en", 0), ("a.ja", 1)):
        _write(tmp_path, name, "".join(pair[side] + "\n" for pair in pairs()))
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
    tiny_run: Path, tmp_path: Path, capsys: Said
) -> None:
    long = ("My parents go home. " * 3, "両親は家へ行きます。" * 4)  # over 31 tokens
    new = write_tsv(tmp_path / "new.tsv", [*pairs()[:30], long])
    out = tmp_path / "run"
    argv = ["--corpus", str(new), "--init", str(tiny_run), "--out", str(out),
            "--steps=10", "--precision=fp32", "--batch-tokens=400"]  # fmt: skip
    assert train.main(argv) == 0
    assert "1 pairs of 32 tokens or more left out" in capsys.readouterr().out
    for name in ("source.spm", "target.spm"):
        assert (out / name).read_bytes() == (tiny_run / name).read_bytes()
    [first, *_] = [line["loss"] for line in _metrics(out) if "loss" in line]
    scratch = [line["loss"] for line in _metrics(tiny_run) if "loss" in line][0]
    assert first < scratch / 2
    assert _weights(out) != _weights(tiny_run)
    shapes = [json.loads((r / "config.json").read_text("utf-8"))["model"]
              for r in (out, tiny_run)]  # fmt: skip
    assert shapes[0] == shapes[1]


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
    assert config["precision"] in {"fp32", "bf16"}
    if "--precision=bf16" in flags:
        assert config["precision"] == "bf16"
    assert {t.dtype for t in load_file(out / "model.safetensors").values()} == {
        torch.float32
    }


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


# ------------------------------------------------------------------------ translate.py


def _translate(run: Path, *flags: object) -> None:
    assert translate.main(["--model", str(run), *map(str, flags)]) == 0


def _pipe(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_arguments_files_and_pipes_give_the_same(
    tiny_run: Path, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [source for source, _ in pairs()[::8]]
    expected = "".join(target + "\n" for _, target in pairs()[::8])
    _translate(tiny_run, *texts)
    assert capsys.readouterr().out == expected
    content = "".join(text + "\n" for text in texts).encode()
    source = _write(tmp_path, "in.txt", content)
    _translate(tiny_run, "--input", source)
    assert capsys.readouterr().out == expected
    _translate(tiny_run, "--input", source, "--output", tmp_path / "out.txt")
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out.txt").read_bytes() == expected.encode()
    _pipe(content, monkeypatch)
    _translate(tiny_run)
    assert capsys.readouterr().out == expected
    _pipe(content, monkeypatch)
    _translate(tiny_run, "--output", tmp_path / "piped.txt")
    assert (tmp_path / "piped.txt").read_bytes() == expected.encode()


def test_lines_in_are_lines_out(
    tiny_run: Path, tmp_path: Path, capsys: Said, translator: Translator
) -> None:
    lines = [BIRD, "", "   ", "\u3000", "I sing\u2028in the morning.", "\t", "\x0c",
             "I\u0085sing", "\u200b", BIRD, ""]  # fmt: skip
    content = "\ufeff" + "".join(line + "\r\n" for line in lines)
    source = _write(tmp_path, "in.txt", content)
    _translate(tiny_run, "--input", source, "--output", tmp_path / "out.txt")
    found = (tmp_path / "out.txt").read_bytes().decode().split("\n")
    assert len(found) == len(lines) + 1 and found.pop() == ""
    bird = "私たちは赤い鳥を見ます。"
    assert found[0] == found[9] == bird
    for line, translation in zip(lines, found, strict=True):
        assert bool(translation) == bool(line.strip("\u200b \u3000\t\x0c"))
    assert translator.translate(["", " ", "\u3000"]) == [[], [], []]
    assert capsys.readouterr().out == ""
    # The last line may lack its end, and there may be more lines than a chunk holds.
    many = _write(tmp_path, "many.txt", (BIRD + "\n\n") * 600 + BIRD)
    _translate(tiny_run, "--input", many, "--output", tmp_path / "out.txt")
    found = (tmp_path / "out.txt").read_bytes().decode()
    assert found == (bird + "\n\n") * 600 + bird + "\n"


def test_blank_lines_never_reach_the_model(
    tiny_run: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the model was asked")

    monkeypatch.setattr("model.search.search", never)
    blanks = "\n   \n\u3000\n\t\n\u200b\n\ufeff\n\r\n\u2028\n"
    _pipe(blanks.encode(), monkeypatch)
    _translate(tiny_run, "--show", "--align")
    assert capsys.readouterr() == ("\n" * 8, "")


@pytest.mark.parametrize("place", [0, translate.CHUNK - 1, translate.CHUNK])
def test_lines_about_the_limit_at_any_place(
    place: int, tiny_run: Path, tmp_path: Path, capsys: Said, translator: Translator
) -> None:
    limit = translator.model.config.max_length - 1
    word = next(w for w in ["sea", "tea", "red", "I"]
                if len(translator.source.encode(f"{w} {w}")) == 2)  # fmt: skip
    lines = [BIRD] * (translate.CHUNK + 8)
    for size, named in [(limit - 1, False), (limit, False), (limit + 1, True)]:
        lines[place] = " ".join([word] * size)
        source = _write(tmp_path, "in.txt", "".join(line + "\n" for line in lines))
        _translate(tiny_run, "--input", source)
        said = capsys.readouterr()
        written = said.out.split("\n")
        assert written.pop() == "" and written.pop(place)
        assert (
            set(written) == {"私たちは赤い鳥を見ます。"}
            and len(written) == len(lines) - 1
        )
        warned = f"line {place + 1} has {limit + 1} tokens, and the model reads {limit}"
        assert (warned in said.err) == named
        assert said.err.count("the rest is left out") == named


def test_a_very_long_line(tiny_run: Path, tmp_path: Path, capsys: Said) -> None:
    long = "We see " + "a red bird and " * 1_250 + "a red bird."
    assert len(long.split()) >= 5_000
    source = _write(tmp_path, "in.txt", f"{BIRD}\n{long}\n{BIRD}\n")
    attention = tmp_path / "a.jsonl"
    _translate(tiny_run, "--input", source, "--attention", attention)
    said = capsys.readouterr()
    first, second, third = said.out.splitlines()
    assert first == third == "私たちは赤い鳥を見ます。"
    assert second
    [warning] = [line for line in said.err.splitlines() if "line 2" in line]
    assert "the model reads 31: the rest is left out" in warning
    traces = files.read(attention)
    assert [len(trace.source.ids) for trace in traces][1] == 32
    assert len(traces) == 3 and traces[0] == traces[0]


def test_bf16_says_nearly_the_same(
    tiny_run: Path, capsys: Said, translator: Translator
) -> None:
    texts = [source for source, _ in pairs()][:20]
    found = translator.translate(texts)
    _translate(tiny_run, "--precision", "bf16", "--scores", *texts)
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    both = zip(rows, [best for [best] in found], strict=True)
    same = [(row, best.hypothesis.score) for row, best in both if row[-1] == best.text]
    assert len(same) >= 18
    for (score, _), exact in same:
        assert float(score) == pytest.approx(exact, abs=0.05)
    assert any(float(score) != round(exact, 4) for (score, _), exact in same)
    # Its attention is that of the weights as they are.
    loaded = Translator.load(tiny_run, precision="bf16")
    assert loaded.model.target_embedding.weight.dtype == torch.float32


def test_scores_and_n_best(
    tiny_run: Path, capsys: Said, translator: Translator
) -> None:
    texts = [BIRD, "I sing."]
    found = translator.translate(texts, beam=5)
    _translate(tiny_run, "--beam", 5, *texts)
    assert capsys.readouterr().out.splitlines() == [best.text for best, *_ in found]
    _translate(tiny_run, "--beam", 5, "--n-best", 5, "--scores", *texts)
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    expected = [
        [str(number), str(rank), f"{one.hypothesis.score:.4f}", one.text]
        for number, ranked in enumerate(found, 1)
        for rank, one in enumerate(ranked, 1)
    ]
    assert rows == expected and len(rows) == 10
    _translate(tiny_run, "--scores", BIRD)
    [[greedy]] = translator.translate([BIRD])
    assert capsys.readouterr().out == f"{greedy.hypothesis.score:.4f}\t{greedy.text}\n"
    _translate(tiny_run, "--scores", "--beam", 5, "--length-penalty", 0, BIRD)
    [[best, *_]] = translator.translate([BIRD], beam=5, length_penalty=0)
    score = best.hypothesis.log_probability
    assert capsys.readouterr().out == f"{score:.4f}\t{best.text}\n"


def test_a_target_of_ones_own(tiny_run: Path, tmp_path: Path, capsys: Said) -> None:
    own, path = "私はＰＣを、見ます！", tmp_path / "a.json"
    _translate(tiny_run, "--target", own, "--scores", "--attention", path, BIRD)
    score, text = capsys.readouterr().out.rstrip("\n").split("\t")
    assert text == own
    data = json.loads(path.read_text("utf-8"))
    assert data["target"]["text"] == own
    assert data["source"]["text"] == BIRD
    log_probs = data["target"]["log_probs"]
    expected = sum(log_probs) / len(log_probs)
    assert float(score) == pytest.approx(expected, abs=1e-3)
    # The model's own translation, forced, has the score that the search gave it.
    _translate(tiny_run, "--scores", BIRD)
    own_score, own_text = capsys.readouterr().out.rstrip("\n").split("\t")
    _translate(tiny_run, "--scores", "--target", own_text, BIRD)
    forced, _ = capsys.readouterr().out.rstrip("\n").split("\t")
    assert float(forced) >= float(own_score) - 1  # tokenized perhaps another way


def test_attention_in_all_forms(
    tiny_run: Path, tmp_path: Path, translator: Translator, capsys: Said
) -> None:
    paths = [tmp_path / f"a.{suffix}" for suffix in ("json", "jsonl", "npz")]
    flags = [word for path in paths for word in ("--attention", path)]
    _translate(tiny_run, "--beam", 4, *flags, BIRD)
    [[best, *_]] = translator.translate([BIRD], beam=4)
    assert capsys.readouterr().out == best.text + "\n"
    expected = translator.trace(BIRD, best.hypothesis.ids)
    for path in paths:
        [found] = files.read(path)
        assert (found.model, found.target) == (expected.model, expected.target)
        for mine, other in zip(found.maps, expected.maps, strict=True):
            assert (mine.weights == other.weights).all()
            assert bool(mine.values) == (path.suffix == ".npz")
    assert found.model.weights_sha256 == translator.note.weights_sha256
    assert len(found.model.weights_sha256) == 64
    _translate(tiny_run, "--attention", paths[0], "--values", BIRD)
    [found] = files.read(paths[0])
    assert all(one.values for one in found.maps) and found.projections
    source = _write(tmp_path, "in.txt", f"{BIRD}\n\nI sing.\n")
    _translate(tiny_run, "--attention", paths[1], "--input", source)
    assert [t.source.text for t in files.read(paths[1])] == [BIRD, "I sing."]


def test_attention_of_many_sentences_is_written_as_it_comes(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[AttentionTrace]] = []
    alive: list[int] = []
    trace = Translator.trace

    def watched(*arguments: Any) -> AttentionTrace:
        alive.append(sum(reference() is not None for reference in made))
        found = trace(*arguments)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Translator, "trace", watched)
    texts = [source for source, _ in pairs()]
    source = _write(tmp_path, "in.txt", "".join(text + "\n" for text in texts))
    path = tmp_path / "a.jsonl"
    _translate(tiny_run, "--input", source, "--attention", path)
    assert [found.source.text for found in files.read(path)] == texts
    assert len(alive) == len(texts) and max(alive) <= 1
    # What holds one sentence is refused at the second, not after the last.
    argv = ["--model", tiny_run, "--input", source, "--attention", tmp_path / "a.npz"]
    made.clear()
    assert translate.main([str(word) for word in argv]) == 2
    assert len(made) == 2


def test_evaluation(tiny_run: Path, tmp_path: Path, capsys: Said) -> None:
    rows = [*pairs()[:20], ("I sing.", "ぜんぜん違う文。"), ("", "空")]
    path = write_tsv(tmp_path / "test.tsv", rows)
    _translate(tiny_run, "--evaluate", path, "--beam", 2)
    bleu, chrf, speed = capsys.readouterr().out.splitlines()
    found = Translator.load(tiny_run).translate([a for a, _ in rows], beam=2)
    texts = [ranked[0].text if ranked else "" for ranked in found]
    expected = sacrebleu.corpus_chrf(texts, [[b for _, b in rows]]).score
    assert f"chrF {expected:.1f} " in chrf and "nrefs:1" in chrf
    tokenizer = "ja-mecab" if "ja-mecab" in bleu else "char"
    expected = sacrebleu.corpus_bleu(texts, [[b for _, b in rows]], tokenize=tokenizer)
    assert bleu.startswith(f"BLEU {expected.score:.1f} ") and "13a" not in bleu
    assert speed.startswith("22 sentences in ")


def test_words_never_seen_are_named(tiny_run: Path, capsys: Said) -> None:
    _translate(tiny_run, "We see a red zebra, Zorro!")
    said = capsys.readouterr()
    assert said.err == "not seen in training: zebra, Zorro\n"
    assert len(said.out.splitlines()) == 1
    _translate(tiny_run, "We see \x1b[2J\x07 a\x9b bird.")
    assert capsys.readouterr().err == (
        "not seen in training: \\x1b[2J\\x07, a\\x9b\n"  # no command to a terminal
    )
    _translate(tiny_run, "WE SEE “a red bird”.")
    assert capsys.readouterr().err == ""


def test_a_model_that_finds_no_end(
    tiny_run: Path, tmp_path: Path, capsys: Said
) -> None:
    run = shutil.copytree(tiny_run, tmp_path / "run")
    weights = load_model(run).state_dict()
    weights["target_embedding.weight"][300] *= 100
    weights["decoder_norm.weight"] *= 0
    weights["decoder_norm.bias"] = weights["target_embedding.weight"][300].clone()
    save_weights(run, weights)
    _translate(run, "--beam", 2, "--attention", tmp_path / "a.json", BIRD)
    said = capsys.readouterr()
    assert "line 1: the model found no end; stopped at 32 tokens" in said.err
    token = Translator.load(run).target.decode([300] * 32)
    assert said.out == token + "\n"
    [trace] = files.read(tmp_path / "a.json")
    assert trace.target.ids_out == (300,) * 32


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--beam", "0", "x"], "--beam 0: give a whole number from 1 up"),
        (["--beam", "many", "x"], "--beam"),
        (["--beam", "1001", "x"], "--beam 1001: give 1,000 at most"),
        (["--beam", "2", "--target", "x", "y"], "no other hypotheses: leave out --b"),
        (["--n-best", "3", "x"], "--n-best 3 needs a beam at least as wide: add"),
        (["--n-best", "0", "x"], "--n-best 0"),
        (["--length-penalty", "nan", "x"], "--length-penalty nan: give a number"),
        (["--device", "abacus", "x"], "--device abacus is not usable here"),
        (["--target", "x"], "--target goes with exactly one sentence"),
        (["--target", "x", "one", "two"], "--target goes with exactly one sentence"),
        (["--target", "", "x"], "a word on both sides"),
        (["--target", "長" * 99, "x"], "tokens is too long to trace: the model"),
        (["--attention", "a.txt", "x"], "ends in .json, .jsonl, .npz"),
        (["--attention", "a.json", "x", "y"], "a.json holds one sentence"),
        (["--attention", "a.json", "--attention", "./a.json", "x"], "a file twice"),
        (["--attention", "a.html", "--output", "a.html", "x"], "a file twice"),
        (["--attention", "no/a.json", "x"], "there is no folder no"),
        (["--attention", "a.json", " "], "a.json: there is no sentence to write"),
        (["--values", "x"], "--values goes with --attention"),
        (["--walk", "--maps", "cross", "--", "x"], "--maps goes with --show"),
        (["--attention", "a.json", "--head", "1", "x"], "--layer and --head go with"),
        (["--input", "none.txt"], "none.txt: No such file"),
        (["--input", "\x1b[2J\n"], "\\x1b[2J\\n: No such file"),
        (["--input", "none.txt", "x"], "give sentences, --input or --evaluate"),
        (["--input", "jis.txt", "--output", "o.txt"], "jis.txt, line 2, byte 1: not"),
        (["--input", "two.txt", "--output", "o.txt", "--attention", "a.json"],
         "a.json holds one sentence, and there are 2"),
        (["--input", "two.txt", "--attention", "a.jsonl", "--attention", "a.json"],
         "a.json holds one sentence, and there are 2"),
        (["--input", "two.txt", "--output", "no/o.txt"], "no: no such folder"),
        (["--input", "."], "directory"),
        (["--evaluate", "none.tsv"], "none.tsv: No such file"),
        (["--evaluate", "two.txt"], "two.txt, line 1: no tab"),
        (["--model", "none", "x"], "train one with `python train.py --out none`"),
        (["--model", "future", "x"], "future/config.json has format 3; this version"),
        (["\udcff"], "not UTF-8"),
    ],
)  # fmt: skip
def test_what_translate_refuses(
    flags: list[str], message: str, tiny_run: Path, tmp_path: Path, capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    _write(tmp_path, "two.txt", f"{BIRD}\nI sing.\n")
    _write(tmp_path, "jis.txt", b"a\n" + "犬\n".encode("shift_jis"))
    (tmp_path / "future").mkdir()
    _write(tmp_path, "future/config.json", '{"format": 3}')
    argv = [*(["--model", tiny_run] if "--model" not in flags else []), *flags]
    assert message in _refused(translate.main, argv, capsys, tmp_path)


def test_the_five_lines_of_python(
    tiny_run: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the docstring, on our run."""
    assert Translator.__doc__
    code = Translator.__doc__.split("\n\n")[1].replace("runs/starter", str(tiny_run))
    lines = [line.strip() for line in code.splitlines() if line.strip()]
    assert len(lines) == 5
    exec("\n".join(lines), {"Translator": Translator})
    said = capsys.readouterr().out
    assert said.splitlines()[0].split()[0]
    assert "[[" in said


# ------------------------------------------------------------ as processes of their own


def _start(run: Path, *flags: str, **settings: str) -> "subprocess.Popen[bytes]":
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.Popen(
        [sys.executable, "translate.py", "--model", str(run), *flags],
        cwd=ROOT, env=environment | {"OMP_NUM_THREADS": "1"} | settings,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_no_locale_matters(tiny_run: Path, tmp_path: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    stubborn = plain | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    expected = "私たちは赤い鳥を見ます。\n".encode()
    path = tmp_path / "a.json"
    calls = [
        (_start(tiny_run, BIRD, **plain), b""),
        (_start(tiny_run, **stubborn), f"{BIRD[:-1]}。\n".encode()),
        (_start(tiny_run, "--attention", str(path), BIRD, **stubborn), b""),
    ]
    outcomes = [process.communicate(given) for process, given in calls]
    for (process, given), (out, err) in zip(calls, outcomes, strict=True):
        assert process.returncode == 0 and err == b""
        assert out == expected or given
    assert outcomes[1][0].decode().startswith("私たちは")
    assert "赤い鳥" in path.read_bytes().decode()


def test_a_reader_that_has_enough(tiny_run: Path, tmp_path: Path) -> None:
    process = _start(tiny_run)
    source = _write(tmp_path, "in.txt", (BIRD + "\n") * 3_000)
    other = _start(tiny_run, "--output", str(tmp_path / "out.txt"), "--beam=0")
    assert process.stdin and process.stdout and process.stderr
    writer = subprocess.Popen(["cat", str(source)], stdout=process.stdin)
    process.stdin.close()
    assert process.stdout.readline() == "私たちは赤い鳥を見ます。\n".encode()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
    writer.wait()
    _, err = other.communicate(b"x\n")
    assert other.returncode == 2 and err.count(b"\n") == 1
    assert not (tmp_path / "out.txt").exists()


def test_a_line_is_answered_before_the_next_is_written(
    tiny_run: Path, tmp_path: Path
) -> None:
    process = _start(tiny_run, "--attention", str(tmp_path / "a.jsonl"))
    assert process.stdin and process.stdout
    bird = "私たちは赤い鳥を見ます。"
    for line, answer in [(BIRD, bird), ("", ""), (BIRD, bird)]:
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline().decode() == f"{answer}\n"
    # So are more at once than a chunk holds, while the pipe stays open.
    count = translate.CHUNK + 8
    process.stdin.write((BIRD + "\n").encode() * count)
    process.stdin.flush()
    answers = [process.stdout.readline().decode() for _ in range(count)]
    assert set(answers) == {f"{bird}\n"}
    [written] = tmp_path.iterdir()
    assert written.stat().st_size > 100_000 and written != tmp_path / "a.jsonl"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert err == b"\ntranslate.py: interrupted\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", ["translate.py", "train.py"])
def test_an_interrupt_while_libraries_load(script: str, tmp_path: Path) -> None:
    flags = {"translate.py": "--model", "train.py": "--out"}
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", script, flags[script], tmp_path / "run"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stderr
    while b"data.text" not in process.stderr.readline():  # one of our first modules
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    # The system ends it, or `run` does where it has taken over by then.
    assert process.returncode in (-signal.SIGINT, INTERRUPTED)
    assert out == b"" and b"Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_a_prompt_for_whoever_types(tiny_run: Path) -> None:
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "translate.py", "--model", str(tiny_run)], cwd=ROOT,
        stdin=its, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    os.close(its)
    assert process.stdout
    os.write(ours, f"{BIRD}\n".encode())
    answered = process.stdout.readline()  # before any more is typed
    os.write(ours, b"\nI sing in the morning.\n\x04")
    out, err = process.communicate()
    os.close(ours)
    assert process.returncode == 0 and b"Traceback" not in err
    said = (answered + out).decode()
    assert "私たちは赤い鳥を見ます。" in answered.decode()
    assert "私は朝に歌います。" in said
