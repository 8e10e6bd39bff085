"""Several real processes train as one does, over gloo."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from model.distributed import ProcessLost, joined_processes, lost_process

ROOT = Path(__file__).parent.parent


def torchrun(count: int, *arguments: object, **more: Any) -> Any:
    """Start some processes with torchrun and wait for them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
    return subprocess.run(
        [*command, str(count), *map(str, arguments)],
        capture_output=True, text=True, cwd=ROOT, timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, **more,
    )  # fmt: skip


def _found(
    path: Path, count: int, accumulate: int, precision: str = "fp32"
) -> dict[str, Any]:
    ran = torchrun(count, "tests/distributed_worker.py", path, accumulate, precision)
    assert ran.returncode == 0, ran.stderr
    saved: dict[str, Any] = torch.load(path, weights_only=True)
    return saved


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process comes to, which takes each batch whole, in fp32."""
    return _found(tmp_path_factory.mktemp("alone") / "found.pt", 1, 1)


@pytest.mark.parametrize(
    ("count", "accumulate", "precision"),
    [(1, 3, "fp32"), (2, 1, "fp32"), (4, 1, "fp32"), (2, 2, "fp32"), (2, 1, "bf16")],
)
def test_many_processes_and_pieces_learn_as_one(
    alone: dict[str, Any], tmp_path: Path, count: int, accumulate: int, precision: str
) -> None:
    found = _found(tmp_path / "found.pt", count, accumulate, precision)
    bounds = {"fp32": (1e-5, 1e-3, 1e-4), "bf16": (0.1, 0.1, 0.02)}[precision]
    for kind, most in zip(("gradients", "weights"), bounds, strict=False):
        assert found[kind].keys() == alone[kind].keys()
        for name, wanted in alone[kind].items():
            difference = (found[kind][name] - wanted).norm() / wanted.norm()
            assert difference < most, (kind, name)
    assert found["losses"] == pytest.approx(alone["losses"], abs=bounds[2])
    assert alone["losses"][-2] < alone["losses"][0]


@pytest.mark.parametrize(
    ("gpus", "remedy"),
    [
        (0, "start a training with --device cpu"),
        (1, "start torchrun --nproc-per-node 1, or"),
    ],
)
def test_a_process_without_a_gpu(
    gpus: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    with (
        pytest.raises(ValueError, match=remedy),
        joined_processes("cuda"),
    ):
        pass


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("[gloo/transport/tcp/pair.cc:547] Connection closed by peer", True),
        ("NCCL communicator was aborted on rank 1.", True),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_a_process_that_is_lost_is_said_in_one_line(said: str, lost: bool) -> None:
    kind = ProcessLost if lost else RuntimeError
    with pytest.raises(kind) as raised, lost_process():
        raise RuntimeError(said)
    assert ("another process of this training has ended" in str(raised.value)) == lost


@pytest.mark.parametrize("device", ["mps", "cuda:1"])
def test_devices_that_several_processes_cannot_share(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=device), joined_processes(device):
        pass
