"""Train a tiny model for some steps and save what came of it; for torchrun.

torchrun --nproc-per-node 2 tests/distributed_worker.py OUT ACCUMULATE fp32|bf16
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from model.config import ModelConfig
from model.distributed import Processes, joined_processes
from model.engine import Precision
from model.training import Recipe, TrainingState
from model.transformer import Transformer

STEPS = 10


def batch(step: int, rows: int = 30) -> list[torch.Tensor]:
    """Return pairs of unlike lengths: source, target_in and target_out."""
    generator = torch.Generator().manual_seed(step)
    ids = [torch.zeros(rows, 9, dtype=torch.long) for _ in range(3)]
    for row in range(rows):
        s, t = torch.randint(1, 8, (2,), generator=generator).tolist()
        ids[0][row, : s + 1] = torch.randint(4, 40, (s + 1,), generator=generator)
        ids[0][row, s] = 2
        target = torch.randint(4, 50, (t,), generator=generator)
        ids[1][row, 0], ids[1][row, 1 : t + 1] = 1, target
        ids[2][row, :t], ids[2][row, t] = target, 2
    return ids


def main() -> None:
    with joined_processes() as processes:
        train(processes, *sys.argv[1:])


def train(processes: Processes, out: str, accumulate: str, precision: str) -> None:
    torch.manual_seed(1)
    config = ModelConfig(40, 50, width=32, heads=4, feed_forward=48, dropout=0.0)
    recipe = Recipe(learning_rate=1e-3, warmup=2, accumulate=int(accumulate),
                    gradient_clip=1e9)  # fmt: skip
    chosen: Precision = "bf16" if precision == "bf16" else "fp32"
    state = TrainingState(Transformer(config), recipe, chosen, processes)
    source, target_in, target_out = batch(0)
    state._backward(source, target_in, target_out)
    gradients = {n: p.grad.float() for n, p in state.working.named_parameters()}
    state._zero_gradients()
    # Two rows only for the last step: with four processes two of them have none.
    losses = [state.train_step(*batch(step, rows=30 if step < STEPS - 1 else 2),
                               steps=100) for step in range(STEPS)]  # fmt: skip
    if processes.is_first:
        weights = dict(state.model.named_parameters())
        saved = {"gradients": gradients, "losses": losses, "weights": weights}
        torch.save(saved, out)


if __name__ == "__main__":
    main()
