"""What a translation imports, since each module is paid for before the first word."""

import subprocess
import sys
from pathlib import Path

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
