"""A long training needs no more memory at its end than at its beginning."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data.metrics import score
from model.memory import tune_memory

ROOT = Path(__file__).parents[1]
FLAGS = ("--steps=4000", "--validations=10", "--width=64", "--feed-forward=128")
WATCHED = """
import json, sys, torch, train
from pathlib import Path
from model.training import TrainingState
torch.set_num_threads(1)
step, sizes = TrainingState.train_step, []
def watched(*values):
    sizes.append(int(Path("/proc/self/statm").read_text("utf-8").split()[1]))
    return step(*values)
TrainingState.train_step = watched
code = train.main(sys.argv[2:])
Path(sys.argv[1]).write_text(json.dumps(sizes[-4000:]), "utf-8")
sys.exit(code)
"""


def _tokenizers() -> int:
    gc.collect()
    kinds = [type(found).__name__ for found in gc.get_objects()]
    return kinds.count("TokenizerJaMecab")


def test_scoring_leaves_one_tokenizer_at_most() -> None:
    before = _tokenizers()
    for _ in range(3):
        score(["猫が寝る。"], ["猫が寝る。"], "ja")
    assert _tokenizers() <= before + 1


def test_an_old_c_library_is_asked_for_as_much_as_it_grants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """glibc before 2.35 refuses, with a 0, a threshold above half of a heap."""
    granted = {}

    def mallopt(name: int, value: int) -> int:
        if name == -3 and value > most:
            return 0
        granted[name] = value
        return 1

    monkeypatch.setattr("model.memory._c_function", lambda _: mallopt)
    most = 32 << 20
    tune_memory()
    assert granted == {-3: 32 << 20, -1: 2**31 - 1, -2: 64 << 20}
    granted.clear()
    most = 0
    tune_memory()
    assert granted == {}


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="no /proc here")
def test_memory_stays_over_4000_steps(tmp_path: Path) -> None:
    """It rises until every usual shape has been met, in some 2,000 steps, and stays."""
    command = [sys.executable, "-c", WATCHED, str(tmp_path / "sizes.json"), *FLAGS]
    subprocess.run([*command, "--out", str(tmp_path / "run")], cwd=ROOT, check=True,
                   env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    pages = json.loads((tmp_path / "sizes.json").read_text("utf-8"))
    assert len(pages) == 4_000
    # Between the fourth and the fifth validation, and between the last two.
    early, late = max(pages[1_600:2_000]), max(pages[3_600:])
    page = os.sysconf("SC_PAGE_SIZE")
    print(f"memory: {early * page / 1e6:,.0f} MB after the fourth validation, "
          f"{late * page / 1e6:,.0f} MB after the ninth")  # fmt: skip
    assert late < 1.03 * early
