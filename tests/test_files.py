"""Attention files: complete, exact, recomputable, and refused where they are not."""

import copy
import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from explain.files import from_json, read, to_json, write
from explain.kinds import KINDS, SIDES
from explain.trace import VALUES, AttentionTrace, TraceError, check, sub_layers
from explain.translator import Translator
from model.attention import Trace
from model.search import TorchEngine

TEXT = "My parents go to the station."
FORMATS = ("json", "jsonl", "npz")


@pytest.fixture(scope="module")
def trace(translator: Translator) -> AttentionTrace:
    [[best, *_]] = translator.translate([TEXT], beam=4)
    return translator.trace(TEXT, best.hypothesis.ids)


def _equal(one: AttentionTrace, other: AttentionTrace, values: bool) -> None:
    assert (one.model, one.source, one.target) == (
        other.model, other.source, other.target,
    )  # fmt: skip
    assert [(m.kind, m.layer) for m in one.maps] == [
        (m.kind, m.layer) for m in other.maps
    ]
    for mine, its in zip(one.maps, other.maps, strict=True):
        assert mine.weights.dtype == its.weights.dtype == np.float32
        assert np.array_equal(mine.weights, its.weights)
        if values:
            assert set(mine.values) == set(its.values)
            for name, value in mine.values.items():
                assert np.array_equal(value, its.values[name]), name
    if values:
        for mine, its in zip(one.projections, other.projections, strict=True):
            for name in ("w_q", "w_k", "w_v", "w_o"):
                assert np.array_equal(getattr(mine, name), getattr(its, name))
        assert len(one.projections) == len(other.projections) == len(one.maps)


def test_the_json_is_what_the_issue_says(trace: AttentionTrace) -> None:
    data = json.loads(json.dumps(to_json(trace)))
    assert set(data) == {"format", "version", "model", "source", "target", "maps"}
    assert (data["format"], data["version"]) == ("attention-trace", 1)
    assert set(data["model"]) == {"name", "weights_sha256", "config"}
    assert set(data["source"]) == {"text", "tokens", "ids"}
    assert set(data["target"]) == {
        "text", "tokens_in", "tokens_out", "ids_in", "ids_out", "log_probs",
    }  # fmt: skip
    assert data["source"]["text"] == TEXT and data["source"]["tokens"][-1] == "</s>"
    target = data["target"]
    assert target["tokens_in"][0] == "<s>" and target["tokens_out"][-1] == "</s>"
    assert target["tokens_in"][1:] == target["tokens_out"][:-1]
    assert target["ids_in"][1:] == target["ids_out"][:-1]
    sides = {"encoder_self": ("source", "source"), "decoder_self": ("target", "target"),
             "cross": ("target", "source")}  # fmt: skip
    found = []
    for one in data["maps"]:
        assert set(one) == {"kind", "layer", "rows", "columns", "weights"}
        assert (one["rows"], one["columns"]) == sides[one["kind"]]
        found.append((one["kind"], one["layer"]))
    assert found == [(kind, layer) for kind in KINDS for layer in (0, 1)]


def test_rows_and_columns_are_the_tokens(translator: Translator) -> None:
    """Unlike lengths, so that nothing can be the wrong way round."""
    for text, ids in [(TEXT, [5, 6, 7]), ("I", [9] * 12), ("I", [8])]:
        made = translator.trace(text, ids)
        S, T = len(made.source.ids), len(ids) + 1
        shapes = {kind: made.map(kind, 1).weights.shape for kind in KINDS}
        assert shapes == {"encoder_self": (4, S, S), "decoder_self": (4, T, T),
                          "cross": (4, T, S)}  # fmt: skip
        for one in made.maps:
            assert np.isfinite(one.weights).all()
            assert np.abs(one.weights.sum(-1) - 1).max() < 1e-5
            above = np.triu(one.weights, k=1)
            assert (above == 0).all() == (one.kind == "decoder_self")


def test_the_trace_is_the_teacher_forced_run(translator: Translator) -> None:
    [found] = translator.translate([TEXT], beam=4)
    for best in found:
        hypothesis = best.hypothesis
        made = translator.trace(TEXT, hypothesis.ids, hypothesis.complete)
        total = sum(made.target.log_probs)
        assert total == pytest.approx(hypothesis.log_probability, abs=1e-4)
        with torch.inference_mode():
            logits = translator.model(
                torch.tensor([made.source.ids]), torch.tensor([made.target.ids_in])
            )
        expected = logits[0].log_softmax(-1)[range(len(made.target.ids_out)),
                                             list(made.target.ids_out)]  # fmt: skip
        assert made.target.log_probs == pytest.approx(expected.tolist(), abs=1e-5)
        assert made.target.text == best.text


def test_the_winners_maps_are_those_of_a_batch_that_holds_it(
    translator: Translator,
) -> None:
    """The same sentence padded, among others: what a trace never sees."""
    model = translator.model
    [[best, *_]] = translator.translate([TEXT], beam=4)
    made = translator.trace(TEXT, best.hypothesis.ids, best.hypothesis.complete)
    S, T = len(made.source.ids), len(made.target.ids_in)
    sources = torch.zeros(3, S + 4, dtype=torch.long)
    targets = torch.zeros(3, T + 3, dtype=torch.long)
    sources[0, :3] = torch.tensor([7, 9, 2])
    targets[0, :2] = torch.tensor([1, 8])
    sources[1, :S] = torch.tensor(made.source.ids)
    targets[1, :T] = torch.tensor(made.target.ids_in)
    sources[2], targets[2] = 11, 12
    kept = Trace()
    with torch.inference_mode():
        memory = model.encode(sources, kept)
        model.decode(targets, memory, model.source_mask(sources), kept)
    for kind, layer, name, _ in sub_layers(model):
        rows, columns = ({"source": S, "target": T}[side] for side in SIDES[kind])
        weights = kept.values[f"{name}.weights"][1]
        assert (weights[:, :rows, columns:] == 0).all()
        np.testing.assert_allclose(
            weights[:, :rows, :columns], made.map(kind, layer).weights, atol=1e-5
        )


def test_a_trace_is_taken_without_dropout(translator: Translator) -> None:
    model = copy.deepcopy(translator.model)
    for layer in (*model.encoder, *model.decoder):
        layer.dropout = 0.5
    dropping = copy.copy(translator)
    dropping.engine = TorchEngine.of(model)
    made = dropping.trace(TEXT, [5, 6, 7])
    for mine, its in zip(
        made.maps, translator.trace(TEXT, [5, 6, 7]).maps, strict=True
    ):
        assert np.array_equal(mine.weights, its.weights)
    model.train()
    with pytest.raises(TraceError, match="other logits than the plain one"):
        dropping.trace(TEXT, [5, 6, 7])


def test_a_hypothesis_without_an_end_has_no_end_in_its_trace(
    translator: Translator,
) -> None:
    limit = translator.model.config.max_length
    for steps in (3, limit):
        [[best]] = translator.translate([TEXT], max_steps=1)
        ids = (best.hypothesis.ids * limit)[:steps]
        made = translator.trace(TEXT, ids, complete=False)
        assert made.target.ids_out == ids
        assert made.target.ids_in == (1, *ids[:-1])
    assert not best.hypothesis.complete
    with pytest.raises(ValueError, match=f"a target of {limit} tokens is too long"):
        translator.trace(TEXT, ids)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("values", [False, True])
def test_what_is_written_is_read(
    trace: AttentionTrace, tmp_path: Path, suffix: str, values: bool
) -> None:
    path = tmp_path / f"a.{suffix}"
    write(path, [trace], values)
    [found] = read(path)
    _equal(found, trace, values or suffix == "npz")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_several_sentences_go_into_json_lines(
    translator: Translator, tmp_path: Path
) -> None:
    texts = [TEXT, "I\u2028sing", "The\u0085 old dogs \x0c sleep at home."]
    traces = [translator.trace(text, f"猫\u2028{n}") for n, text in enumerate(texts)]
    path = tmp_path / "a.jsonl"
    write(path, traces)
    assert path.read_bytes().count(b"\n") == 3
    for found, made in zip(read(path), traces, strict=True):
        _equal(found, made, values=False)
    for name in ("a.json", "a.npz"):
        with pytest.raises(ValueError, match="one sentence, and there are 3: give a"):
            write(tmp_path / name, traces)
    with pytest.raises(ValueError, match=r"ends in \.json, \.jsonl, \.npz"):
        write(tmp_path / "a.txt", [trace for trace in traces])
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


def test_text_is_written_as_text(trace: AttentionTrace, tmp_path: Path) -> None:
    write(tmp_path / "a.json", [trace])
    assert trace.target.text in (tmp_path / "a.json").read_text("utf-8")


def test_every_number_follows_from_the_file_alone(
    trace: AttentionTrace, tmp_path: Path
) -> None:
    write(tmp_path / "a.json", [trace], values=True)
    data = json.loads((tmp_path / "a.json").read_text("utf-8"))
    heads = data["model"]["config"]["heads"]
    matrices = {(p["kind"], p["layer"]): p for p in data["projections"]}
    for one in data["maps"]:
        values = {k: np.array(v, np.float64) for k, v in one["values"].items()}
        assert set(VALUES) <= set(values)
        w = {k: np.array(matrices[one["kind"], one["layer"]][k], np.float64)
             for k in ("W_Q", "W_K", "W_V", "W_O")}  # fmt: skip
        x = values["normalised"]
        other = values["memory"] if one["kind"] == "cross" else x

        def split(y: np.ndarray) -> np.ndarray:
            return y.reshape(len(y), heads, -1).transpose(1, 0, 2)

        q, k, v = split(x @ w["W_Q"]), split(other @ w["W_K"]), split(other @ w["W_V"])
        scores = q @ k.transpose(0, 2, 1)
        scaled = scores / math.sqrt(q.shape[2])
        masked = scaled.copy()
        if one["kind"] == "decoder_self":
            for t in range(len(x)):
                masked[:, t, t + 1 :] = -np.inf
        weights = np.exp(masked)
        weights /= weights.sum(-1, keepdims=True)
        context = weights @ v
        output = context.transpose(1, 0, 2).reshape(len(x), -1) @ w["W_O"]
        for name, computed in {"q": q, "k": k, "v": v, "scores": scores,
                               "scaled": scaled, "context": context,
                               "output": output}.items():  # fmt: skip
            np.testing.assert_allclose(computed, values[name], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(weights, np.array(one["weights"]), atol=1e-5)


def test_the_input_becomes_the_normalised_input(
    trace: AttentionTrace, translator: Translator
) -> None:
    for one in trace.maps:
        side = "encoder" if one.kind == "encoder_self" else "decoder"
        layer = getattr(translator.model, side)[one.layer]
        part = "cross_attention" if one.kind == "cross" else "self_attention"
        norm = getattr(layer, f"{part}_norm")
        x = one.values["input"]
        expected = (x - x.mean(1, keepdims=True)) / np.sqrt(
            x.var(1, keepdims=True) + norm.eps
        )
        expected = expected * norm.weight.detach().numpy() + norm.bias.detach().numpy()
        np.testing.assert_allclose(one.values["normalised"], expected, atol=1e-4)


# --------------------------------------------------------------------------- refusals


def _map(data: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(one for one in data["maps"] if one["kind"] == kind)


def _values(data: dict[str, Any], name: str) -> Any:
    return _map(data, "cross")["values"][name]


def _swap(row: list[float]) -> None:
    row[0], row[-1] = row[-1], row[0]


def _without(data: dict[str, Any], kind: str) -> None:
    """Take out a kind of map, and its matrices."""
    for part in ("maps", "projections"):
        data[part] = [one for one in data[part] if one["kind"] != kind]


def _matrix(data: dict[str, Any], name: str) -> Any:
    return data["projections"][0][name]


SPOIL = {
    "another sum": lambda d: _map(d, "cross")["weights"][0][0].__setitem__(0, 0.9),
    "a look ahead": lambda d: _map(d, "decoder_self")["weights"][0][0].__setitem__(
        slice(0, 2), [0.5, 0.5]
    ),
    "below zero": lambda d: _map(d, "cross")["weights"][1][0].__setitem__(
        slice(0, 2), [-0.5, 1.5]
    ),
    "no number": lambda d: _map(d, "cross")["weights"][0][0].__setitem__(0, math.nan),
    "a row less": lambda d: _map(d, "cross")["weights"][0].pop(),
    "a column less": lambda d: [row.pop() for row in _map(d, "cross")["weights"][0]],
    "the other way round": lambda d: _map(d, "cross").update(
        weights=np.swapaxes(_map(d, "cross")["weights"], 1, 2).tolist()
    ),
    "other sides": lambda d: _map(d, "cross").update(rows="source", columns="target"),
    "a kind of its own": lambda d: _map(d, "cross").update(kind="both"),
    "weights that do not follow": lambda d: _swap(_map(d, "cross")["weights"][0][1]),
    "another query": lambda d: _values(d, "q")[0][0].__setitem__(0, 9.0),
    "another context": lambda d: _values(d, "context")[0][0].__setitem__(0, 9.0),
    "a value less": lambda d: _map(d, "cross")["values"].pop("v"),
    "flat queries": lambda d: _map(d, "cross")["values"].update(q=[[1.0]]),
    "a list of values": lambda d: _map(d, "cross").update(values=[1]),
    "a token less": lambda d: d["source"]["tokens"].pop(),
    "an id less": lambda d: d["target"]["ids_in"].pop(),
    "a probability less": lambda d: d["target"]["log_probs"].pop(),
    "an id of text": lambda d: d["target"]["ids_in"].__setitem__(0, "1"),
    "a source that is a list": lambda d: d.update(source=[1]),
    "no model": lambda d: d.pop("model"),
    "maps that are none": lambda d: d.update(maps=[None]),
    "no map": lambda d: d.update(maps=[], projections=[]),
    "no cross map": lambda d: _without(d, "cross"),
    "no map of the decoder": lambda d: _without(d, "decoder_self"),
    "matrices without a map": lambda d: d.update(maps=d["maps"][:1] + d["maps"][2:]),
    "an endless matrix": lambda d: _matrix(d, "W_O")[0].__setitem__(0, math.inf),
    "a matrix that is none": lambda d: _matrix(d, "W_V")[1].__setitem__(1, math.nan),
    "smaller matrices": lambda d: d["projections"][0].update(
        {name: np.eye(28).tolist() for name in ("W_Q", "W_K", "W_V", "W_O")}
    ),
    "matrices between heads": lambda d: [
        d.update(maps=[one | {"values": {}} for one in d["maps"]]),
        d["projections"][0].update(
            {name: np.eye(30).tolist() for name in ("W_Q", "W_K", "W_V", "W_O")}
        ),
    ],
}  # fmt: skip


@pytest.mark.parametrize("spoil", SPOIL.values(), ids=SPOIL)
@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_damage_is_found(
    trace: AttentionTrace, tmp_path: Path, spoil: Any, suffix: str
) -> None:
    data = json.loads(json.dumps(to_json(trace, values=True)))
    path = tmp_path / f"a.{suffix}"
    path.write_text(json.dumps(data), "utf-8")
    assert len(read(path)) == 1
    spoil(data)
    path.write_text(json.dumps(data), "utf-8")
    with pytest.raises(TraceError, match=f"a.{suffix}: "):
        read(path)


def test_a_trace_needs_no_encoder_and_no_values(
    trace: AttentionTrace,
) -> None:
    data = to_json(trace, values=True)
    _without(data, "encoder_self")
    for found in data["maps"]:
        found["values"] = {}
    assert from_json(data).layers("encoder_self") == 0
    assert len(from_json(data).projections) == 4


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_an_unknown_version_is_refused_by_name(
    trace: AttentionTrace, version: object
) -> None:
    with pytest.raises(
        TraceError, match=f"of version {version!r}; this program reads 1"
    ):
        from_json(to_json(trace) | {"version": version})


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    "content",
    [b"{}", b"[]", b"{", b"\xff", b"[" * 100_000, b"PK\x03\x04", b'{"format"}'],
)
def test_files_of_something_else(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=f"a.{suffix}: "):
        read(path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / f"none.{suffix}")


def _nodes(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) of nested lists and dictionaries."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield data, key
        if isinstance(value, dict | list):
            yield from _nodes(value)


def test_no_damage_to_the_structure_is_anything_but_a_trace_error(
    translator: Translator,
) -> None:
    made = to_json(translator.trace("I", [7, 8]), values=True)
    data = json.loads(json.dumps(made))
    chance = random.Random(2)
    others: list[Any] = [None, [], {}, "x", -1, 1.5, True, [[]], [None], {"x": [1]}]
    places = list(_nodes(data))
    top = [(at, key) for at, key in places if isinstance(at, dict)]
    refused = 0
    for _ in range(400):
        at, key = chance.choice(chance.choice([places, top]))
        before = copy.copy(at)
        if chance.random() < 0.3:
            del at[key]
        else:
            at[key] = chance.choice(others)
        try:
            check(from_json(data))
        except TraceError:
            refused += 1
        at.clear()
        at.update(before) if isinstance(at, dict) else at.extend(before)
    assert refused > 200
    assert data == json.loads(json.dumps(made))


def test_npz_files_that_are_damaged(trace: AttentionTrace, tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.npz", tmp_path / "a.npz"
    write(whole, [trace])
    content = whole.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(TraceError, match="a.npz: "):
        read(path)
    with np.load(whole) as arrays:
        parts = dict(arrays)
    spoiled = parts | {"cross.0.weights": parts["cross.0.weights"] * 0.9}
    for change in (
        spoiled,
        {name: value for name, value in parts.items() if name != "about"},
        {name: value for name, value in parts.items() if name != "cross.0.weights"},
        {name: value for name, value in parts.items() if name != "cross.0.q"},
        {name: value for name, value in parts.items() if name != "cross.0.w_k"},
        parts | {"cross.0.q": parts["cross.0.q"][0]},
        parts | {"about": np.array("{")},
        parts | {"about": np.array("[1]")},
        parts | {"about": np.array('{"maps": 3}')},
    ):
        np.savez(path, **change)
        with pytest.raises(TraceError, match="a.npz: "):
            read(path)
    np.savez(path, **(parts | {"about": np.array([{}], dtype=object)}))
    with pytest.raises(TraceError, match="a.npz: "):  # nothing is unpickled
        read(path)


def test_the_check_itself(trace: AttentionTrace) -> None:
    check(trace)
    first = trace.maps[0]
    bent = replace(first, weights=first.weights + np.float32(1e-3))
    with pytest.raises(TraceError, match="a row of the encoder_self map of layer 0"):
        check(replace(trace, maps=(bent, *trace.maps[1:])))


def test_nothing_is_no_map(trace: AttentionTrace) -> None:
    found = trace.maps[0]
    no_heads = replace(found, weights=found.weights[:0], values={})
    with pytest.raises(TraceError, match="has shape"):
        check(replace(trace, maps=(no_heads,)))
    narrow = {name: found.values[name][..., :0] for name in ("q", "k", "v", "context")}
    with pytest.raises(TraceError, match="q of the .* has no numbers"):
        check(replace(trace, maps=(replace(found, values=narrow),)))
