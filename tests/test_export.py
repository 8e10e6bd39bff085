"""Exported models: that they say what the run says, and that no half of one is left."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from conftest import pairs

from benchmarks import export_parity
from data.tokenizer import END
from explain.translator import Translator
from model import export
from model.checkpoint import load_model, save_weights, sha256
from model.engine import Hypothesis
from model.search import TorchEngine
from model.serving import EXPORTED, CTranslate2Engine

pytest.importorskip("ctranslate2")
Said = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def shaken_run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose every weight matters, and whose beams find ends at many lengths."""
    run = shutil.copytree(tiny_run, tmp_path_factory.mktemp("runs") / "shaken")
    weights = load_model(run).state_dict()
    torch.manual_seed(3)
    for name, weight in weights.items():
        # Norms of 1 and biases of 0 would hide a mistake.
        spread = 0.1 if weight.dim() == 1 else 0.3 * float(weight.std())
        weights[name] = weight + torch.randn_like(weight) * spread
    save_weights(run, weights)
    return run


@pytest.fixture(scope="module")
def exported(shaken_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exports") / "out"
    argv = [str(shaken_run), "--to", "ctranslate2", "--out", str(out)]
    assert export.main(argv) == 0
    return out


def _sources(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(4)
    lengths = torch.randint(1, 30, (count,), generator=generator).tolist()
    return [
        [*torch.randint(4, 150, (length,), generator=generator).tolist(), END]
        for length in lengths
    ]


def _same(found: list[Hypothesis], expected: list[Hypothesis], penalty: float) -> bool:
    """Whether two engines agree; scores may all differ by the first end mark's share.

    That share is the same number for all hypotheses of a sentence.
    """
    if [(h.ids, h.complete) for h in found] != [(h.ids, h.complete) for h in expected]:
        return False
    gaps = [
        mine.log_probability - theirs.log_probability
        for mine, theirs in zip(found, expected, strict=True)
    ]
    for mine in found:
        tokens = len(mine.ids) + mine.complete
        assert mine.score == pytest.approx(mine.log_probability / tokens**penalty)
    return max(gaps) - min(gaps) < 1e-3 and gaps[0] > -1e-3


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_both_engines_find_the_same(
    shaken_run: Path, exported: Path, beam: int, penalty: float
) -> None:
    ours = TorchEngine.of(load_model(shaken_run))
    theirs = CTranslate2Engine.load(exported)
    assert theirs.config == ours.config
    sources = _sources(200)
    expected = ours.translate(sources, beam, penalty)
    found = theirs.translate(sources, beam, penalty)
    same = sum(_same(a, b, penalty) for a, b in zip(found, expected, strict=True))
    assert same >= 199  # a tie may fall either way
    lengths = {len(best.ids) for best, *_ in found}
    assert len(lengths) > 10, "the model is to end its sentences at many lengths"
    assert {best.complete for best, *_ in found} == {True, False}


def test_the_cap_holds_for_both_engines(shaken_run: Path, exported: Path) -> None:
    ours = TorchEngine.of(load_model(shaken_run))
    theirs = CTranslate2Engine.load(exported)
    for cap in (1, 5, 1_000):
        expected = ours.translate(_sources(20), 3, 1.0, cap)
        found = theirs.translate(_sources(20), 3, 1.0, cap)
        assert all(map(_same, found, expected, [1.0] * 20))
        assert max(len(best.ids) for best, *_ in found) <= min(cap, 32)
    with pytest.raises(ValueError, match="beam is 0: give"):
        theirs.translate(_sources(1), 0)


def test_int8_is_smaller_and_close(
    tiny_run: Path, exported: Path, tmp_path: Path
) -> None:
    export.export_ctranslate2(tiny_run, tmp_path / "small", "int8")
    sizes = [
        (path / "model.bin").stat().st_size for path in (exported, tmp_path / "small")
    ]
    assert sizes[1] < 0.5 * sizes[0]
    texts = [source for source, _ in pairs()]
    ours = Translator.load(tiny_run).best(texts)
    theirs = Translator.load(tmp_path / "small", engine="ctranslate2").best(texts)
    assert sum(a == b for a, b in zip(ours, theirs, strict=True)) >= 60  # of 64


def test_the_folder_needs_nothing_beside_it(shaken_run: Path, exported: Path) -> None:
    config = json.loads((exported / "config.json").read_text("utf-8"))
    names = {path.name for path in exported.iterdir()} - {"config.json"}
    assert names == {
        "model.bin", "source.spm", "source_vocabulary.json", "source_words.txt",
        "target.spm", "target_vocabulary.json",
    }  # fmt: skip
    made = {name: sha256(exported / name) for name in EXPORTED}
    assert config["exported"] == made and names == {*made, *config["files"]}
    for name in ("source.spm", "target.spm", "source_words.txt"):
        assert (exported / name).read_bytes() == (shaken_run / name).read_bytes()
    assert config["quantization"] == "float32" and config["languages"] == ["en", "ja"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["none", "--to", "ctranslate2", "--out", "o"], "no model in none: train one"),
        (["run", "--to", "ctranslate2", "--out", "run"], "run is there already: give"),
        (["run", "--to", "ctranslate2", "--out", "no/o"], "there is no folder no"),
        (["run", "--to", "paper", "--out", "o"], "--to"),
        (["run", "--to", "ctranslate2"], "--out"),
        (["short", "--to", "ctranslate2", "--out", "o"], "short/model.safetensors is"),
        (["odd", "--to", "ctranslate2", "--out", "o"], "odd/source.spm is"),
    ],
)  # fmt: skip
def test_what_export_refuses(
    argv: list[str], message: str, tiny_run: Path, tmp_path: Path, capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name in ("run", "short", "odd"):
        shutil.copytree(tiny_run, name)
    weights = Path("short/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    shutil.copyfile("odd/target.spm", "odd/source.spm")
    before = sorted(tmp_path.rglob("*"))
    assert export.main(argv) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("model.export: ") and message in line
    assert sorted(tmp_path.rglob("*")) == before


def test_the_benchmark(
    tiny_run: Path, tiny_corpus: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(tiny_run), "--sentences", str(tiny_corpus), "--starts", "1"]
    monkeypatch.setattr(sys, "argv", ["export_parity", *words])
    assert export_parity._main() == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert heads == [
        "beam 1, 64 sentences:", "beam 4, 64 sentences:", "chrF on 64 sentences:",
        "cold start, medians of 1:",
    ]  # fmt: skip
    agree = [line.split()[1] for line in lines if line.startswith("  float32")]
    assert agree == ["64", "64"]
