"""Translate, and show the attention behind a translation."""

import io
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    # Libraries take seconds to load; Ctrl-C ends that without a traceback. Then `run`
    # takes over.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import tyro

from data.text import ArrivingLines, read_lines
from explain.kinds import Kind
from explain.translator import EngineName, Translation, Translator
from model.checkpoint import replacing, write_atomically
from model.command import Expendable, check_device, parse, printable, run
from model.engine import Hypothesis, Precision
from model.memory import tune_memory
from model.serving import check_ctranslate2

if TYPE_CHECKING:  # slow to import, torch above all, and not all translations need it
    from explain.trace import AttentionTrace

CHUNK = 1_024
"""Lines that are read, translated and written together, at most."""
MOST_HYPOTHESES = 1_000
FEWEST_TO_AGREE = 3
"""Of two hypotheses neither has another to agree with."""


@dataclass(frozen=True)
class Arguments:
    """Translate sentences with a trained model, and show the attention behind it.

    Sentences come from the command line, from --input, or from standard input.
    """

    texts: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Sentences, each in quotes."""
    model: Path = Path("runs/starter")
    """The run directory that train.py made, an export of it, or hub:owner/name."""
    input: Path | None = None
    """Translate this file, line by line."""
    output: Path | None = None
    """Write the translations there, one a line, in place of the screen."""
    beam: int = 1
    """Hypotheses that the search keeps at each step; 1 is greedy search."""
    length_penalty: float = 1.0
    """Rank by log-probability / tokens to this power; higher favours longer ones."""
    consensus: bool = False
    """Rank the beam's hypotheses by how well the others agree with them (chrF)."""
    n_best: int = 1
    """Print this many translations of each sentence, with its line number and rank."""
    scores: bool = False
    """Print each translation's score before it."""
    target: str | None = None
    """Score and trace this translation of yours in place of the model's own."""
    attention: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = ()
    """Write the attention to a .json, .jsonl, .npz, .png, .svg or .html; repeatable."""
    values: bool = False
    """Put queries, keys, values, scores and weight matrices into the .json as well."""
    show: bool = False
    """Print attention maps in the terminal."""
    walk: bool = False
    """Print how the model computed one row, step by step, with its numbers."""
    align: bool = False
    """Print which source word each target word looks at, as pairs of word numbers."""
    maps: tuple[Kind, ...] = ()
    """Kinds of maps: all unless named, but --show by itself prints cross-attention."""
    layer: int | None = None
    """Look at this layer, counted from 1."""
    head: int | None = None
    """Look at this head, counted from 1."""
    token: str | None = None
    """With --walk: the token to follow."""
    gold: str | None = None
    """A true word alignment, such as "0-0 1-4", to mark in the .html."""
    no_what_if: bool = False
    """Leave out of the .html what each head changes, which takes a moment."""
    evaluate: Path | None = None
    """Translate a file of English TAB Japanese; print BLEU and chrF."""
    device: str = "cpu"
    """Where to compute: cpu, cuda or mps."""
    precision: Precision = "fp32"
    """bf16: faster for many sentences, where the processor has it; near-ties change."""
    engine: EngineName = "torch"
    """What computes: ctranslate2 takes an export, starts at once, and is faster."""

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ValueError(f"--beam {self.beam}: give a whole number from 1 up")
        if self.beam > MOST_HYPOTHESES:
            raise ValueError(f"--beam {self.beam}: give {MOST_HYPOTHESES:,} at most")
        if self.n_best < 1:
            raise ValueError(f"--n-best {self.n_best}: give a whole number from 1 up")
        if self.n_best > self.beam:
            raise ValueError(
                f"--n-best {self.n_best} needs a beam at least as wide: add --beam "
                f"{self.n_best}"
            )
        if self.consensus and self.beam < FEWEST_TO_AGREE:
            raise ValueError("--consensus compares hypotheses: add --beam 16")
        sources = [bool(self.texts), self.input is not None, self.evaluate is not None]
        if sum(sources) > 1:
            raise ValueError("give sentences, --input or --evaluate: one of them")
        if self.target is not None and len(self.texts) != 1:
            raise ValueError("--target goes with exactly one sentence, in quotes")
        if self.target is not None and "\n" in self.target:
            raise ValueError("--target has several lines: give one")
        self._check_gold()
        if self.target is not None and self.beam > 1:
            raise ValueError("--target has no other hypotheses: leave out --beam")
        self._check_files()
        suffixes = {path.suffix for path in self.attention}
        if self.values and not suffixes & {".json", ".jsonl"}:
            raise ValueError("--values goes with --attention FILE.json or FILE.jsonl")
        if (self.gold or self.no_what_if) and ".html" not in suffixes:
            raise ValueError("--gold and --no-what-if go with --attention FILE.html")
        if self.token is not None and not self.walk:
            raise ValueError("--token goes with --walk")
        if (self.align or self.gold) and self.n_best > 1:
            raise ValueError("--align and --gold go with one translation: no --n-best")
        if not -10 <= self.length_penalty <= 10:
            raise ValueError(
                f"--length-penalty {self.length_penalty}: give a number from -10 to 10"
            )
        self._refuse_unused()
        for text in (*self.texts, self.target or ""):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise ValueError("a sentence is not UTF-8: set the terminal to UTF-8")
        self._check_engine()

    @property
    def keeps_values(self) -> bool:
        """Whether a file needs more of a trace than its weights."""
        return self.values or any(
            path.suffix in {".npz", ".html"} for path in self.attention
        )

    def _check_files(self) -> None:
        """Raise `ValueError` for names of files that cannot be written, or twice."""
        for path in self.attention:
            _check_name(path, len(self.texts) if self.texts else None)
        written = [
            path.resolve()
            for path in (*self.attention, self.output)
            if path is not None
        ]
        if len(set(written)) < len(written):
            raise ValueError("--output and --attention name a file twice: give others")

    def _check_gold(self) -> None:
        """Raise `ValueError` unless --gold has links, of which one at least is sure."""
        if self.gold is not None:
            from explain.alignment import parse_links

            if not parse_links(self.gold).sure:
                raise ValueError("--gold needs a sure link, such as 0-0")

    def _check_engine(self) -> None:
        """Raise `ValueError` unless the engine is there and does what is asked for."""
        if self.engine == "torch":
            check_device(self.device)
        elif self.precision != "fp32":
            raise ValueError("an export has its precision: leave out --precision")
        elif self.wants_trace or self.target is not None:
            raise ValueError(
                "an export shows no attention and scores no --target: leave out "
                "--engine ctranslate2 and name the run directory with --model"
            )
        else:
            check_ctranslate2(self.device)

    def _refuse_unused(self) -> None:
        """Raise `ValueError` for a flag that would do nothing."""
        pictures = any(path.suffix in {".png", ".svg"} for path in self.attention)
        drawn = "--show, or with --attention FILE.png or FILE.svg"
        if self.maps and not (self.show or pictures):
            raise ValueError(f"--maps goes with {drawn}")
        chosen = self.layer is not None or self.head is not None
        if chosen and not (self.show or self.walk or self.align or pictures):
            raise ValueError(f"--layer and --head go with --walk, --align, {drawn}")
        if self.gold is not None and len(self.texts) != 1:
            raise ValueError("--gold goes with exactly one sentence, in quotes")
        if self.evaluate is not None and (
            self.wants_trace
            or self.scores
            or self.output is not None
            or self.n_best > 1
        ):
            raise ValueError("--evaluate prints scores only: leave out other outputs")

    @property
    def wants_trace(self) -> bool:
        """Whether anything of the attention is asked for."""
        return bool(self.attention or self.show or self.walk or self.align)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(lambda: _main(parse(Arguments, argv, "translate.py")), "translate.py")


def _main(arguments: Arguments) -> None:
    tune_memory()
    with ExitStack() as held:
        if arguments.output or arguments.attention:
            # Files are written to their end, whoever reads what is printed besides.
            output = Expendable(sys.stdout)
            held.callback(output.flush)
            held.enter_context(redirect_stdout(output))
        _run(arguments)


def _run(arguments: Arguments) -> None:
    translator = Translator.load(
        arguments.model, arguments.device, arguments.engine, arguments.precision
    )
    if arguments.precision != "fp32":
        from model.hardware import doubt  # brings torch, which an export does without

        if said := doubt(arguments.precision, arguments.device):
            print(said, file=sys.stderr)
    if arguments.evaluate is not None:
        _evaluate(translator, arguments)
    elif arguments.texts:
        _write(translator, arguments, arguments.texts)
    elif arguments.input is not None:
        with arguments.input.open("rb") as file:
            _write(translator, arguments, read_lines(file, str(arguments.input)))
    elif sys.stdin is None:
        raise ValueError("standard input is closed: give sentences, --input or a pipe")
    elif sys.stdin.isatty():
        _write(translator, arguments, _prompt(), paused=lambda: True)
    elif isinstance(sys.stdin.buffer, io.BufferedReader):
        stream = ArrivingLines(sys.stdin.buffer.raw)
        lines = read_lines(stream, "standard input")
        _write(translator, arguments, lines, stream.paused)
    else:
        lines = read_lines(sys.stdin.buffer, "standard input")
        _write(translator, arguments, lines)


def _prompt() -> Iterator[str]:
    """Yield what is typed, until the end of input (Ctrl-D)."""
    with suppress(ImportError):  # not every Python was built with it
        import readline  # noqa: F401  (gives input() its history and editing)

    in_output = sys.stdout.isatty()  # elsewhere the prompt would be part of the result
    while True:
        if not in_output:
            print("> ", end="", file=sys.stderr, flush=True)
        try:
            yield input("> " if in_output else "")
        except EOFError:
            return


def _write(
    translator: Translator,
    arguments: Arguments,
    lines: Iterable[str],
    paused: Callable[[], bool] = lambda: False,
) -> None:
    """Translate lines; write each result, and its attention, as it comes.

    What was read is translated, however few lines it is, where `paused` says that the
    next line may take a while.
    """
    streams = [path for path in arguments.attention if path.suffix == ".jsonl"]
    others = [path for path in arguments.attention if path not in streams]
    traces: list[AttentionTrace] = []  # for the others, which are made of all at once

    def check_others() -> None:
        for path in others:
            _check_name(path, len(traces))

    with ExitStack() as opened:
        write = _writer(arguments.output, opened)
        add = [_stream(path, arguments.values, opened) for path in streams]

        def keep(trace: "AttentionTrace") -> None:
            for add_trace in add:
                add_trace(trace)
            if others:
                traces.append(trace)
                check_others()

        for chunk in _chunks(lines, paused):
            for text in _translated(translator, arguments, chunk, keep):
                write(text + "\n")
        check_others()  # before the first is written
        for path in others:
            _write_attention(translator, arguments, path, traces)


def _stream(
    path: Path, values: bool, opened: ExitStack
) -> "Callable[[AttentionTrace], object]":
    """Return what adds a trace to a file that appears when `opened` closes."""
    from explain import files

    return opened.enter_context(files.writing(path, values))


def _writer(output: Path | None, opened: ExitStack) -> Callable[[str], object]:
    """Return what prints, or writes to a file that appears when `opened` closes."""
    if output is None:
        return lambda text: print(text, end="", flush=True)
    beside = opened.enter_context(replacing(output))
    file = opened.enter_context(beside.open("w", encoding="utf-8", newline="\n"))
    return file.write


def _chunks(
    lines: Iterable[str], paused: Callable[[], bool]
) -> Iterator[list[tuple[int, str]]]:
    """Yield the numbered lines in lists of CHUNK, or of what came before a pause."""
    chunk = []
    for numbered in enumerate(lines, start=1):
        chunk.append(numbered)
        if len(chunk) == CHUNK or paused():
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _translated(
    translator: Translator,
    arguments: Arguments,
    chunk: Sequence[tuple[int, str]],
    keep: "Callable[[AttentionTrace], object]",
) -> Iterator[str]:
    """Yield the translations to write of some numbered lines; keep attention if wanted.

    What --show and --walk make of it is printed, wherever the translations go.
    """
    texts, own = [text for _, text in chunk], None
    if arguments.target is None:
        found_for_each = translator.translate(
            texts,
            arguments.beam,
            arguments.length_penalty,
            consensus=arguments.consensus,
        )
    else:
        own = translator.trace(texts[0], arguments.target)
        found_for_each = [[_own(translator, arguments, own)]]
    for (number, text), found in zip(chunk, found_for_each, strict=True):
        if found:
            _warn(translator, number, text, found[0])
        trace = own
        if trace is None and found and arguments.wants_trace:
            best = found[0].hypothesis
            trace = translator.trace(text, best.ids, best.complete)
        yield from _printed(translator, arguments, number, found, trace)
        if trace is not None:
            for view in _views(translator, arguments, trace):
                print(view, flush=True)
        if trace is not None and arguments.attention:
            keep(trace if arguments.keeps_values else trace.without_values())


def _own(
    translator: Translator, arguments: Arguments, trace: "AttentionTrace"
) -> Translation:
    """Return the user's own translation, scored by its trace."""
    assert arguments.target is not None
    ids = trace.target.ids_out[:-1]
    total = sum(trace.target.log_probs)
    hypothesis = Hypothesis.scored(ids, total, arguments.length_penalty)
    length = len(translator.source.encode(trace.source.text)) + 1
    cut = length > len(trace.source.ids)
    return Translation(arguments.target, hypothesis, length, cut)


def _printed(
    translator: Translator,
    arguments: Arguments,
    number: int,
    found: Sequence[Translation],
    trace: "AttentionTrace | None",
) -> Iterator[str]:
    """Yield one line for a sentence, or one for each of its n best translations."""
    if not found:
        yield ""
    for rank, translation in enumerate(found[: arguments.n_best], start=1):
        columns = [translation.text]
        if arguments.scores:
            columns.insert(0, f"{translation.score:.4f}")
        if arguments.n_best > 1:
            columns = [str(number), str(rank), *columns]
        if arguments.align and trace is not None:
            columns.append(_alignment(translator, arguments, trace))
        yield "\t".join(columns)


def _alignment(
    translator: Translator, arguments: Arguments, trace: "AttentionTrace"
) -> str:
    """Return the word alignment of a trace in Pharaoh format."""
    from explain.alignment import Heads, align, pharaoh

    numbers = (arguments.layer, arguments.head)
    heads = Heads(*(None if number is None else number - 1 for number in numbers))
    return pharaoh(align(trace, *translator.words(trace), heads))


def _views(
    translator: Translator, arguments: Arguments, trace: "AttentionTrace"
) -> Iterator[str]:
    """Yield what --show and --walk print of a trace."""
    shown: list[Any] = []
    chosen = {"layer": arguments.layer, "head": arguments.head}
    if arguments.show:
        from explain.terminal import show

        shown += show(trace, translator.glossary, arguments.maps or None, **chosen)
    if arguments.walk:
        from explain.walk import walk

        shown += walk(
            translator.model,
            trace,
            translator.target,
            translator.glossary,
            arguments.token,
            **chosen,
        )
    if shown:
        from rich.console import Console

        console = Console(highlight=False)
        with console.capture() as printed:
            for part in shown:
                console.print(part)
        yield "\n".join(line.rstrip(" ") for line in printed.get().splitlines())


def _check_name(path: Path, sentences: int | None) -> None:
    """Raise `ValueError` unless the attention of so many sentences can go to path."""
    from explain import files

    suffixes = (*files.SUFFIXES, ".png", ".svg", ".html")
    files.check_name(path, sentences, suffixes, of_many=(".jsonl", ".html"))


def _write_attention(
    translator: Translator,
    arguments: Arguments,
    path: Path,
    traces: "Sequence[AttentionTrace]",
) -> None:
    """Write one of the --attention files."""
    from explain import files

    if path.suffix in files.SUFFIXES:
        files.write(path, traces, arguments.values)
    elif path.suffix == ".html":
        page = translator.page(traces, arguments.gold, not arguments.no_what_if)
        write_atomically(path, lambda to: to.write_text(page, "utf-8"))
    else:
        from explain.figures import draw

        kinds = arguments.maps or None
        draw(traces[0], path, kinds, arguments.layer, arguments.head)


def _warn(
    translator: Translator, number: int, text: str, translation: Translation
) -> None:
    """Say on stderr what a reader of the translation should know."""
    limit = translator.engine.config.max_length
    warnings = []
    if unknown := translator.unknown_words(text):
        warnings.append(f"not seen in training: {printable(', '.join(unknown))}")
    if translation.cut:
        warnings.append(
            f"line {number} has {translation.source_tokens - 1:,} tokens, and the "
            f"model reads {limit - 1}: the rest is left out"
        )
    if not translation.hypothesis.complete:
        warnings.append(
            f"line {number}: the model found no end; stopped at {limit} tokens"
        )
    for warning in warnings:
        print(warning, file=sys.stderr)


def _evaluate(translator: Translator, arguments: Arguments) -> None:
    """Print BLEU and chrF on a file of pairs, and what was cut short in numbers."""
    from data.corpus import pairs_of, read_corpus
    from data.metrics import score

    assert arguments.evaluate is not None
    reverse = translator.languages == ("ja", "en")
    pairs = pairs_of(read_corpus(str(arguments.evaluate), reverse))
    began = time.perf_counter()
    sources = [source for source, _ in pairs]
    found_for_each = translator.translate(
        sources,
        arguments.beam,
        arguments.length_penalty,
        consensus=arguments.consensus,
    )
    seconds = time.perf_counter() - began
    best = [found[0] for found in found_for_each if found]
    for count, what in (
        (sum(one.cut for one in best), "are longer than the model reads: cut"),
        (sum(not one.hypothesis.complete for one in best), "found no end: stopped"),
    ):
        if count:
            print(f"{count:,} of {len(pairs):,} sentences {what}", file=sys.stderr)
    hypotheses = [found[0].text if found else "" for found in found_for_each]
    scores = score(hypotheses, [target for _, target in pairs], translator.languages[1])
    print(f"BLEU {scores.bleu:.1f}   {scores.bleu_signature}")
    print(f"chrF {scores.chrf:.1f}   {scores.chrf_signature}")
    print(
        f"{len(pairs):,} sentences in {seconds:.1f} s: "
        f"{len(pairs) / seconds:,.0f} sentences/s"
    )


if __name__ == "__main__":
    sys.exit(main())
