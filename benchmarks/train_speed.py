"""Training speed beside `torch.nn.Transformer` and MarianMT of the same shape.

    python -m benchmarks.train_speed

Every contender trains on the same batches of 4,096 tokens, sources and targets
together, with AdamW and the same rate of dropout, in a process of its own; they take
turns, and the median of their turns counts. A peer is put together as its makers
advise, gets its batches without needless padding, and the faster of fp32 and bf16
autocast counts (where the processor does not multiply bf16, fp32 for all). What makes
the difference belongs to the comparison: a packed stream of tokens, bf16 weights in
place of autocast, one row of random numbers for all of a pass's dropout and none on
attention weights and inside feed-forward blocks, which are one operation each, explicit
attention, a softmax in place of the logits, and memory that is kept between steps.

Some of that a peer can have without any code of ours, and so each is measured with it,
too ("helped"): both with memory kept; torch with dropout only where ours has it,
without a mask that changes no loss, and in bf16 without its fused attention; MarianMT
with attention written out. The first batches, in which most shapes are new, count for
none.

Beside the rates stands the share of what the machine's products reach alone, measured
between the turns. A step's floating-point operations are those of its products with
weights, for real tokens: 2 for each weight and token forwards and 4 backwards;
attention's own products, look-ups and all else count nothing. Exits with 1 where a bar
is missed.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch

from benchmarks.peers import Marian, TorchTransformer, training_step
from benchmarks.processes import figures_of
from data.batching import Batch, EncodedPairs, encode_pairs, make_batch, plan_batches
from model.command import parse, run
from model.config import ModelConfig
from model.hardware import DTYPES, hardware_precisions
from model.memory import tune_memory
from model.training import Recipe, TrainingState
from model.transformer import Transformer

Contender = Literal[
    "ours", "torch fp32", "torch bf16", "MarianMT fp32", "MarianMT bf16",
    "torch, helped", "MarianMT, helped",
]  # fmt: skip
FASTEST = hardware_precisions("cpu")[-1]
"""The precision of ours, of peers that are helped and of the product alone."""
CONTENDERS: tuple[Contender, ...] = tuple(
    name for name in get_args(Contender) if "bf16" not in name or FASTEST == "bf16"
)
PEERS = ("torch", "MarianMT")
VOCABULARY, DROPOUT, BATCH_TOKENS = 4_000, 0.1, 4_096
BAR = 2.2


@dataclass(frozen=True)
class Shape:
    """A shape to measure, and what is asked of it."""

    width: int
    encoder_layers: int
    decoder_layers: int
    feed_forward: int
    share: float
    """Of the rate of products alone."""

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

    def operations(self) -> tuple[int, int]:
        """Return the floating-point operations of a source and of a target token."""
        attention, block = 4 * self.width**2, 2 * self.width * self.feed_forward
        memory = 2 * self.width**2 * self.decoder_layers  # keys and values of it
        source = (attention + block) * self.encoder_layers + memory
        decoder = (attention + attention // 2 + block) * self.decoder_layers
        return 6 * source, 6 * (decoder + self.width * VOCABULARY)


SHAPES = (Shape(256, 3, 3, 1024, share=0.55), Shape(128, 3, 2, 512, share=0.35))


@dataclass(frozen=True)
class Arguments:
    """Measure training speed beside torch.nn.Transformer and MarianMT."""

    turns: int = 3
    """How often each contender is measured."""
    seconds: float = 8.0
    """How long each turn lasts, its warm-up not counted."""
    only: Contender | None = None
    """Measure this one, once, and print its target tokens a second."""
    width: Literal[256, 128] = 256
    """With --only: which shape."""


def corpus() -> EncodedPairs:
    """Return random sentences with lengths like Tatoeba's, the same at every call."""
    random = np.random.default_rng(0)
    # Tokens of Tatoeba's pairs in the `small` preset's vocabularies: logarithms.
    mean, deviation, correlation = 2.25, 0.33, 0.72
    covariance = deviation**2 * np.array([[1, correlation], [correlation, 1]])
    logs = random.multivariate_normal([mean, mean], covariance, 80_000)
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
        state = TrainingState(Transformer(config), recipe, FASTEST)
        return lambda b: state.train_step(b.source, b.target_in, b.target_out, 10**6)
    peer = Marian if contender.startswith("MarianMT") else TorchTransformer
    helped = contender.endswith("helped")
    model = peer(config, helped).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    autocast = "bf16" in contender or helped and FASTEST == "bf16"
    return training_step(model, optimizer, recipe, autocast)


def measure(contender: Contender, shape: Shape, seconds: float) -> float:
    """Return a contender's target tokens a second."""
    if contender == "ours" or contender.endswith("helped"):
        tune_memory()
    pairs, step = corpus(), step_of(contender, shape.config())
    batches = plan_batches(pairs, BATCH_TOKENS, np.random.default_rng(1))
    for rows in batches[:WARM_UP]:
        step(make_batch(pairs, rows, padding=0))
    began, tokens = time.perf_counter(), 0
    for rows in batches[WARM_UP:]:
        batch = make_batch(pairs, rows, padding=0)
        step(batch)
        tokens += batch.target_tokens
        if time.perf_counter() - began > seconds:
            break
    return tokens / (time.perf_counter() - began)


WARM_UP = 50


def product_rate(rows: int, columns: int, inner: int, seconds: float = 1.0) -> float:
    """Return the floating-point operations a second of one product, repeated.

    It is written into the same memory each time, else getting that takes part of it.
    """
    dtype = DTYPES[FASTEST]
    x, y = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
    product = torch.empty(rows, columns, dtype=dtype)
    for _ in range(3):
        torch.mm(x, y, out=product)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        torch.mm(x, y, out=product)
        count += 1
    return 2 * rows * columns * inner * count / (time.perf_counter() - began)


def compare(shape: Shape, turns: int, seconds: float) -> bool:
    """Print the medians at one shape; return whether every bar is met."""
    rates: dict[Contender, list[float]] = {name: [] for name in CONTENDERS}
    products = []
    for _ in range(turns):
        for name in CONTENDERS:
            rates[name].append(_in_own_process(name, shape, seconds))
            if name == "ours":
                products.append(product_rate(2_048, shape.feed_forward, shape.width))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    layers = f"{shape.encoder_layers}+{shape.decoder_layers} layers"
    print(f"width {shape.width}, {layers}, feed-forward {shape.feed_forward}:")
    for name, median in medians.items():
        print(
            f"  {name:<24} {median:9,.0f} target tokens/s   {rates_text(rates[name])}"
        )
    met = True
    for peer in PEERS:
        rates_of = {name: rate for name, rate in medians.items() if peer in name}
        helped = medians["ours"] / max(rates_of.values())
        del rates_of[f"{peer}, helped"]
        ratio = medians["ours"] / max(rates_of.values())
        print(f"  {ratio:.2f} times {peer} (bar {BAR}), {helped:.2f} times it helped")
        met &= ratio >= BAR
    return _print_share(shape, medians["ours"], statistics.median(products)) and met


def _print_share(shape: Shape, rate: float, product: float) -> bool:
    """Print which share of a product's rate a training reaches; is the bar met?"""
    pairs = corpus()
    sources = pairs.source.lengths.sum() / (pairs.target.lengths - 1).sum()
    of_source, of_target = shape.operations()
    operations = rate * (of_target + of_source * sources)
    share = operations / product
    square = product_rate(1_024, 1_024, 1_024)
    print(
        f"  {operations / 1e9:.0f} GFLOP/s: {share:.0%} of the {product / 1e9:.0f} of "
        f"(2,048 x {shape.width}) by ({shape.width} x {shape.feed_forward}) alone (bar "
        f"{shape.share:.0%}); (1,024 x 1,024) by (1,024 x 1,024): {square / 1e9:.0f}",
        flush=True,
    )
    return bool(share >= shape.share)


def rates_text(rates: list[float]) -> str:
    """Return the turns' own figures."""
    return "turns: " + ", ".join(f"{rate:,.0f}" for rate in rates)


def _in_own_process(contender: Contender, shape: Shape, seconds: float) -> float:
    flags = ["--only", contender, "--width", str(shape.width)]
    flags += ["--seconds", str(seconds)]
    return float(figures_of("benchmarks.train_speed", *flags))


def _main() -> int:
    arguments = parse(Arguments, None, "-m benchmarks.train_speed")
    if arguments.only is not None:
        shape = next(shape for shape in SHAPES if shape.width == arguments.width)
        print(measure(arguments.only, shape, arguments.seconds))
        return 0
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    met = [compare(shape, arguments.turns, arguments.seconds) for shape in SHAPES]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(run(_main, "train_speed"))
