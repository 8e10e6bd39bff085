"""What each trick for training speed does to what is learned.

    python -m benchmarks.tricks

Trains the starter corpus's model for some hundred steps with every trick on, then with
one after another switched off, from the same seeds: the plain way to compute the same
thing takes its place. Prints the dev losses, without smoothing, and the target tokens a
second. A trick that only orders arithmetic otherwise changes the last bits alone; one
that draws random numbers otherwise (dropout), or rounds (bf16), may differ as much as
two seeds do. Kept memory is left out, since it changes no number; so are rows in
multiples of 32, since they make batches a little smaller. Exits with 1 where a trick
costs more than three standard errors of the mean difference, and more than 0.001.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

import model.loss as model_loss
from data.batching import epochs, make_batch
from data.preparation import Material, prepare
from data.tokenizer import PADDING
from model.attention import NO_TRACE, Trace
from model.command import parse, run
from model.engine import Precision
from model.hardware import hardware_precisions
from model.memory import tune_memory
from model.optimizer import orthogonalise
from model.packing import Packing, draw_mask
from model.presets import PRESETS
from model.training import TrainingState
from model.transformer import Transformer
from train import dev_loss

NOTHING = 0.001
"""A difference in loss that counts for none, however even it is between seeds."""


@dataclass(frozen=True)
class Arguments:
    """Switch off one trick for training speed after another."""

    steps: int = 400
    """How long to train."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Where each training starts from."""
    corpus: str = "starter"
    """What to train on, with the tiny preset's shape."""
    optimizer: Literal["adamw", "muon"] = "muon"
    """adamw: the tiny preset's recipe."""
    only: str | None = None
    """Switch off this trick alone, named as it is printed."""

    def __post_init__(self) -> None:
        if len(self.seeds) < 2:
            raise ValueError("one seed shows no noise: name two with --seeds")
        if self.only not in {None, *OFF}:
            raise ValueError(f"no trick is named {self.only!r}: there is {list(OFF)}")
        if self.only == "bf16" and "bf16" not in hardware_precisions("cpu"):
            raise ValueError("this processor has no bf16 to switch off")


def padded_loss(
    model: Transformer,
    source: Tensor,
    target_in: Tensor,
    target_out: Tensor,
    label_smoothing: float = 0.0,
) -> Tensor:
    """`batch_loss` over padded sentences in place of a packed stream of tokens."""
    mask = model.source_mask(source)
    hidden = model.decode(target_in, model.encode(source), mask)
    real = target_out != PADDING
    weight, truth = model.target_embedding.weight, target_out[real]
    return model_loss.linear_cross_entropy(
        hidden[real], weight, truth, len(truth), label_smoothing
    )


def mask_of_its_own(
    x: Tensor, probability: float, packing: Packing | None = None
) -> Tensor:
    """`dropout_mask` of numbers that no other mask is cut from."""
    return draw_mask(x.new_empty(x.numel()), probability).view_as(x)


def mask_of_bernoulli(numbers: Tensor, probability: float) -> Tensor:
    """`draw_mask` with torch's own random numbers."""
    return F.dropout(torch.ones_like(numbers), probability)


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, trace: Trace = NO_TRACE
) -> Tensor:
    """`attention` by torch's own kernel."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def plain_feed_forward(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor
) -> Tensor:
    """`feed_forward` by torch's own operations."""
    return F.linear(F.linear(x, w1, b1).relu(), w2, b2)


def plain_cross_entropy(
    hidden: Tensor, weight: Tensor, truth: Tensor, real: int, label_smoothing: float
) -> Tensor:
    """`linear_cross_entropy` by torch's own."""
    logits = F.linear(hidden[:real], weight).float()
    return F.cross_entropy(logits, truth[:real], label_smoothing=label_smoothing)


def one_after_another(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """`orthogonalise` for one matrix at a time."""
    return torch.cat([orthogonalise(matrix[None], dtype) for matrix in matrices])


OFF: dict[str, dict[str, object]] = {
    "a packed stream of tokens": {"model.training.batch_loss": padded_loss},
    "shapes that recur": {
        "data.batching.COLUMNS": 1,
        "data.batching.FEWEST_COLUMNS": 1,
        "model.packing.ROUND": 1,
        "model.packing.LITTLE": 1,
    },
    "one row of numbers for a pass's dropout": {
        "model.layers.dropout_mask": mask_of_its_own,
        "model.transformer.dropout_mask": mask_of_its_own,
    },
    "masks from 16 random bits": {"model.packing.draw_mask": mask_of_bernoulli},
    "explicit attention": {"model.attention.attention": fused_attention},
    "a feed-forward block as one operation": {
        "model.layers.feed_forward": plain_feed_forward
    },
    "a softmax in place of logits": {
        "model.loss.linear_cross_entropy": plain_cross_entropy
    },
    "matrices of one shape together (Muon)": {
        "model.optimizer.orthogonalise": one_after_another
    },
    "bf16": {},
}
"""What takes the place of what, by the trick that it switches off."""


@contextmanager
def switched_off(trick: str) -> Iterator[None]:
    """Let the plain way stand in for a trick."""
    with ExitStack() as patches:
        for name, plain in OFF.get(trick, {}).items():
            patches.enter_context(patch(name, plain))
        yield


def train(
    material: Material, arguments: Arguments, seed: int, precision: Precision
) -> tuple[float, float]:
    """Return the dev loss after some steps, and target tokens a second."""
    preset = PRESETS["tiny"]
    recipe = replace(preset.recipe, warmup=100)
    if arguments.optimizer == "muon":
        recipe = replace(recipe, optimizer="muon", learning_rate=2e-3)
    torch.manual_seed(seed)
    model = Transformer(preset.shape.config(len(material.source), len(material.target)))
    state, tokens = TrainingState(model, recipe, precision), 0
    began = time.perf_counter()
    order = epochs(material.train, recipe.batch_tokens, seed)
    for _, rows in islice(order, arguments.steps):
        batch = make_batch(material.train, rows, PADDING)
        ids = (batch.source, batch.target_in, batch.target_out)
        state.train_step(*ids, arguments.steps)
        tokens += batch.target_tokens
    rate = tokens / (time.perf_counter() - began)
    return dev_loss(state.averaged, material.dev_encoded), rate


def _main() -> int:
    arguments = parse(Arguments, None, "-m benchmarks.tricks")
    tune_memory()
    shape = PRESETS["tiny"].shape
    material = prepare(
        [arguments.corpus], None, None, reverse=False, vocabulary=shape.vocabulary,
        max_length=shape.max_length, seed=1, say=print,
    )  # fmt: skip
    fastest = hardware_precisions("cpu")[-1]
    everything, worst = _row("every trick on", material, arguments, fastest), 0.0
    for trick in OFF if arguments.only is None else [arguments.only]:
        precision: Precision = "fp32" if trick == "bf16" else fastest
        if trick == "bf16" and fastest == "fp32":
            continue
        with switched_off(trick):
            losses = _row(f"without {trick}", material, arguments, precision)
        gained = [on - off for on, off in zip(everything, losses, strict=True)]
        error = statistics.stdev(gained) / len(gained) ** 0.5
        worst = max(worst, statistics.mean(gained) - max(3 * error, NOTHING))
        print(
            f"{'':<6}the trick costs {statistics.mean(gained):+.4f} of dev loss, "
            f"standard error {error:.4f}"
        )
    return int(worst > 0)


def _row(
    name: str, material: Material, arguments: Arguments, precision: Precision
) -> list[float]:
    """Train from each seed; print and return the dev losses."""
    found = [train(material, arguments, seed, precision) for seed in arguments.seeds]
    losses, rates = [loss for loss, _ in found], [rate for _, rate in found]
    listed = ", ".join(f"{loss:.4f}" for loss in losses)
    rate = statistics.median(rates)
    print(f"{name:<46} {listed}   {rate:8,.0f} target tokens/s", flush=True)
    return losses


if __name__ == "__main__":
    sys.exit(run(_main, "benchmarks.tricks"))
