"""Decoding speed beside MarianMT of the same shape and CTranslate2 of our weights.

    python -m benchmarks.decode_speed runs/tatoeba --sentences test.tsv

The same sentences for all, greedy and with a beam of 4, in batches of 4,096 tokens of
like length; contenders take turns, and medians count. Ours and MarianMT (Hugging Face's
transformers) run in fp32 and in bf16. MarianMT has random weights, which know no end:
it writes as many tokens for each batch as ours wrote for the longest of its sentences.
CTranslate2 runs our weights, in float32 and int8. Beside the rates stand the latency of
one sentence alone and what an attention trace costs, in forward passes. Exits with 1
where a bar is missed.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from benchmarks.peers import marian
from data.text import normalise, read_file
from model.command import parse, run
from model.export import Quantization, export_ctranslate2
from translate import Translator, _batches

MARIAN_BAR, CTRANSLATE2_BAR = 2.5, 0.5
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


class Marian:
    """MarianMT in the shape of a translator's model, writing as much as that does."""

    def __init__(
        self, translator: Translator, texts: Sequence[str], dtype: torch.dtype
    ) -> None:
        self.translator = translator
        self.model = marian(translator.engine.config).eval().to(dtype)
        self.lengths: dict[int, dict[str, int]] = {}
        for beam in (1, 4):
            found = translator.translate(texts, beam)
            self.lengths[beam] = {
                text: max(len(one.hypothesis.ids) for one in ranked)
                for text, ranked in zip(texts, found, strict=True)
            }

    @torch.inference_mode()
    def translate(self, texts: Sequence[str], beam: int) -> None:
        """Write as many tokens as the longest of each batch's translations has."""
        end, padding = self.model.config.eos_token_id, self.model.config.pad_token_id
        encoded = [[*self.translator.source.encode(text), end] for text in texts]
        order = sorted(range(len(texts)), key=lambda row: len(encoded[row]))
        for rows in _batches(order, [len(ids) for ids in encoded], beam):
            widest = max(len(encoded[row]) for row in rows)
            ids = torch.tensor(
                [encoded[r] + [padding] * (widest - len(encoded[r])) for r in rows]
            )
            steps = 1 + max(self.lengths[beam][texts[row]] for row in rows)
            self.model.generate(
                input_ids=ids,
                attention_mask=ids != padding,
                num_beams=beam,
                min_new_tokens=steps,
                max_new_tokens=steps,
                do_sample=False,
            )


def _main() -> int:
    arguments = parse(Arguments, None, "-m benchmarks.decode_speed")
    rows = [line.split("\t")[0] for line in read_file(arguments.sentences)]
    texts = [text for text in rows if normalise(text)][: arguments.count]
    ours = Translator.load(arguments.run)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        in_bf16 = Translator.load(arguments.run, precision="bf16")
        contenders: dict[str, Translate] = {
            "ours": ours.translate,
            "ours bf16": in_bf16.translate,
            "MarianMT": Marian(ours, texts, torch.float32).translate,
            "MarianMT bf16": Marian(ours, texts, torch.bfloat16).translate,
        }
        names: tuple[Quantization, ...] = ("float32", "int8")
        for name in names:
            out = Path(folder, name)
            export_ctranslate2(arguments.run, out, name)
            engine = Translator.load(out, engine="ctranslate2")
            contenders[f"CTranslate2 {name}"] = engine.translate
        met = [_compare(contenders, texts, beam, arguments.turns) for beam in (1, 4)]
        _print_latency(contenders, texts[:ALONE])
    _print_trace_cost(ours, texts[:ALONE])
    return 0 if all(met) else 1


def _compare(
    contenders: dict[str, Translate], texts: Sequence[str], beam: int, turns: int
) -> bool:
    """Print sentences a second; return whether the bars are met."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, translate in contenders.items():
            translate(texts[:50], beam)
            began = time.perf_counter()
            translate(texts, beam)
            rates[name].append(len(texts) / (time.perf_counter() - began))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    print(f"beam {beam}, {len(texts):,} sentences:")
    for name, median in medians.items():
        print(f"  {name:<20} {median:7,.0f} sentences/s")
    best, peer = (max(medians[f"{name}{suffix}"] for suffix in ("", " bf16"))
                  for name in ("ours", "MarianMT"))  # fmt: skip
    marian_ratio, ratio = best / peer, medians["ours"] / medians["CTranslate2 float32"]
    print(
        f"  the faster precision of each: {marian_ratio:.2f} times MarianMT (bar "
        f"{MARIAN_BAR}); in fp32 {medians['ours'] / medians['MarianMT']:.2f} times; "
        f"{ratio:.2f} times CTranslate2 float32 (bar {CTRANSLATE2_BAR})"
    )
    return marian_ratio >= MARIAN_BAR and ratio >= CTRANSLATE2_BAR


def _print_latency(contenders: dict[str, Translate], texts: Sequence[str]) -> None:
    """Print how long one sentence alone takes, greedily."""
    print(f"one sentence alone, greedy, median of {len(texts)}:")
    for name, translate in contenders.items():
        seconds = []
        for text in texts:
            began = time.perf_counter()
            translate([text], 1)
            seconds.append(time.perf_counter() - began)
        print(f"  {name:<20} {1_000 * statistics.median(seconds):6.1f} ms")


@torch.inference_mode()
def _print_trace_cost(ours: Translator, texts: Sequence[str]) -> None:
    """Print what a trace takes, beside one forward pass over the same translation."""
    model, passes, traces = ours.model, [], []
    for text in texts:
        [[best]] = ours.translate([text])
        ids = best.hypothesis.ids
        source = torch.tensor([[*ours.source.encode(text), model.config.end_id]])
        target = torch.tensor([[model.config.start_id, *ids]])
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
