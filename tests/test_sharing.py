"""Models as folders for the Hugging Face Hub: written, read, and fetched if asked."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from huggingface_hub import ModelCard
from sealing import change_config

import translate
from explain.translator import Translator
from model import export
from model.card import corpus_name
from model.checkpoint import sha256
from model.export import export_hub_folder

ROOT = Path(__file__).parent.parent
Said = pytest.CaptureFixture[str]
BIRD = "We see a red bird."
RED = "私たちは赤い鳥を見ます。"
COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture(scope="module")
def shared(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shared") / "tiny-birds"
    assert export.main([str(tiny_run), "--to", "hub-folder", "--out", str(out)]) == 0
    return out


def test_what_is_shared_and_what_is_not(tiny_run: Path, shared: Path) -> None:
    names = {path.name for path in shared.iterdir()}
    assert names == {
        "README.md", "config.json", "model.safetensors", "source.spm",
        "source_words.txt", "target.spm",
    }  # fmt: skip
    config = json.loads((shared / "config.json").read_text("utf-8"))
    for name, digest in config["files"].items():
        assert sha256(shared / name) == digest
    assert set(config["files"]) == {"source.spm", "source_words.txt", "target.spm"}
    theirs = json.loads((tiny_run / "config.json").read_text("utf-8"))
    assert config["model"] == theirs["model"] and config["recipe"] == theirs["recipe"]
    # Where a corpus lies on the machine of whoever trained is nobody's business.
    [(corpus, digest)] = theirs["corpora"].items()
    assert config["corpora"] == {"tiny.tsv": digest} and corpus.startswith("/")
    for name in ("config.json", "README.md"):
        assert str(Path(corpus).parent) not in (shared / name).read_text("utf-8")


def test_corpora_of_one_name_and_of_a_hub(tiny_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    corpora = {"/ann/a/x.tsv": "1", "/ann/b/x.tsv": "2", "hub:ann/pairs/en-ja": "3"}
    change_config(run, corpora=corpora)
    card = (run / "README.md").read_text("utf-8")
    assert "- Data: tiny.tsv; " in card and str(tmp_path) not in card.split("\n    ")[0]
    export_hub_folder(run, tmp_path / "shared")
    config = json.loads((tmp_path / "shared/config.json").read_text("utf-8"))
    named = {"x.tsv": "1", "x.tsv (2)": "2", "hub:ann/pairs/en-ja": "3"}
    assert config["corpora"] == named
    # A folder of that name is not the embedded corpus, however often it is shared.
    assert corpus_name("/ann/starter") == corpus_name("./starter") == "./starter"
    assert corpus_name("starter") == "starter"


def test_an_export_for_ctranslate2_keeps_paths_to_itself(
    tiny_run: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2")
    export.export_ctranslate2(tiny_run, tmp_path / "out")
    text = (tmp_path / "out" / "config.json").read_text("utf-8")
    theirs = json.loads((tiny_run / "config.json").read_text("utf-8"))
    [corpus] = theirs["corpora"]
    assert str(Path(corpus).parent) not in text
    assert not {"command", "argv"} & json.loads(text).keys()


def test_a_full_disk_is_not_the_hubs_fault(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "blobs/1")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    assert translate.main(["--model", "hub:ann/tiny-birds", BIRD]) == 2
    assert capsys.readouterr().err == (
        "translate.py: blobs/1: No space left on device: make room on that disk\n"
    )


def test_the_card(tiny_run: Path, shared: Path) -> None:
    card = ModelCard.load(shared / "README.md")
    lines = [json.loads(line) for line in (tiny_run / "metrics.jsonl").open("rb")]
    best = max(line["dev_chrf"] for line in lines if "dev_chrf" in line)
    assert card.data.language == ["en", "ja"] and card.data.license == "other"
    assert card.data.pipeline_tag == "translation" and "tiny-enja" in card.data.tags
    assert card.data.eval_results
    scores = {one.metric_type: one.metric_value for one in card.data.eval_results}
    assert scores["chrf"] == round(best, 1) and set(scores) == {"chrf", "bleu"}
    assert card.text.startswith("\n# tiny-birds\n") and "nrefs:1" in card.text
    assert "- Data: tiny.tsv; " in card.text
    assert "--model hub:OWNER/tiny-birds" in card.text


@pytest.mark.parametrize(
    ("config", "licence"),
    [
        ({"learned_from": ["starter"]}, "mit"),
        ({"learned_from": ["starter", "/ann/x.tsv"]}, "other"),
        ({"learned_from": ["/ann/starter"]}, "other"),
        # An older one names all that it read, or nothing.
        ({"corpora": {"starter:a.tsv": "0", "starter:b.tsv": "0"}}, "mit"),
        ({"corpora": {"starter:a.tsv": "0", "/ann/dev.tsv": "0"}}, "other"),
        ({}, "other"),
    ],
)
def test_the_licence_is_that_of_all_that_was_learned(
    config: dict[str, Any], licence: str, tiny_run: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    change_config(run, **{"corpora": None, "learned_from": None} | config)
    export_hub_folder(run, tmp_path / "shared")
    assert ModelCard.load(tmp_path / "shared" / "README.md").data.license == licence


@pytest.mark.parametrize(
    ("field", "value"),
    [("learned_from", "x.tsv"), ("learned_from", [1]), ("started_from", 5)],
)
def test_a_config_of_other_kinds_is_refused(
    field: str, value: object, tiny_run: Path, tmp_path: Path, capsys: Said
) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    change_config(run, **{field: value})
    assert translate.main(["--model", str(run), BIRD]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "config.json names no " in line


def test_a_licence_of_its_own(tiny_run: Path, tmp_path: Path) -> None:
    export_hub_folder(tiny_run, tmp_path / "named", "cc-by-2.0")
    found = ModelCard.load(tmp_path / "named" / "README.md").data
    assert found.license == "cc-by-2.0" and found.license_name is None


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["none", "--out", "o"], "no model in none: train one"),
        (["run", "--out", "run"], "run is there already: give another --out"),
        (["young", "--out", "o"], "young/README.md is not the one that training"),
        (["shared", "--out", "o"], "shared/metrics.jsonl is missing: share the run"),
        (["run", "--out", "o", "--license", "my own"], "--license my own: give an id"),
        (["run", "--out", "o", "--quantization", "int8"], "--quantization goes with"),
    ],
)
def test_what_is_not_shared(
    argv: list[str], message: str, tiny_run: Path, tmp_path: Path, capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name in ("run", "young", "shared"):
        shutil.copytree(tiny_run, name)
    Path("young/README.md").unlink()
    Path("shared/metrics.jsonl").unlink()
    before = sorted(tmp_path.rglob("*"))
    assert export.main([*argv, "--to", "hub-folder"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("model.export: ") and message in line
    assert sorted(tmp_path.rglob("*")) == before


def test_a_shared_folder_translates(shared: Path, translator: Translator) -> None:
    found = Translator.load(shared)
    assert [[best.text] for [best] in found.translate([BIRD])] == [[RED]]
    assert found.note.weights_sha256 == translator.note.weights_sha256


# --------------------------------------------------------------------- from the Hub


def _translate(
    flags: Sequence[str], home: Path, **settings: str
) -> "subprocess.CompletedProcess[str]":
    """Run translate.py as somebody whose cache of the Hub lies in a folder."""
    return subprocess.run(
        [sys.executable, "translate.py", *flags, BIRD], cwd=ROOT, text=True,
        capture_output=True, encoding="utf-8",
        env=os.environ | {"HF_HOME": str(home), "OMP_NUM_THREADS": "1"} | settings,
    )  # fmt: skip


def test_a_model_that_was_fetched_before(shared: Path, tmp_path: Path) -> None:
    """Laid out as huggingface_hub keeps a repository that it has fetched."""
    cached = tmp_path / "hub" / "models--ann--tiny-birds"
    shutil.copytree(shared, cached / "snapshots" / COMMIT)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(COMMIT)
    flags = ["--model", "hub:ann/tiny-birds"]
    done = _translate(flags, tmp_path, HF_HUB_OFFLINE="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, RED + "\n", "")
    # As well where the Hub is asked first, and nobody answers.
    done = _translate(flags, tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (0, RED + "\n")


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as a fetch asks for; its one model is a folder."""

    folder: Path
    asked: list[str]

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.asked.append(path)
        api, files = "/api/models/ann/tiny-birds", f"/ann/tiny-birds/resolve/{COMMIT}/"
        if path in {api, f"{api}/revision/main"}:
            self._send_json({"id": "ann/tiny-birds", "sha": COMMIT})
        elif path == f"{api}/tree/{COMMIT}":
            self._send_json([self._entry(found) for found in self.folder.iterdir()])
        elif path.startswith(files):
            found = self.folder / path.removeprefix(files)
            self._send(found.read_bytes(), ETag=f'"{self._entry(found)["oid"]}"')
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()

    do_HEAD = do_GET

    def _entry(self, path: Path) -> dict[str, Any]:
        oid = hashlib.sha1(path.read_bytes()).hexdigest()
        size = path.stat().st_size
        return {"type": "file", "path": path.name, "oid": oid, "size": size}

    def _send_json(self, content: Any) -> None:
        self._send(json.dumps(content).encode(), **{"Content-Type": "application/json"})

    def _send(self, content: bytes, **headers: str) -> None:
        self.send_response(200)
        sizes = {"Content-Length": str(len(content)), "X-Repo-Commit": COMMIT}
        for name, value in (sizes | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(shared: Path, tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    folder = Path(shutil.copytree(shared, tmp_path / "served"))
    (folder / "pytorch_model.bin").write_bytes(b"a pickle that nobody asked for")
    handler = type("Served", (Hub,), {"folder": folder, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_model_is_fetched(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    settings = {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = _translate(["--model", "hub:ann/tiny-birds"], tmp_path, **settings)
    assert (done.returncode, done.stdout) == (0, RED + "\n"), done.stderr
    asked = " ".join(vars(hub.RequestHandlerClass)["asked"])
    assert "model.safetensors" in asked and "pytorch_model.bin" not in asked
    done = _translate(["--model", "hub:ann/secret"], tmp_path, **settings)
    [line] = done.stderr.splitlines()
    assert "the Hub has no model ann/secret that you may read: check" in line
    hub.shutdown()  # and now without a network
    hub.server_close()
    done = _translate(["--model", "hub:ann/tiny-birds"], tmp_path, **settings)
    assert (done.returncode, done.stdout) == (0, RED + "\n"), done.stderr


@pytest.mark.parametrize(
    "settings", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}]
)
def test_the_hub_out_of_reach(settings: dict[str, str], tmp_path: Path) -> None:
    done = _translate(["--model", "hub:ann/tiny-birds"], tmp_path, **settings)
    assert done.returncode == 2 and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("translate.py: hub:ann/tiny-birds is not on this machine")
    assert line.endswith("go online, or name a folder")


@pytest.mark.parametrize("name", ["hub:", "hub:ann", "hub:ann/a/b", "hub:ann/日本"])
def test_names_that_are_none(name: str, capsys: Said) -> None:
    assert translate.main(["--model", name, BIRD]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("names no model: give hub:owner/name")
