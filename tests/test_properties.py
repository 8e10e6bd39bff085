"""What holds for any text, any pairs, any trace and any tokens."""

import csv
import functools
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from datasets import Dataset
from hypothesis import example
from hypothesis import strategies as st
from properties import SPECIAL, property_of, texts
from small_model import tokenizers

import translate
from data.cleaning import EXAMINED, MAX_CHARACTERS, Cleaning, clean, examine
from data.corpus import Pair, pairs_of, read_corpus
from data.text import comparison_key, normalise
from data.tokenizer import END, PADDING, START, UNKNOWN
from explain import files
from explain.glossary import Entry
from explain.kinds import KINDS, SIDES
from explain.page import PageEntry, render
from explain.trace import (
    VALUES,
    AttentionMap,
    AttentionTrace,
    ModelNote,
    Projections,
    Source,
    Target,
    recompute_weights,
)  # fmt: skip
from model.checkpoint import save_config, save_weights
from model.config import ModelConfig
from model.transformer import Transformer

# ------------------------------------------------------------- any text to translate.py


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()  # it goes when the process does


@functools.cache
def _runs() -> tuple[Path, ...]:
    """Return run directories of models with random weights, made once.

    The second is sharp: other positions write other tokens, bytes among them.
    """
    return tuple(_make_run(Path(_folder().name, name)) for name in ("flat", "sharp"))


_load = functools.cache(translate.Translator.load)


def _make_run(run: Path) -> Path:
    run.mkdir()
    source, target = tokenizers()
    (run / "source.spm").write_bytes(source.model)
    (run / "target.spm").write_bytes(target.model)
    (run / "source_words.txt").write_text("i\nlove\n", "utf-8")
    (run / "glossary.tsv").write_text("私は\tわたしは\tI (topic)\n", "utf-8")
    torch.manual_seed(1)
    config = ModelConfig(len(source), len(target), width=16, heads=2, encoder_layers=1,
                         decoder_layers=1, feed_forward=16, max_length=10)  # fmt: skip
    model = Transformer(config).eval()
    if run.name == "sharp":
        with torch.no_grad():
            model.target_embedding.weight.mul_(4)
            model.source_embedding.weight.mul_(4)
    save_config(run, config, {})
    save_weights(run, model.state_dict())
    return run


def _translate(content: bytes, *flags: str) -> tuple[int, bytes, list[str]]:
    """Run the command in this process: its exit code, stdout and stderr's lines."""
    streams = [io.TextIOWrapper(io.BytesIO(given), "ascii") for given in
               (content, b"", b"")]  # fmt: skip
    stdin, stdout, stderr = streams
    with (
        mock.patch.multiple(sys, stdin=stdin, stdout=stdout, stderr=stderr),
        mock.patch.object(translate.Translator, "load", _load),  # once each
    ):
        code = translate.main(["--device=cpu", *flags])
    for stream in (stdout, stderr):
        stream.flush()
    out, err = (stream.buffer.getvalue() for stream in (stdout, stderr))  # type: ignore[attr-defined]
    *said, rest = err.decode().split("\n")
    assert rest == ""
    # A text that is cited there moves no cursor and hides nothing.
    assert all(line.isprintable() for line in said), said
    return code, out, said


def _lines_of(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


LINES = st.lists(texts(exclude="\n"), max_size=6)
ENDS = st.sampled_from(["\n", "\r\n"])
RUNS = st.sampled_from([0, 1])


@property_of(60, run=RUNS, lines=LINES, end=ENDS, mark=st.sampled_from(["", "\ufeff"]),
             closed=st.booleans())  # fmt: skip
@example(run=1, lines=list(SPECIAL), end="\n", mark="", closed=True)
def test_any_lines_give_as_many_lines(
    run: int, lines: list[str], end: str, mark: str, closed: bool
) -> None:
    content = (mark + end.join(lines) + (end if closed else "")).encode()
    flags = f"--model={_runs()[run]}"
    code, out, said = _translate(content, flags)
    assert code == 0
    *written, rest = out.decode("utf-8").split("\n")
    assert rest == ""
    expected = _lines_of(content)
    assert len(written) == len(expected)
    for line, translation in zip(expected, written, strict=True):
        if not line.decode().removeprefix("\ufeff").strip():
            assert translation == ""
    assert _translate(content, flags) == (code, out, said)


@property_of(40, content=st.one_of(
    st.binary(max_size=40),
    st.tuples(LINES, st.binary(max_size=3), LINES).map(
        lambda parts: "\n".join(parts[0]).encode() + parts[1]
        + "\n".join(parts[2]).encode())))  # fmt: skip
@example(content="犬\n猫\n".encode("shift_jis"))
@example(content="I love it.\n".encode("utf-16"))
def test_bytes_that_are_not_utf8_are_named_and_nothing_is_written(
    content: bytes,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "out.txt")
        code, out, said = _translate(
            content, f"--model={_runs()[0]}", f"--output={path}"
        )
        assert out == b""
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            before = content[: error.start]
            line = before.count(b"\n") + 1
            byte = error.start - (before.rfind(b"\n") + 1) + 1
            # Counted in the line as it is read, without the mark at the start.
            byte -= 3 if line == 1 and content.startswith(b"\xef\xbb\xbf") else 0
            where = f"standard input, line {line}, byte {byte}: not UTF-8"
            assert code == 2 and len(said) == 1 and where in said[0]
            assert not list(Path(folder).iterdir())
        else:
            assert code == 0
            assert path.read_bytes().count(b"\n") == len(_lines_of(content))


VIEWS = st.sampled_from([("--show", "--align"), ("--walk",)])


@property_of(15, many=1_000, run=RUNS, text=texts(exclude="\n"), flags=VIEWS)
def test_any_text_can_be_looked_at(run: int, text: str, flags: tuple[str, ...]) -> None:
    content = f"{text}\n".encode()
    code, out, _ = _translate(content, f"--model={_runs()[run]}", *flags)
    assert code == 0
    _, views = out.decode("utf-8").split("\n", 1)
    assert "\x1b" not in views and bool(views) == bool(normalise(text))


@property_of(20, run=RUNS, lines=LINES)
def test_any_lines_give_their_n_best(run: int, lines: list[str]) -> None:
    flags = ("--beam=3", "--n-best=2", "--scores")
    content = "".join(f"{line}\n" for line in lines).encode()
    code, out, _ = _translate(content, f"--model={_runs()[run]}", *flags)
    assert code == 0
    rows = iter(out.decode("utf-8").split("\n"))
    for number, line in enumerate(_lines_of(content), start=1):
        if not normalise(line.decode().removeprefix("\ufeff")):
            assert next(rows) == ""
            continue
        found = [next(rows).split("\t", 3) for _ in range(2)]
        assert [row[:2] for row in found] == [[str(number), "1"], [str(number), "2"]]
        assert 0 >= float(found[0][2]) >= float(found[1][2])
    assert list(rows) == [""]


@property_of(
    30, run=RUNS, text=texts(exclude="\n"), target=texts(exclude="\n", max_size=12)
)
def test_any_target_is_scored_or_refused_in_one_line(
    run: int, text: str, target: str
) -> None:
    flags = [f"--model={_runs()[run]}", f"--target={target}", "--scores", "--", text]
    code, out, said = _translate(b"", *flags)
    tokens = tokenizers()[1].encode(target)
    if normalise(text) and 0 < len(tokens) < 10:
        assert code == 0
        score, own = out.decode().split("\t", 1)
        assert own == f"{target}\n" and float(score) <= 0
    elif text.strip() or not target:
        assert code == 2 and len(said) == 1 and out == b""


def test_a_process_of_its_own_writes_the_same_bytes() -> None:
    """Whatever its locale and hash seed are, and from a pipe as from a file."""
    run = f"--model={_runs()[1]}"
    content = "\n".join([*SPECIAL, "".join(SPECIAL), *SPECIAL[::-1]]).encode()
    _, out, said = _translate(content, run)
    for seed, settings in [("1", {"LC_ALL": "C", "PYTHONUTF8": "0"}), ("2", {})]:
        done = subprocess.run(
            [sys.executable, "translate.py", run], input=content, capture_output=True,
            cwd=Path(__file__).parent.parent,
            env=os.environ | settings | {"PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, out)
        assert done.stderr.decode().split("\n") == [*said, ""]


# ------------------------------------------------------ any pairs through each format


def _as_tsv(pairs: Sequence[Pair], end: str, folder: Path) -> str:
    path = folder / "pairs.tsv"
    path.write_bytes("".join(f"{a}\t{b}{end}" for a, b in pairs).encode())
    return str(path)


def _as_wide_tsv(pairs: Sequence[Pair], end: str, folder: Path) -> str:
    path = folder / "wide.tsv"
    rows = (f'{a}\t{b}\tCC0\t"{end}' for a, b in pairs)
    path.write_bytes(("\ufeff" + "".join(rows)).encode())
    return str(path)


def _as_two_files(pairs: Sequence[Pair], end: str, folder: Path) -> str:
    paths = folder / "a.en", folder / "a.ja"
    for side, path in enumerate(paths):
        text = "\ufeff" + "".join(pair[side] + end for pair in pairs)
        path.write_bytes(text.encode())
    return ",".join(map(str, paths))


def _as_jsonl(pairs: Sequence[Pair], end: str, folder: Path) -> str:
    path = folder / "pairs.jsonl"
    rows = (json.dumps({"en": a, "ja": b}, ensure_ascii=False) for a, b in pairs)
    path.write_bytes("".join(row + end for row in rows).encode())
    return str(path)


def _as_nested_jsonl(pairs: Sequence[Pair], end: str, folder: Path) -> str:
    path = folder / "nested.jsonl"
    rows = (json.dumps({"translation": {"ja": b, "en": a}, "n": 1}) for a, b in pairs)
    path.write_bytes("".join(row + end for row in rows).encode())
    return str(path)


def _as_csv(pairs: Sequence[Pair], end: str, folder: Path) -> str:
    path = folder / "pairs.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator=end)
        writer.writerows([("ja", "en"), *((b, a) for a, b in pairs)])
    return str(path)


def _as_parquet(pairs: Sequence[Pair], _: str, folder: Path) -> str:
    path = folder / "pairs.parquet"
    columns = {"en": [a for a, _ in pairs], "ja": [b for _, b in pairs]}
    Dataset.from_dict(columns).to_parquet(path)
    return str(path)


FORMATS = (
    _as_tsv, _as_wide_tsv, _as_two_files, _as_jsonl, _as_nested_jsonl, _as_csv,
    _as_parquet,
)  # fmt: skip
# A mark at the start of a file and a \r at the end of a line are dropped, as stated.
SIDE = texts(exclude="\n\t\ufeff").map(lambda text: text.rstrip("\r"))
LONG = st.integers(1, 4).map(lambda n: "長い " * (100 * n))
PAIRS = st.lists(st.tuples(SIDE | LONG, SIDE), min_size=1, max_size=8)


@property_of(60, pairs=PAIRS, end=ENDS, write=st.sampled_from(FORMATS))
def test_any_pairs_come_back_from_each_format(
    pairs: list[Pair], end: str, write: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        name = write(pairs, end, Path(folder))
        assert pairs_of(read_corpus(name)) == pairs
        assert pairs_of(read_corpus(name, reverse=True)) == [(b, a) for a, b in pairs]


def _clean(
    pairs: Sequence[Pair], held_out: Sequence[Pair]
) -> tuple[list[Pair], Cleaning]:
    """Return the pairs that cleaning keeps, and its report."""
    batch = {"source": [a for a, _ in pairs], "target": [b for _, b in pairs]}
    examined = Dataset.from_dict(examine(batch), features=EXAMINED)
    rows, report = clean(examined, held_out)
    return pairs_of(examined.select(rows)), report


@property_of(60, pairs=PAIRS, twice=st.integers(0, 8), held_out=PAIRS,
             shared=st.integers(0, 3))  # fmt: skip
def test_what_is_kept_and_what_is_removed_add_up(
    pairs: list[Pair], twice: int, held_out: list[Pair], shared: int
) -> None:
    pairs = pairs + pairs[:twice]
    # Spelled another way: case, width and marks make no other sentence.
    held_out = held_out + [(a.upper() + "！", "x") for a, _ in pairs[:shared]]
    kept, report = _clean(pairs, held_out)
    removed = (
        report.empty, report.long, report.ratio, report.duplicate, report.shared,
    )  # fmt: skip
    assert report.read == len(pairs) and report.kept == len(kept)
    assert report.kept + sum(removed) == report.read
    said = [
        int(n.replace(",", "")) for n in re.findall(r"[\d,]+(?= [a-z])", str(report))
    ]
    counted = [n for n in said if n != MAX_CHARACTERS]
    assert counted[0] == report.read and sum(counted[1:]) == report.read
    # Order is kept, nothing is made up, nothing stands twice or in what is held out.
    rest = iter([(a.strip(), b.strip()) for a, b in pairs])
    assert all(pair in rest for pair in kept)
    assert max(Counter(kept).values(), default=1) == 1
    for side in (0, 1):
        keys = {comparison_key(pair[side]) for pair in held_out}
        assert not keys & {comparison_key(pair[side]) for pair in kept}
    assert all(all(pair) for pair in kept)
    again, second = _clean(kept, held_out)
    assert again == kept and second.kept == second.read


# ------------------------------------------------------------------------- tokenizers


@property_of(100, text=texts())
@example(text="".join(SPECIAL))
@example(text=" leading, double  and trailing ")
@example(text="<unk> <s> </s> <pad> <0x0A>")
def test_any_text_comes_back_from_the_target_side(text: str) -> None:
    target = tokenizers()[1]
    ids = target.encode(text)
    assert target.decode(ids) == text.replace("▁", " ")  # the documented exception
    assert not {PADDING, START, END, UNKNOWN} & set(ids)
    assert len(target.tokens(ids)) == len(ids)


@property_of(100, text=texts())
@example(text="".join(SPECIAL))
def test_any_text_is_read_as_normalised_on_the_source_side(text: str) -> None:
    source, plain = tokenizers()[0], normalise(text)
    ids = source.encode(text)
    assert source.decode(ids) == plain
    assert UNKNOWN not in ids
    assert normalise(plain) == plain
    assert plain == " ".join(plain.split())


# ------------------------------------------------------- any trace through each format

TOKENS = texts(max_size=8)
IDS = st.integers(0, 2**31 - 1)
WORDS = st.text(st.characters(codec="utf-8"), max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False,
        allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner),
    max_leaves=4,
)  # fmt: skip
NOTES = st.dictionaries(WORDS, JSON, max_size=3)


@st.composite
def traces(draw: st.DrawFn) -> AttentionTrace:
    """A trace of any shape, tokens and numbers, which agree as `check` asks."""
    S, T = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    H, K = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    layers = {"encoder_self": draw(st.integers(0, 2)), "other": draw(st.integers(1, 2))}
    numbers = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([0.0, 1e-30, 0.1, 1.0, 30.0]))
    several = {n: st.lists(TOKENS, min_size=n, max_size=n).map(tuple) for n in {S, T}}
    some_ids = {n: st.lists(IDS, min_size=n, max_size=n).map(tuple) for n in {S, T}}
    logs = st.floats(-1024, 0, width=32)
    sizes = {"source": S, "target": T}
    values = draw(st.booleans())
    maps, projections = [], []
    for kind in KINDS:
        for layer in range(layers.get(kind, layers["other"])):
            shape = (sizes[SIDES[kind][0]], sizes[SIDES[kind][1]], H, K)
            made = _map(kind, layer, shape, numbers, scale)
            maps.append(made if values else replace(made, values={}))
            if values:
                four = (_draw(numbers, scale, H * K, H * K) for _ in range(4))
                projections.append(Projections(kind, layer, *four))
    return AttentionTrace(
        ModelNote(draw(TOKENS), draw(WORDS), draw(NOTES)),
        Source(draw(TOKENS), draw(several[S]), draw(some_ids[S])),
        Target(draw(TOKENS), draw(several[T]), draw(several[T]), draw(some_ids[T]),
               draw(some_ids[T]), tuple(draw(logs) for _ in range(T))),
        tuple(maps), tuple(projections),
    )  # fmt: skip


def _draw(numbers: np.random.Generator, scale: float, *shape: int) -> Any:
    return (scale * numbers.standard_normal(shape)).astype(np.float32)


def _map(
    kind: Any, layer: int, shape: tuple[int, int, int, int],
    numbers: np.random.Generator, scale: float,
) -> AttentionMap:  # fmt: skip
    rows, columns, H, K = shape
    q, k, v = (_draw(numbers, scale, H, n, K) for n in (rows, columns, columns))
    sizes = {name: (rows, H * K) for name in ("input", "normalised", "output")}
    values = {name: _draw(numbers, scale, *size) for name, size in sizes.items()}
    scores = q @ k.transpose(0, 2, 1)
    values |= {"q": q, "k": k, "v": v, "scores": scores, "scaled": scores / K**0.5}
    weights = recompute_weights(AttentionMap(kind, layer, scores, values))
    values["context"] = (weights @ v).astype(np.float32)
    if kind == "cross":
        values["memory"] = _draw(numbers, scale, columns, H * K)
    ordered = {n: values[n].astype(np.float32) for n in (*VALUES, "memory")
               if n in values}  # fmt: skip
    return AttentionMap(kind, layer, weights.astype(np.float32), ordered)


def _plain(trace: AttentionTrace) -> Any:
    """Return a trace as what == compares, its arrays as their bytes."""

    def bits(array: Any) -> Any:
        assert array.dtype == np.float32
        return array.shape, array.tobytes()

    return (
        trace.model, trace.source, trace.target,
        [(m.kind, m.layer, bits(m.weights), {n: bits(v) for n, v in m.values.items()})
         for m in trace.maps],
        [(p.kind, p.layer, *map(bits, (p.w_q, p.w_k, p.w_v, p.w_o)))
         for p in trace.projections],
    )  # fmt: skip


@property_of(60, some=st.lists(traces(), min_size=1, max_size=3))
def test_any_trace_comes_back_from_each_format(some: list[AttentionTrace]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.json", "a.npz"):
            files.write(Path(folder, name), some[:1], values=True)
            [found] = files.read(Path(folder, name))
            assert _plain(found) == _plain(some[0])
        lines = Path(folder, "a.jsonl")
        for values in (True, False):
            files.write(lines, some, values)
            assert lines.read_bytes().count(b"\n") == len(some)
            expected = some if values else [trace.without_values() for trace in some]
            assert [_plain(found) for found in files.read(lines)] == [
                _plain(trace) for trace in expected
            ]


# --------------------------------------------------------------- any tokens, the page


class _Outline(HTMLParser):
    """The tags of a page with their attributes, and the text in each."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, Any]] = []
        self.inside: dict[str, str] = {}
        self.open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, attrs))
        self.open = dict(attrs).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", None))
        self.open = ""

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", data))

    def handle_data(self, data: str) -> None:
        self.inside[self.open] = self.inside.get(self.open, "") + data


@functools.cache
def _plain_page() -> _Outline:
    note = ModelNote("m", "0", {})
    return _Outline(render([_entry(("a", "b"), ("c", "d"), "a b", note, "x")]))


def _entry(
    source: Sequence[str], target: Sequence[str], text: str, note: ModelNote, word: str
) -> PageEntry:
    S, T = len(source), len(target)
    numbers = np.random.default_rng(1)
    sizes = {"source": S, "target": T}
    maps = tuple(
        _map(kind, 0, (sizes[SIDES[kind][0]], sizes[SIDES[kind][1]], 2, 2), numbers, 1)
        for kind in KINDS
    )
    trace = AttentionTrace(
        note,
        Source(text, tuple(source), tuple(range(S))),
        Target(text, ("<s>", *target[:-1]), tuple(target), tuple(range(T)),
               tuple(range(T)), (0.0,) * T),
        maps,
    )  # fmt: skip
    return PageEntry(trace, {word: Entry(word, word)})


SOME_TOKENS = st.lists(TOKENS, min_size=1, max_size=6)


@property_of(40, source=SOME_TOKENS, target=SOME_TOKENS, text=texts(), name=texts(),
             word=texts(max_size=8).filter(bool), more=st.booleans())  # fmt: skip
@example(source=list(SPECIAL), target=list(SPECIAL), text="".join(SPECIAL),
         name="</title><script>", word="</script>", more=True)  # fmt: skip
def test_any_tokens_are_data_on_the_page_and_never_markup(
    source: list[str], target: list[str], text: str, name: str, word: str, more: bool
) -> None:
    note = ModelNote(name, name, {"name": name, "end_id": len(target) - 1})
    entry = _entry(source, target, text, note, word)
    page = _Outline(render([entry] * (1 + more)))
    assert page.tags == _plain_page().tags
    assert page.inside.get("title", "") == " · ".join([text] * (1 + more))[:120]
    data = json.loads(page.inside["data"])
    for found in data["entries"]:
        assert _raw(found["source"]) == source
        assert _raw(found["reads"]) == ["<s>", *target[:-1]]
        assert _raw(found["predicts"]) == target
        assert found["text"][0] == text
    assert data["models"][0]["name"] == name
    assert data["models"][0]["config"]["name"] == name


def _raw(shown: Sequence[dict[str, Any]]) -> list[str]:
    """Return the tokens as they were; the first byte of a character names them all."""
    split = ["of" not in token and index + 1 < len(shown) and "of" in shown[index + 1]
             for index, token in enumerate(shown)]  # fmt: skip
    return [token["raw"].split(" ")[0] if first else token["raw"]
            for token, first in zip(shown, split, strict=True)]  # fmt: skip
