"""Training speed beside `torch.nn.Transformer` of the same shape.

    python -m benchmarks.train_speed

Every contender trains on the same batches, with AdamW and the same rate of dropout, in
a process of its own; they take turns, and the median of their turns counts. The peer is
put together as its tutorial does, and given the faster of fp32 and bf16 autocast. What
makes the difference belongs to the comparison: bf16 weights in place of autocast, one
dropout mask for all positions and none on attention weights, explicit attention, logits
of real tokens only, a cross-entropy in pieces, and memory that is kept between steps.
The last helps the peer as well, so it is measured with it, too. Exits with 1 where ours
over the peer as it comes is below the bar.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from data.batching import Batch, EncodedPairs, encode_pairs, make_batch, plan_batches
from model.command import parse, run
from model.config import ModelConfig
from model.layers import sinusoidal_positions
from model.training import Recipe, TrainingState, tune_memory
from model.transformer import Transformer

Contender = Literal["ours", "torch fp32", "torch bf16", "torch bf16, memory kept"]
CONTENDERS: tuple[Contender, ...] = get_args(Contender)
VOCABULARY, DROPOUT, BATCH_TOKENS = 4_000, 0.1, 4_096


@dataclass(frozen=True)
class Shape:
    """A shape to measure, and the ratio to torch that is asked of it."""

    width: int
    encoder_layers: int
    decoder_layers: int
    feed_forward: int
    bar: float

    def config(self) -> ModelConfig:
        return ModelConfig(
            VOCABULARY,
            VOCABULARY,
            width=self.width,
            encoder_layers=self.encoder_layers,
            decoder_layers=self.decoder_layers,
            feed_forward=self.feed_forward,
            dropout=DROPOUT,
        )


SHAPES = (Shape(256, 3, 3, 1024, bar=1.35), Shape(128, 3, 2, 512, bar=1.5))


@dataclass(frozen=True)
class Arguments:
    """Measure training speed beside torch.nn.Transformer."""

    turns: int = 3
    """How often each contender is measured."""
    seconds: float = 8.0
    """How long each turn lasts, its warm-up not counted."""
    only: Contender | None = None
    """Measure this one, once, and print its target tokens a second."""
    width: int = 256
    """With --only: which shape."""


class Peer(nn.Module):
    """The same model from torch's own parts, as its tutorial puts them together."""

    positions: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.source = nn.Embedding(config.source_vocabulary, config.width)
        self.target = nn.Embedding(config.target_vocabulary, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.Transformer(
            config.width,
            config.heads,
            config.encoder_layers,
            config.decoder_layers,
            config.feed_forward,
            config.dropout,
            batch_first=True,
            norm_first=True,
        )
        positions = sinusoidal_positions(config.max_length, config.width)
        self.register_buffer("positions", positions)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding = self.config.padding_id
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1]).isinf()
        hidden = self.layers(
            self._embed(self.source, source),
            self._embed(self.target, target),
            tgt_mask=causal,
            src_key_padding_mask=source == padding,
            tgt_key_padding_mask=target == padding,
            memory_key_padding_mask=source == padding,
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.target.weight)

    def _embed(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        x = embedding(ids) * self.config.width**0.5 + self.positions[: ids.shape[1]]
        embedded: Tensor = self.dropout(x)
        return embedded


def corpus() -> EncodedPairs:
    """Return random sentences with lengths like Tatoeba's, the same at every call."""
    random = np.random.default_rng(0)
    # Tokens of Tatoeba's pairs in the `small` preset's vocabularies: logarithms.
    mean, deviation, correlation = 2.25, 0.33, 0.72
    covariance = deviation**2 * np.array([[1, correlation], [correlation, 1]])
    logs = random.multivariate_normal([mean, mean], covariance, 20_000)
    lengths = np.clip(np.exp(logs), 2, 60).round().astype(int)
    sides = [
        [random.integers(4, VOCABULARY, n).tolist() for n in lengths[:, side]]
        for side in (0, 1)
    ]
    return encode_pairs(*sides, start=1, end=2)


def step_of(contender: Contender, config: ModelConfig) -> Callable[[Batch], object]:
    """Return one training step of a contender."""
    torch.manual_seed(1)
    recipe = Recipe(learning_rate=1e-4)
    if contender == "ours":
        precision = "bf16" if _has_bf16() else "fp32"
        state = TrainingState(Transformer(config), recipe, precision)
        return lambda b: state.train_step(b.source, b.target_in, b.target_out, 10**6)
    model = Peer(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled="bf16" in contender)

    def step(batch: Batch) -> None:
        with autocast:
            logits = model(batch.source, batch.target_in)
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                batch.target_out.flatten(),
                ignore_index=config.padding_id,
                label_smoothing=recipe.label_smoothing,
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_clip)
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(contender: Contender, shape: Shape, seconds: float) -> float:
    """Return a contender's target tokens a second."""
    if contender in {"ours", "torch bf16, memory kept"}:
        tune_memory()
    pairs, step = corpus(), step_of(contender, shape.config())
    batches = plan_batches(pairs, BATCH_TOKENS, np.random.default_rng(1))
    for rows in batches[:3]:
        step(make_batch(pairs, rows, padding=0))
    began, tokens = time.perf_counter(), 0
    for rows in batches[3:]:
        batch = make_batch(pairs, rows, padding=0)
        step(batch)
        tokens += batch.target_tokens
        if time.perf_counter() - began > seconds:
            break
    return tokens / (time.perf_counter() - began)


def compare(shape: Shape, turns: int, seconds: float) -> float:
    """Print the medians at one shape; return ours over the best of torch."""
    rates: dict[Contender, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(turns):
        for name in CONTENDERS:
            rates[name].append(_in_own_process(name, shape, seconds))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    ratio = medians["ours"] / max(medians["torch fp32"], medians["torch bf16"])
    layers = f"{shape.encoder_layers}+{shape.decoder_layers} layers"
    print(f"width {shape.width}, {layers}, feed-forward {shape.feed_forward}:")
    for name, median in medians.items():
        print(
            f"  {name:<24} {median:9,.0f} target tokens/s   {rates_text(rates[name])}"
        )
    kept = medians["ours"] / medians["torch bf16, memory kept"]
    print(
        f"  ratio {ratio:.2f} (bar {shape.bar}); {kept:.2f} with memory kept",
        flush=True,
    )
    return ratio


def rates_text(rates: list[float]) -> str:
    """Return the turns' own figures."""
    return "turns: " + ", ".join(f"{rate:,.0f}" for rate in rates)


def _in_own_process(contender: Contender, shape: Shape, seconds: float) -> float:
    command = [sys.executable, "-m", "benchmarks.train_speed", "--only", contender]
    command += ["--width", str(shape.width), "--seconds", str(seconds)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(printed))


def _has_bf16() -> bool:
    from model.training import hardware_precisions

    return "bf16" in hardware_precisions("cpu")


def _main() -> int:
    arguments = parse(Arguments, None, "-m benchmarks.train_speed")
    if arguments.only is not None:
        shape = next(shape for shape in SHAPES if shape.width == arguments.width)
        print(measure(arguments.only, shape, arguments.seconds))
        return 0
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    ratios = [compare(shape, arguments.turns, arguments.seconds) for shape in SHAPES]
    met = all(ratio >= shape.bar for ratio, shape in zip(ratios, SHAPES, strict=True))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(run(_main, "train_speed"))
