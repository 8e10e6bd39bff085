"""The walk's numbers against those of the trace, and against sums done again."""

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from small_model import GLOSSARY, model, renamed, tokenizers, trace
from torch.nn import functional as F

from explain.glossary import Entry
from explain.steps import Part, Step
from explain.trace import AttentionTrace
from explain.walk import walk, walk_parts


def parts(found: AttentionTrace | None = None, **options: Any) -> tuple[Part, Part]:
    encoder, decoder = walk_parts(
        model(), found or trace(), tokenizers()[1], GLOSSARY, **options
    )
    return encoder, decoder


def step(found: Part, title: str, place: int = 0) -> Step:
    return [s for s in found.steps if s.title.startswith(title)][place]


def numbers(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+", cell)]


def last(found: Step, row: int = -1) -> list[float]:
    return numbers(found.rows[row][-1])


def close(shown: Sequence[float], true: Any, digits: int = 2) -> bool:
    """Say whether numbers are those of a vector, rounded and shortened."""
    expected = np.asarray(true).ravel()[: len(shown)]
    return len(shown) > 0 and bool(
        np.allclose(shown, expected, atol=0.51 * 10.0**-digits, rtol=0)
    )


def test_the_steps_are_those_that_the_article_leaves_out_and_its_own() -> None:
    encoder, decoder = parts()
    attention = ["Scores", "Scaling", "Softmax", "Weighted sum", "Concatenation",
                 "Projection"]  # fmt: skip
    after = ["Residual", "Feed-forward", "The next layer"]
    assert starts(encoder) == [
        "Embedding and position of love", "Layer norm", "Self-attention", *attention,
        *after, "The encoder's output",
    ]  # fmt: skip
    assert starts(decoder) == [
        "Embedding and position of 私は", "Layer norm", "Masked self-attention",
        *attention, "Residual", "Layer norm", "Cross-attention", *attention, *after,
        "A last layer norm", "The next token",
    ]  # fmt: skip
    assert all(s.formula and s.plain for part in parts() for s in part.steps)


def starts(part: Part) -> list[str]:
    return [
        s.title if s.title.startswith("Embedding") else re.split("[:,]", s.title)[0]
        for s in part.steps
    ]


@pytest.mark.parametrize(("layer", "head"), [(1, 1), (2, 3)])
def test_the_encoders_numbers_follow_from_the_model(layer: int, head: int) -> None:
    found, network = trace(), model()
    encoder, _ = parts(found, layer=layer, head=head)
    with torch.inference_mode():
        ids = torch.tensor(found.source.ids)
        x = network.source_embedding(ids) * 4 + network.positions[: len(ids)]
        assert close(last(step(encoder, "Embedding")), x[1])
        for block in network.encoder[: layer - 1]:
            x = block(x[None], None)[0]
        block = network.encoder[layer - 1]
        normalised = block.self_attention_norm(x)
        assert close(last(step(encoder, "Layer norm")), normalised[1])
        q, k, v = (
            part[:, (head - 1) * 4 : head * 4]
            for part in (normalised @ w.T for w in block.self_attention.w_qkv)
        )
        scores = k @ q[1]
        weights = (scores / 2).softmax(0)
        vectors = step(encoder, "Self-attention").rows
        for row, key, value in zip(vectors, k, v, strict=False):
            assert close(numbers(row[1]), key) and close(numbers(row[2]), value)
        assert close(numbers(vectors[-1][1]), q[1])
        assert close([numbers(r[2])[0] for r in step(encoder, "Scores").rows], scores)
        scaled = [numbers(row[2])[0] for row in step(encoder, "Scaling").rows]
        assert close(scaled, scores / 2)
        shares = [numbers(row[1])[0] for row in step(encoder, "Softmax").rows[:-1]]
        assert close(shares, weights, digits=3)
        assert close(last(step(encoder, "Weighted")), weights @ v)
        assert close(last(step(encoder, "Concatenation"), head - 1), weights @ v)
        attended = block.self_attention.attend(
            *block.self_attention.project(normalised[None]), None
        )
        assert close(last(step(encoder, "Projection")), attended[0, 1])
        x = x + attended[0]
        assert close(last(step(encoder, "Residual")), x[1])
        x = x + block.feed_forward(block.feed_forward_norm(x))
        assert close(last(step(encoder, "Feed-forward")), x[1])
        assert close(last(step(encoder, "The next layer"), layer - 1), x[1])
        memory = network.encode(ids[None])[0]
    rows = step(encoder, "The encoder's output").rows
    assert [row[0] for row in rows] == ["I", "love", "machine", "learning", "</s>"]
    assert all(close(numbers(row[1]), m) for row, m in zip(rows, memory, strict=True))


def test_the_decoders_numbers_are_the_traces() -> None:
    found = trace()
    _, decoder = parts(found, layer=2, head=4)
    own, cross = (found.map(kind, 1) for kind in ("decoder_self", "cross"))
    assert close(last(step(decoder, "Weighted")), own.values["context"][3, 1])
    assert close(last(step(decoder, "Weighted", 1)), cross.values["context"][3, 1])
    weights = [numbers(row[1])[0] for row in step(decoder, "Softmax", 1).rows[:-1]]
    assert close(weights, cross.weights[3, 1], digits=3)
    assert close(last(step(decoder, "Projection", 1)), cross.values["output"][1])
    norms = step(decoder, "Layer norm", 1)
    assert close(last(norms, 0), cross.values["input"][1])
    assert close(last(norms), cross.values["normalised"][1])
    assert close(last(step(decoder, "A last layer norm")), found.states["hidden"][1])


def test_the_last_step_is_the_models_own_distribution() -> None:
    found, network = trace(), model()
    rows = step(parts(found)[1], "The next token").rows
    with torch.inference_mode():
        ids = torch.tensor([found.source.ids]), torch.tensor([found.target.ids_in])
        best = F.softmax(network(*ids)[0, 1], dim=0).topk(5)
    assert [row[1] for row in rows] == [f"{p:.3f}" for p in best.values.tolist()]


def test_what_a_mask_hides_is_a_dot_and_never_a_number() -> None:
    for title in ("Scores", "Scaling", "Softmax", "Weighted"):
        rows = step(parts()[1], title).rows
        hidden = {cell for row in rows[2:8] for cell in row[1:] if cell}
        assert hidden == {"·"}


def test_words_of_several_tokens_count_where_they_are_complete() -> None:
    found = renamed(trace(), ("<s>", "私", "は", "機械", "学習", "が", "です", "。"))
    assert parts(found)[1].heading == "The decoder, having read <s> 私 は"
    found = renamed(trace(), ("<s>", "僕", "も", "機械", "学習", "が", "です", "。"))
    assert parts(found)[1].heading == "The decoder, having read <s> 僕"


def test_a_token_chooses_a_row_on_its_side() -> None:
    encoder, decoder = parts(token="学習")
    assert decoder.heading.endswith("<s> 私は 機械 学習")
    assert step(encoder, "Embedding").title.endswith("love")
    encoder, decoder = parts(token="machine")
    assert step(encoder, "Embedding").title.endswith("machine")
    assert decoder.heading.endswith("<s> 私は")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"token": "愛"}, "no token '愛': give one of <s> 私は 機械"),
        ({"layer": 4}, "no layer 4: give one from 1 to 3"),
        ({"layer": 0}, "no layer 0"),
        ({"head": 5}, "no head 5: give one from 1 to 4"),
        ({"head": 0}, "no head 0"),
    ],
)
def test_what_is_not_there_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parts(**options)


def test_the_side_with_fewer_layers_shows_its_last() -> None:
    encoder, decoder = parts(layer=3)
    assert "encoder layer 3" in step(encoder, "Layer norm").title
    assert "decoder layer 2" in step(decoder, "Layer norm").title


def test_one_token_on_each_side() -> None:
    encoder, decoder = parts(trace("I", ()))
    assert decoder.heading == "The decoder, having read <s>"
    cells = [
        cell for p in (encoder, decoder) for s in p.steps for r in s.rows for cell in r
    ]
    assert not any("nan" in cell or "inf" in cell for cell in cells)
    assert step(decoder, "Softmax").rows == (
        ("<s>", "1.000", "█" * 20),
        ("sum", "1.000", ""),
    )


def test_no_escape_of_a_strangers_glossary_is_shown() -> None:
    target = tokenizers()[1]
    tokens = target.tokens([*range(len(target))])
    glossary = dict.fromkeys(tokens, Entry("\x1b[31m", "\x9b"))
    _, decoder = walk_parts(model(), trace(), target, glossary)
    readings = {row[3] for row in step(decoder, "The next token").rows}
    assert "U+001B[31m U+009B" in readings and all(map(str.isprintable, readings))


def test_a_trace_from_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match="no states"):
        parts(replace(trace(), states={}))


def test_it_prints_within_80_columns() -> None:
    console = Console(width=80, file=io.StringIO())
    for shown in walk(model(), trace(), tokenizers()[1], GLOSSARY):
        console.print(shown)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(cell_len, text.split("\n"))) <= 80
    assert "The encoder reads “I love machine learning”" in text
