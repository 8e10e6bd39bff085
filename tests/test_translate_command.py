"""translate.py from end to end, with a model that was trained in seconds."""

import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from conftest import BIRD, Said, pairs, refused, write_file, write_tsv

import translate
from explain import files
from explain.alignment import Heads, align, pharaoh
from explain.trace import AttentionTrace
from explain.translator import Translator
from explain.views import target_labels
from model.checkpoint import load_model, save_weights
from model.command import INTERRUPTED

ROOT = Path(__file__).parent.parent


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
    source = write_file(tmp_path, "in.txt", content)
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
    source = write_file(tmp_path, "in.txt", content)
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
    many = write_file(tmp_path, "many.txt", (BIRD + "\n\n") * 600 + BIRD)
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
        source = write_file(tmp_path, "in.txt", "".join(line + "\n" for line in lines))
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
    source = write_file(tmp_path, "in.txt", f"{BIRD}\n{long}\n{BIRD}\n")
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
    assert len(traces) == 3
    for kind in ("encoder_self", "decoder_self", "cross"):
        before, after = (traces[i].map(kind, 1).weights for i in (0, 2))
        assert (before == after).all()


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


@pytest.mark.parametrize("in_hardware", [True, False])
def test_bf16_without_hardware_is_doubted(
    in_hardware: bool, tiny_run: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ("fp32", "bf16") if in_hardware else ("fp32",)
    monkeypatch.setattr("model.hardware.hardware_precisions", lambda _: here)
    _translate(tiny_run, "--precision", "bf16", BIRD)
    doubt = "cpu is not known to multiply bf16: fp32 may be much faster\n"
    assert capsys.readouterr().err == ("" if in_hardware else doubt)
    _translate(tiny_run, BIRD)
    assert not capsys.readouterr().err


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


def test_the_chosen_layer_and_head_are_those_that_are_seen(
    tiny_run: Path, translator: Translator, tmp_path: Path, capsys: Said
) -> None:
    [[best]] = translator.translate([BIRD])
    trace = translator.trace(BIRD, best.hypothesis.ids)
    words, aligned = translator.words(trace), set()
    for flags, heads in (
        ([], Heads()),
        (["--layer", "1"], Heads(0)),
        (["--layer", "2", "--head", "3"], Heads(1, 2)),
    ):
        _translate(tiny_run, "--align", *flags, BIRD)
        links = pharaoh(align(trace, *words, heads))
        assert capsys.readouterr().out == f"{best.text}\t{links}\n"
        aligned.add(links)
    assert len(aligned) > 1  # or it could be any
    _translate(tiny_run, "--show", "--maps", "cross", "--layer=2", "--head=3", BIRD)
    said = capsys.readouterr().out
    assert "Cross-attention, layer 2, head 3" in said and said.count(", layer ") == 1
    shown = re.findall(r"\b[01]\.\d\d\b", said.partition("predicts")[2].splitlines()[0])
    row = [f"{weight:.2f}" for weight in trace.map("cross", 1).weights[2, 0]]
    assert len(shown) > 4 and shown == row[: len(shown)]  # as many as a line takes
    token = target_labels(trace.target.tokens_in)[2]
    _translate(tiny_run, "--walk", "--token", token, "--layer=2", "--head=3", BIRD)
    said = capsys.readouterr().out
    share = trace.map("cross", 1).weights[2, 2].max()
    assert f"most, {share:.1%}," in said and f"{token} gives most" in said


def test_a_page_with_gold_and_without_what_if(
    tiny_run: Path, tmp_path: Path, capsys: Said
) -> None:
    found = []
    for name, flags in (
        ("a.html", ["--gold", "0-0 3-2", "--no-what-if"]),
        ("b.html", []),
    ):
        _translate(tiny_run, "--attention", tmp_path / name, *flags, BIRD)
        text = (tmp_path / name).read_text("utf-8")
        data = re.search(
            r'<script type="application/json" id="data">(.*)</script>', text
        )
        assert data is not None
        found += json.loads(data[1])["entries"]
    with_gold, plain = found
    assert with_gold["gold"]["sure"] == [[0, 0], [3, 2]] and plain["gold"] is None
    assert "what_if" not in with_gold and plain["what_if"]["heads"]


def test_an_evaluation_says_how_many_were_cut(
    tiny_run: Path, tmp_path: Path, capsys: Said
) -> None:
    long = ("We see a red bird. " * 20).strip()
    rows = write_tsv(tmp_path / "rows.tsv", [*pairs()[:3], (long, "鳥")])
    _translate(tiny_run, "--evaluate", rows)
    said = capsys.readouterr()
    assert "1 of 4 sentences are longer than the model reads: cut" in said.err
    assert "4 sentences in" in said.out


def test_a_target_is_traced_once(
    tiny_run: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced, trace = [], Translator.trace
    monkeypatch.setattr(
        Translator, "trace", lambda *given: traced.append(1) or trace(*given)
    )
    _translate(tiny_run, "--target", "鳥を見ます。", "--show", BIRD)
    assert "Cross-attention" in capsys.readouterr().out
    assert len(traced) == 1


def test_maps_are_printed_wherever_translations_go(
    tiny_run: Path, tmp_path: Path, capsys: Said
) -> None:
    _translate(tiny_run, "--show", BIRD)
    text, maps = capsys.readouterr().out.split("\n", 1)
    _translate(tiny_run, "--show", "--output", tmp_path / "out.txt", BIRD)
    assert (tmp_path / "out.txt").read_text("utf-8") == text + "\n"
    assert capsys.readouterr().out == maps and "Cross-attention" in maps


def test_none_is_a_text_like_any_other(tiny_run: Path, capsys: Said) -> None:
    """It is what a library of flags may take for a flag that is not given."""
    _translate(tiny_run, BIRD, "--target", "None")
    assert capsys.readouterr().out == "None\n"


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
    source = write_file(tmp_path, "in.txt", f"{BIRD}\n\nI sing.\n")
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
    source = write_file(tmp_path, "in.txt", "".join(text + "\n" for text in texts))
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
        (["--n-best", "0", "x"], "--n-best 0: give a whole number from 1 up"),
        (["--length-penalty", "nan", "x"], "--length-penalty nan: give a number"),
        (["--device", "abacus", "x"], "--device abacus is not usable here"),
        (["--target", "x"], "--target goes with exactly one sentence"),
        (["--target", "x", "one", "two"], "--target goes with exactly one sentence"),
        (["--target", "", "x"], "a word on both sides"),
        (["--target", "a\nb", "x"], "--target has several lines: give one"),
        (["--attention", "a.html", "--gold", "0?0", "x"], "--gold needs a sure link"),
        (["--target", "長" * 99, "x"], "tokens is too long to trace: the model"),
        (["--attention", "a.txt", "x"], "ends in .json, .jsonl, .npz"),
        (["--attention", "a.json", "x", "y"], "a.json holds one sentence"),
        (["--attention", "a.json", "--attention", "./a.json", "x"], "a file twice"),
        (["--attention", "a.html", "--output", "a.html", "x"], "a file twice"),
        (["--attention", "no/a.json", "x"], "there is no folder no"),
        (["--attention", "a.json", " "], "a.json: there is no sentence to write"),
        (["--values", "x"], "--values goes with --attention"),
        (["--token", "x", "y"], "--token goes with --walk"),
        (["--no-what-if", "x"], "--gold and --no-what-if go with --attention FILE.h"),
        (["--gold", "0-0", "x"], "--gold and --no-what-if go with --attention FILE.h"),
        (["--attention", "a.html", "--gold", "0-0", "x", "y"], "--gold goes with ex"),
        (["--align", "--n-best", "2", "--beam", "2", "x"], "go with one translation"),
        (["--consensus", "--beam", "2", "x"], "compares hypotheses: add --beam 16"),
        (["--length-penalty", "99", "x"], "give a number from -10 to 10"),
        (["--engine", "ctranslate2", "--precision", "bf16", "x"], "has its precision"),
        (["--evaluate", "two.txt", "--scores"], "--evaluate prints scores only"),
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
    write_file(tmp_path, "two.txt", f"{BIRD}\nI sing.\n")
    write_file(tmp_path, "jis.txt", b"a\n" + "犬\n".encode("shift_jis"))
    (tmp_path / "future").mkdir()
    write_file(tmp_path, "future/config.json", '{"format": 3}')
    argv = [*(["--model", tiny_run] if "--model" not in flags else []), *flags]
    assert message in refused(translate.main, argv, capsys, tmp_path)


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
    source = write_file(tmp_path, "in.txt", (BIRD + "\n") * 3_000)
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
    # One of our first modules.
    assert any(b"data.text" in line for line in iter(process.stderr.readline, b""))
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
