"""What a translation imports, since each module is paid for before the first word."""

import subprocess
import sys
from pathlib import Path

import pytest

from model.export import export_ctranslate2

ROOT = Path(__file__).parent.parent
SENTENCE = "We see a red bird."


def _imported(flags: list[str]) -> set[str]:
    """Return the modules that translate.py has imported when it is done."""
    code = (
        f"import sys, translate; assert translate.main({flags!r}) == 0;"
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True
    )
    return set(done.stderr.decode().split())


def test_a_plain_translation_imports_little(tiny_run: Path) -> None:
    found = _imported(["--model", str(tiny_run), SENTENCE])
    needless = {"datasets", "pyarrow", "sacrebleu", "matplotlib", "torch._dynamo"}
    assert "torch" in found and not found & needless


def test_a_translation_by_ctranslate2_does_without_torch(
    tiny_run: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2")
    export_ctranslate2(tiny_run, tmp_path / "out")
    flags = ["--engine", "ctranslate2", "--model", str(tmp_path / "out"), "--beam", "4"]
    found = _imported([*flags, SENTENCE])
    heavy = {"torch", "datasets", "pyarrow", "sacrebleu", "safetensors", "numpy"}
    assert "ctranslate2" in found and not found & heavy
