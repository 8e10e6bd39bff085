"""translate.py --engine ctranslate2: as the other engine, or one clear line."""

import io
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import pairs, refused, write_tsv
from sealing import change_config

import train
import translate
from explain.translator import Translator
from model import export
from model.export import export_ctranslate2

pytest.importorskip("ctranslate2")
Said = pytest.CaptureFixture[str]
BIRD = "We see a red bird."


@pytest.fixture(scope="module")
def exported(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exports") / "tiny"
    export_ctranslate2(tiny_run, out)
    return out


def _say(capsys: Said, flags: Sequence[object]) -> tuple[str, str]:
    assert translate.main([str(flag) for flag in flags]) == 0
    said = capsys.readouterr()
    return said.out, said.err


LONG = "We see a red bird and " * 12


@pytest.mark.parametrize(
    "flags",
    [
        [BIRD, "", "A zebra drinks tea."],
        ["--beam", "4", BIRD, "The old dogs sing."],
        ["--beam", "4", "--n-best", "3", BIRD],
        ["--beam", "4", "--length-penalty", "0", BIRD, LONG],
        [LONG, " "],
    ],
)
def test_both_engines_say_the_same(
    flags: list[str], tiny_run: Path, exported: Path, capsys: Said
) -> None:
    torch_said = _say(capsys, ["--model", tiny_run, *flags])
    served = ["--engine", "ctranslate2", "--model", exported]
    assert _say(capsys, [*served, *flags]) == torch_said
    assert torch_said[0]
    scored = _say(capsys, [*served, *flags, "--scores"])[0].splitlines()
    texts = [line.split("\t")[-1] for line in scored]
    assert texts == [line.split("\t")[-1] for line in torch_said[0].splitlines()]


def test_lines_in_lines_out(
    exported: Path, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [source for source, _ in pairs()] * 20
    texts[7] = "  "
    piped = io.TextIOWrapper(io.BytesIO("\n".join(texts).encode()))
    monkeypatch.setattr(sys, "stdin", piped)
    flags = ["--engine", "ctranslate2", "--model", exported]
    lines = _say(capsys, flags)[0].splitlines()
    assert len(lines) == len(texts) == 1_280 and lines[7] == ""
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("\n".join(texts) + "\n", "utf-8")
    _say(capsys, [*flags, "--input", source, "--output", out])
    assert out.read_text("utf-8").splitlines() == lines


def test_evaluation(
    tiny_run: Path, exported: Path, tmp_path: Path, capsys: Said
) -> None:
    path = write_tsv(tmp_path / "dev.tsv", [*pairs()[:20], ("I sing.", "違う。")])
    flags = ["--evaluate", path, "--beam", "3"]
    ours = _say(capsys, ["--model", tiny_run, *flags])[0].splitlines()
    served = ["--engine", "ctranslate2", "--model", exported, *flags]
    assert _say(capsys, served)[0].splitlines()[:2] == ours[:2]


NO_ATTENTION = "an export shows no attention and scores no --target: leave out --engine"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--show"], NO_ATTENTION),
        (["--walk"], NO_ATTENTION),
        (["--align"], NO_ATTENTION),
        (["--attention", "a.json"], NO_ATTENTION),
        (["--attention", "a.html"], NO_ATTENTION),
        (["--target", "鳥"], NO_ATTENTION),
        (["--device", "mps"], "--device mps is not usable here: give cpu"),
        (["--device", "cuda:99"], "--device cuda:99 is not usable here: give cpu"),
        (["--model", "run"], "run holds no model for CTranslate2: make one with"),
        (["--model", "none"], "no model in none"),
        (["--model", "damaged"], "damaged/model.bin is missing or damaged: export"),
        (["--engine", "torch"], "export is an export: add --engine ctranslate2"),
        (["--engine", "abacus"], "--engine"),
    ],
)  # fmt: skip
def test_what_the_engine_refuses(
    flags: list[str], message: str, tiny_run: Path, exported: Path, tmp_path: Path,
    capsys: Said, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_run, "run")
    shutil.copytree(exported, "export")
    weights = Path(shutil.copytree(exported, "damaged")) / "model.bin"
    weights.write_bytes(weights.read_bytes()[:-1])
    defaults = {"--model": "export", "--engine": "ctranslate2"}
    argv = [
        word
        for flag, value in defaults.items()
        if flag not in flags
        for word in (flag, value)
    ]
    before = sorted(tmp_path.rglob("*"))
    assert translate.main([*argv, *flags, BIRD]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("translate.py: ") and message in line
    assert sorted(tmp_path.rglob("*")) == before


def test_an_export_is_not_a_run(
    tiny_corpus: Path, exported: Path, tmp_path: Path, capsys: Said
) -> None:
    message = f"{exported} is an export for CTranslate2: name the run it is of"
    out = tmp_path / "out"
    argv: list[object] = ["--corpus", tiny_corpus, "--init", exported, "--out", out]
    assert refused(train.main, argv, capsys, tmp_path) == f"train.py: {message}"
    argv = [str(exported), "--to", "hub-folder", "--out", str(out)]
    assert export.main(argv) == 2
    assert message in capsys.readouterr().err and not out.exists()


def test_vocabularies_of_another_size(
    exported: Path, tmp_path: Path, capsys: Said
) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "export"))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    shape = config["model"] | {"source_vocabulary": 300}
    change_config(folder, model=shape)
    assert (
        translate.main(["--engine", "ctranslate2", "--model", str(folder), BIRD]) == 2
    )
    [line] = capsys.readouterr().err.splitlines()
    assert "vocabularies" in line and "export the run again" in line


def test_without_ctranslate2(
    exported: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    argv = ["--engine", "ctranslate2", "--model", str(exported), BIRD]
    assert translate.main(argv) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "not installed: pip install -c constraints.txt '.[export]'" in line


def test_in_python(translator: Translator, exported: Path) -> None:
    served = Translator.load(exported, engine="ctranslate2")
    [[best]], [[expected]] = served.translate([BIRD]), translator.translate([BIRD])
    assert best.text == expected.text and served.languages == ("en", "ja")
    assert best.hypothesis.score == pytest.approx(expected.hypothesis.score, abs=1e-3)
    assert served.unknown_words("A zebra.") == ["zebra"]
    with pytest.raises(ValueError, match="an exported model shows no attention: load"):
        served.trace(BIRD, best.hypothesis.ids)
