"""Decoding speed beside MarianMT of the same shape and CTranslate2 of our weights.

    python -m benchmarks.decode_speed runs/tatoeba --sentences test.tsv

The same sentences for all, greedy and with a beam of 4, in batches of like length, of
the size that suits each; contenders take turns, each in a process of its own, and
medians count. Ours and MarianMT (Hugging Face's transformers) run in fp32, and in
bf16 where the processor multiplies it. MarianMT has random weights, which know no end:
it writes as many tokens for each batch as ours wrote for the longest of its sentences.
CTranslate2 runs our weights, in float32 and int8, with the memory setting that
`translate.py` makes (`model.memory`).
What makes the difference belongs to the comparison: ours has that setting, too, and so
keeps its memory between batches, its attention is written out, and threads take one
batch after another, each by itself. All of it may help MarianMT as well, so it is
measured with it, too ("helped"). Beside the rates stand the latency of one sentence
alone and what an attention trace costs, in forward passes.
Exits with 1 where a bar is missed.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Annotated, Literal, get_args

import torch
import tyro

from benchmarks.peers import marian
from benchmarks.processes import figures_of
from data.text import normalise, read_file
from explain.translator import Translator
from model.command import parse, run
from model.engine import Precision, batches, threads_for
from model.export import export_ctranslate2
from model.hardware import DTYPES, hardware_precisions
from model.memory import tune_memory
from model.threads import compute_apart

Contender = Literal[
    "ours", "ours bf16", "MarianMT", "MarianMT bf16", "MarianMT, helped",
    "CTranslate2 float32", "CTranslate2 int8",
]  # fmt: skip
FASTEST = hardware_precisions("cpu")[-1]
CONTENDERS: tuple[Contender, ...] = tuple(
    name for name in get_args(Contender) if "bf16" not in name or FASTEST == "bf16"
)
MARIAN_BAR, CTRANSLATE2_BAR = 2.5, 0.5
MARIAN_BATCH_TOKENS = 3_072
"""What it is fastest with, of 1,536 to 16,384."""
BEAMS = (1, 4)
ALONE = 50
"""So many sentences are translated one by one, for the latency."""

Translate = Callable[[Sequence[str], int], object]


@dataclass(frozen=True)
class Arguments:
    """Measure decoding speed beside MarianMT and CTranslate2."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run directory."""
    sentences: Path
    """A file of sentences, one a line, or of sentence TAB reference."""
    count: int = 1_000
    """How many sentences are translated, from the first on."""
    turns: int = 3
    """How often each contender is measured."""
    only: Contender | None = None
    """Measure this one, once, and print its figures as JSON."""


class Marian:
    """MarianMT in the shape of a translator's model, writing as much as that does."""

    def __init__(
        self,
        translator: Translator,
        texts: Sequence[str],
        dtype: torch.dtype,
        helped: bool,
    ) -> None:
        self.translator, self.helped = translator, helped
        self.model = marian(translator.engine.config, helped).eval().to(dtype)
        self.model.generation_config.eos_token_id = None  # else it is looked for
        self.lengths: dict[int, dict[str, int]] = {}
        for beam in BEAMS:
            found = translator.translate(texts, beam)
            self.lengths[beam] = {
                text: max(len(one.hypothesis.ids) for one in ranked)
                for text, ranked in zip(texts, found, strict=True)
            }

    def translate(self, texts: Sequence[str], beam: int) -> None:
        """Write as many tokens as the longest of each batch's translations has."""
        end, padding = self.model.config.eos_token_id, self.model.config.pad_token_id
        limit = self.translator.engine.config.max_length - 1
        encoded = [
            [*self.translator.source.encode(text)[:limit], end] for text in texts
        ]

        @torch.inference_mode()
        def write(rows: Sequence[int]) -> None:
            widest = max(len(encoded[row]) for row in rows)
            ids = torch.tensor(
                [encoded[r] + [padding] * (widest - len(encoded[r])) for r in rows]
            )
            steps = 1 + max(self.lengths[beam][texts[row]] for row in rows)
            steps = min(steps, limit)
            self.model.generate(
                input_ids=ids,
                attention_mask=ids != padding,
                num_beams=beam,
                max_new_tokens=steps,
                do_sample=False,
            )

        threads = 1
        if self.helped:
            threads = threads_for(len(texts), torch.get_num_threads())
        lengths = [len(ids) for ids in encoded]
        cut = batches(lengths, beam, threads, MARIAN_BATCH_TOKENS)
        compute_apart(write, cut, threads, Event())


def contender(name: Contender, folder: Path, texts: Sequence[str]) -> Translate:
    """Return what translates texts with a beam."""
    helped = name.endswith("helped")
    if helped or not name.startswith("MarianMT"):  # as translate.py does
        tune_memory()
    if name.startswith("CTranslate2"):
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch, "exported")
            export_ctranslate2(folder, out, "int8" if "int8" in name else "float32")
            return Translator.load(out, engine="ctranslate2").translate
    if name.startswith("ours"):
        precision: Precision = "bf16" if "bf16" in name else "fp32"
        return Translator.load(folder, precision=precision).translate
    in_bf16 = "bf16" in name or helped and FASTEST == "bf16"
    dtype = DTYPES["bf16" if in_bf16 else "fp32"]
    return Marian(Translator.load(folder), texts, dtype, helped).translate


def measure(translate: Translate, texts: Sequence[str]) -> dict[str, float]:
    """Return sentences/s by beam, and the milliseconds of one sentence alone."""
    found = {}
    for beam in BEAMS:
        translate(texts[:50], beam)
        began = time.perf_counter()
        translate(texts, beam)
        found[str(beam)] = len(texts) / (time.perf_counter() - began)
    seconds = []
    for text in texts[:ALONE]:
        began = time.perf_counter()
        translate([text], 1)
        seconds.append(time.perf_counter() - began)
    return found | {"alone": 1_000 * statistics.median(seconds)}


def _main() -> int:
    arguments = parse(Arguments, None, "-m benchmarks.decode_speed")
    rows = [line.split("\t")[0] for line in read_file(arguments.sentences)]
    texts = [text for text in rows if normalise(text)][: arguments.count]
    if arguments.only is not None:
        translate = contender(arguments.only, arguments.run, texts)
        print(json.dumps(measure(translate, texts)))
        return 0
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(arguments.turns):
        for name in CONTENDERS:
            found[name].append(_in_own_process(name))
    medians = {
        name: {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        for name, turns in found.items()
    }
    met = [_compare(medians, str(beam), len(texts)) for beam in BEAMS]
    print(f"one sentence alone, greedy, median of {ALONE}:")
    for label, figures in medians.items():
        print(f"  {label:<28} {figures['alone']:6.1f} ms")
    _print_trace_cost(Translator.load(arguments.run), texts[:ALONE])
    return 0 if all(met) else 1


def _in_own_process(name: Contender) -> dict[str, float]:
    flags = [*sys.argv[1:], "--only", name]
    figures: dict[str, float] = figures_of("benchmarks.decode_speed", *flags)
    return figures


def _compare(medians: dict[str, dict[str, float]], beam: str, count: int) -> bool:
    """Print sentences a second; return whether the bars are met."""
    print(f"beam {beam}, {count:,} sentences:")
    for name, figures in medians.items():
        print(f"  {name:<28} {figures[beam]:7,.0f} sentences/s")
    rate = {name: figures[beam] for name, figures in medians.items()}
    best, peer = (max(rate[name], rate.get(f"{name} bf16", 0.0))
                  for name in ("ours", "MarianMT"))  # fmt: skip
    helped = best / max(peer, rate["MarianMT, helped"])
    ratio = rate["ours"] / rate["CTranslate2 float32"]
    print(
        f"  the faster precision of each: {best / peer:.2f} times MarianMT (bar "
        f"{MARIAN_BAR}), {helped:.2f} times it helped; in fp32 "
        f"{rate['ours'] / rate['MarianMT']:.2f} times; {ratio:.2f} times CTranslate2 "
        f"float32 (bar {CTRANSLATE2_BAR})"
    )
    return best / peer >= MARIAN_BAR and ratio >= CTRANSLATE2_BAR


@torch.inference_mode()
def _print_trace_cost(ours: Translator, texts: Sequence[str]) -> None:
    """Print what a trace takes, beside one forward pass over the same translation."""
    tune_memory()  # as translate.py does
    model, passes, traces = ours.model, [], []
    for text in texts:
        [[best]] = ours.translate([text])
        ids = best.hypothesis.ids
        limit = model.config.max_length - 1
        read = [*ours.source.encode(text)[:limit], model.config.end_id]
        source = torch.tensor([read])
        target = torch.tensor([[model.config.start_id, *ids[:limit]]])
        began = time.perf_counter()
        model(source, target)
        passed = time.perf_counter()
        ours.trace(text, ids, best.hypothesis.complete)
        passes.append(passed - began)
        traces.append(time.perf_counter() - passed)
    one, traced = statistics.median(passes), statistics.median(traces)
    print(
        f"a trace: {1_000 * traced:.1f} ms, {traced / one:.1f} forward passes of "
        f"{1_000 * one:.1f} ms"
    )


if __name__ == "__main__":
    sys.exit(run(_main, "benchmarks.decode_speed"))
