"""torch.nn.Transformer, trained in a preset's shape on the same text for the same time.

    python -m benchmarks.train_peer --corpus train.tsv --dev dev.tsv --minutes 10 \\
        --translate test.tsv --out torch.txt

Put together and trained as torch's tutorial advises (`benchmarks.peers`), with AdamW at
the learning rate named: a warm-up, then a straight fall to 0 at the end of the time.
Text, tokenizers (without subword dropout), batches and search are this project's own,
precision is the faster of fp32 and bf16 autocast, and no time goes into validations on
the way. Prints the scores
on dev; `benchmarks.quality` compares what it writes.
"""

import copy
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.peers import PADDING, TorchTransformer, training_step
from data.batching import epochs, make_batch
from data.metrics import score
from data.preparation import Material, prepare
from explain.translator import Translator
from model.command import parse, run
from model.engine import Hypothesis, batches, in_order
from model.hardware import hardware_precisions
from model.memory import tune_memory
from model.presets import PRESETS, PresetName
from model.search import search
from model.training import Recipe

BEGAN = time.perf_counter()
TRIAL_STEPS = 8
DEV = 500


@dataclass(frozen=True)
class Arguments:
    """Train torch.nn.Transformer in place of our model."""

    corpus: tuple[str, ...]
    """What to learn from."""
    dev: str
    """Sentences to score; never trained on."""
    translate: str
    """Sentences to translate at the end, FILE.tsv or FILE.en,FILE.ja; never trained
    on."""
    out: Path
    """The file of their translations, one a line."""
    preset: PresetName = "small"
    """Whose shape and batch size it has."""
    dropout: float | None = None
    """Other than the preset's."""
    learning_rate: float = 1e-3
    """The highest."""
    minutes: float = 10
    """How long to train, everything before it included."""
    beam: int = 4
    """Hypotheses of the search."""

    def __post_init__(self) -> None:
        if not self.out.parent.is_dir():
            raise ValueError(f"{self.out.parent} is no folder: make it first")


@dataclass
class _Cache:
    """What has been written of each hypothesis so far, and what it was written from."""

    tokens: Tensor
    memory: Tensor
    source: Tensor
    beam: int

    def reorder(self, rows: Tensor) -> None:
        self.tokens = self.tokens[rows]

    def select(self, sentences: Tensor) -> None:
        self.memory, self.source = self.memory[sentences], self.source[sentences]


class Decoding:
    """A `TorchTransformer` as `model.search` wants it; nothing is cached."""

    def __init__(self, model: TorchTransformer) -> None:
        self.model, self.config = model.eval(), model.config

    def start(self, source_ids: Tensor, beam: int) -> _Cache:
        tokens = source_ids.new_empty(len(source_ids) * beam, 0)
        return _Cache(tokens, self.model.encode(source_ids), source_ids, beam)

    def step(self, token_ids: Tensor, cache: _Cache) -> Tensor:
        cache.tokens = torch.cat([cache.tokens, token_ids[:, None]], dim=1)
        memory, source = (tensor.repeat_interleave(cache.beam, dim=0)
                          for tensor in (cache.memory, cache.source))  # fmt: skip
        return self.model.decode(cache.tokens, memory, source)[:, -1]

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        beam: int = 1,
        length_penalty: float = 1.0,
        max_steps: int | None = None,
    ) -> list[list[Hypothesis]]:
        """The search of an `Engine`."""

        def search_rows(rows: Sequence[int]) -> list[list[Hypothesis]]:
            ids = [torch.tensor(sources[row]) for row in rows]
            padded = torch.nn.utils.rnn.pad_sequence(ids, True, PADDING)
            return search(self, padded, beam, length_penalty, max_steps)

        cut = batches([len(ids) for ids in sources], beam, usual=True)
        return in_order(cut, map(search_rows, cut))


def _main() -> int:
    arguments = parse(Arguments, None, "-m benchmarks.train_peer")
    tune_memory()
    shape = PRESETS[arguments.preset].shape
    if arguments.dropout is not None:
        shape = replace(shape, dropout=arguments.dropout)
    material = prepare(
        arguments.corpus,
        arguments.dev,
        arguments.translate,
        reverse=False,
        vocabulary=shape.vocabulary,
        max_length=shape.max_length,
        seed=1,
        say=print,
    )
    torch.manual_seed(1)
    model = TorchTransformer(shape.config(len(material.source), len(material.target)))
    _train(model, material, arguments)
    decoding = Decoding(model)
    translator = Translator("torch", decoding, material.source, material.target)
    for beam in (1, arguments.beam):
        pairs = material.dev[:DEV]
        found = translator.best([a for a, _ in pairs], beam)
        scores = score(found, [b for _, b in pairs], "ja")
        print(f"dev, beam {beam}: chrF {scores.chrf:.1f}, BLEU {scores.bleu:.1f}")
    found = translator.best([a for a, _ in material.test], arguments.beam)
    arguments.out.write_text("".join(f"{line}\n" for line in found), "utf-8")
    return 0


def _train(model: TorchTransformer, material: Material, arguments: Arguments) -> None:
    """Train until the time is up."""
    recipe = Recipe(
        learning_rate=arguments.learning_rate,
        batch_tokens=PRESETS[arguments.preset].recipe.batch_tokens,
    )
    order = epochs(material.train, recipe.batch_tokens, seed=1)
    autocast = _is_autocast_faster(model, material, recipe)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), fused=True)
    step = training_step(model.train(), optimizer, recipe, autocast)
    seconds, left_at_the_top = arguments.minutes * 60, 1.0
    for number, (_, rows) in enumerate(order, start=1):
        left = 1 - (time.perf_counter() - BEGAN) / seconds
        if left <= 0:
            break
        if number <= recipe.warmup:
            left_at_the_top = left
        rate = recipe.learning_rate * min(
            number / recipe.warmup, left / left_at_the_top
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        step(make_batch(material.train, rows, PADDING))
    print(f"{number - 1:,} steps in {'bf16' if autocast else 'fp32'}")


def _is_autocast_faster(
    model: TorchTransformer, material: Material, recipe: Recipe
) -> bool:
    """Return which precision is the faster over some steps of a copy of the model."""
    if "bf16" not in hardware_precisions("cpu"):
        return False
    seconds = {}
    for autocast in (False, True):
        copied = copy.deepcopy(model).train()
        optimizer = torch.optim.AdamW(copied.parameters(), lr=1e-6, fused=True)
        step = training_step(copied, optimizer, recipe, autocast)
        order = epochs(material.train, recipe.batch_tokens, seed=1)
        trial = [rows for _, rows in itertools.islice(order, TRIAL_STEPS)]
        for _ in range(2):  # the first round pays for buffers and kernels
            began = time.perf_counter()
            for rows in trial:
                step(make_batch(material.train, rows, PADDING))
        seconds[autocast] = time.perf_counter() - began
    return seconds[True] < seconds[False]


if __name__ == "__main__":
    sys.exit(run(_main, "benchmarks.train_peer"))
