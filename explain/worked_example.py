"""The article's arithmetic, step by step, on its own small numbers.

`python -m explain.worked_example` prints it. The numbers are in worked_example.json and
run through `model.attention`, as every sentence does. The article does not print all of
the cross part's W_Q and W_K, nor of W_O: the rows it leaves out were solved from the
results that it does print, all of which come out. It gives no values for apple, banana
and car; those are ours.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from explain.steps import (
    MASKED,
    Numbers,
    Part,
    Precision,
    Query,
    Step,
    attention_steps,
    bar,
    concatenation_step,
    product,
    projection_step,
    render,
    weighted_sum_step,
)
from model.attention import MultiHeadAttention, Trace, attention
from model.command import parse, run

PartName = Literal["self", "cross", "multi-head", "softmax"]
DATA = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Options:
    """Print how one token's attention is computed, on the article's own numbers."""

    part: PartName | None = None
    """Which calculation to print; all of them where none is given."""
    token: str | None = None
    """Whose attention to compute: I, love, machine, learning, 私は or apple."""
    mask: bool = False
    """Show what causal masking would change in the self-attention."""


def worked_example(
    data: Mapping[str, Any], options: Options | None = None
) -> list[Part]:
    """Return the parts that the options ask for, computed from data.

    A token chooses the parts in which it is the query. Raises `ValueError` where it is
    in none of them, and where a mask is asked for without the part that it changes.
    """
    options = options or Options()
    parts: list[PartName] = [options.part] if options.part else [*_PARTS]
    queries = {
        part: data[part]["tokens"] if part == "self" else [data[part]["query"]]
        for part in parts
    }
    if options.token is not None:
        parts = [part for part in parts if options.token in queries[part]]
    if not parts:
        known = ", ".join(dict.fromkeys(sum(queries.values(), [])))
        where = f"--part {options.part} has" if options.part else "the example has"
        raise ValueError(f"{where} no token {options.token!r}: give one of {known}")
    if options.mask and "self" not in parts:
        raise ValueError(
            "--mask changes self-attention alone: give --part self with it"
        )
    return [
        _PARTS[part](data[part], options.token or data[part]["query"], options.mask)
        for part in parts
    ]


def load(path: Path = DATA) -> dict[str, Any]:
    """Return the example's numbers."""
    data: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return data


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""

    def print_parts() -> None:
        options = parse(Options, arguments, "-m explain.worked_example")
        parts = worked_example(load(), options)
        console = Console(highlight=False)
        with console.capture() as captured:
            for shown in render(parts):
                console.print(shown)
        # `rich` fills its lines with spaces up to the width of the terminal.
        sys.stdout.write(re.sub(" +\n", "\n", captured.get()))

    return run(print_parts, "explain.worked_example")


def _self_attention(data: Mapping[str, Any], token: str, mask: bool) -> Part:
    tokens = data["tokens"]
    x, w_q, w_k, w_v = (_tensor(data[name]) for name in ("X", "W_Q", "W_K", "W_V"))
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    plain = _attend(q, k, v)
    at = tokens.index(token)
    precision = Precision(data["decimals"])
    steps = [
        _inputs(tokens, x, precision),
        _projected(
            "Queries: what each token looks for", "q", tokens, x, w_q, precision
        ),
        _projected("Keys: what each token answers to", "k", tokens, x, w_k, precision),
        _projected("Values: what each token gives", "v", tokens, x, w_v, precision),
        *attention_steps(_query(token, tokens, at, plain), precision),
    ]
    if mask:
        causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        masked = _attend(q, k, v, causal)
        steps += [
            _mask_step(token, tokens, at, plain, masked, precision),
            _triangle(tokens, masked["weights"], precision),
        ]
    sentence = " ".join(tokens)
    return Part(f"Self-attention: how “{token}” attends to “{sentence}”", tuple(steps))


def _cross_attention(data: Mapping[str, Any], token: str, mask: bool) -> Part:
    tokens = data["tokens"]
    x, memory = _tensor([data["x"]]), _tensor(data["encoder_output"])
    w_q, w_k, w_v = (_tensor(data[name]) for name in ("W_Q", "W_K", "W_V"))
    values = _attend(x @ w_q, memory @ w_k, memory @ w_v)
    precision = Precision(data["decimals"])
    rows = [
        *(
            (name, precision.vector("x", row))
            for name, row in zip(tokens, memory.numpy(), strict=True)
        ),
        (token, precision.vector("x", x[0].numpy())),
    ]
    start = Step(
        "Two sides: the English that was read, the Japanese written so far",
        "encoder output: one vector for each source token;  x: the decoder's vector",
        ("token", "vector"),
        tuple(rows),
        f"The query comes from the decoder, which has just read {token}; the keys and "
        "values come from the encoder's output.",
    )
    steps = [
        start,
        _projected(
            "Query: what the decoder looks for", "q", [token], x, w_q, precision
        ),
        _projected(
            "Keys, of the encoder's output", "k", tokens, memory, w_k, precision
        ),
        _projected(
            "Values, of the encoder's output", "v", tokens, memory, w_v, precision
        ),
        *attention_steps(_query(token, tokens, 0, values), precision),
    ]
    heading = f"Cross-attention: how {token} attends to “{' '.join(tokens)}”"
    return Part(heading, tuple(steps))


def _multi_head(data: Mapping[str, Any], token: str, mask: bool) -> Part:
    heads, w_o = _tensor(data["heads"]), _tensor(data["W_O"])
    H, K = heads.shape
    module = MultiHeadAttention(H * K, H)
    module.w_o = nn.Parameter(w_o.T.contiguous())
    trace = Trace()
    # One key, so each head's one weight is 1 and its output is the value given.
    q = k = heads.new_zeros(1, H, 1, K)
    with torch.inference_mode():
        output = module.attend(q, k, heads[None, :, None], None, trace)[0, 0].numpy()
    line = trace.values["concatenated"][0, 0].numpy()
    precision = Precision(data["decimals"])
    matrix = [
        (f"W_O, row {index}", precision.vector("W_O", row.numpy()), "")
        for index, row in enumerate(w_o, start=1)
    ]
    sums = [
        (f"output {index}", _nonzero(line, column.numpy(), precision),
         precision.number("output", output[index - 1]))
        for index, column in enumerate(w_o.T, start=1)
    ]  # fmt: skip
    total = ("output", "", precision.vector("output", output))
    steps = (
        concatenation_step(line.reshape(H, K), precision),
        projection_step(
            token, len(output), [*matrix, *sums, total], ("", "", "result")
        ),
    )
    return Part(f"Several heads: what “{token}” takes from {H} attentions", steps)


def _similarities(data: Mapping[str, Any], token: str, mask: bool) -> Part:
    tokens = data["tokens"]
    # A query of the one number 1 and keys of one number: their products are the scores
    # that the example gives, and √1 leaves them as they are.
    keys = _tensor(data["similarities"])[:, None]
    values = _attend(keys.new_ones(1, 1), keys, _tensor(data["values"]))
    precision = Precision(data["decimals"])
    query = _query(token, tokens, 0, values)
    given = Step(
        "Scores: how alike are they?",
        "score = similarity, as the example gives it",
        ("key of", "score"),
        tuple(
            (key, precision.number("scores", score))
            for key, score in zip(tokens, query.scores, strict=True)
        ),
        f"How well does each word answer to {token}? The larger, the more alike.",
    )
    softmax = _against_popular(query, data["popular"], precision)
    steps = (given, softmax, weighted_sum_step(query, precision))
    return Part(f"Softmax: how {token} attends to {', '.join(tokens)}", steps)


_PARTS: dict[PartName, Callable[[Mapping[str, Any], str, bool], Part]] = {
    "self": _self_attention,
    "cross": _cross_attention,
    "multi-head": _multi_head,
    "softmax": _similarities,
}


def _against_popular(
    query: Query, popular: Sequence[float], precision: Precision
) -> Step:
    rows = [
        (key, precision.number("weights", weight), f"{told:.2f}", bar(weight))
        for key, weight, told in zip(query.keys, query.weights, popular, strict=True)
    ]
    scores = ", ".join(f"{score:g}" for score in query.scores)
    return Step(
        "Softmax: scores become shares",
        "weight = exp(score) / sum of exp(score) over all keys",
        ("key of", "weight", "often told", ""),
        (*rows, ("sum", precision.number("weights", query.weights.sum()), "", "")),
        f"The example is often told with the weights in the third column. They are not "
        f"the softmax of {scores}: the second column is.",
        "lrrl",
    )


def _tensor(numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> dict[str, Numbers]:
    """Return the intermediates of one head; q is (T, K), k and v are (S, K)."""
    trace = Trace()
    attention(q[None, None], k[None, None], v[None, None], mask, trace)
    return {name: value[0, 0].numpy() for name, value in trace.values.items()}


def _query(
    name: str, keys: Sequence[str], at: int, values: Mapping[str, Numbers]
) -> Query:
    """Return row `at` of an attention's intermediates."""
    return Query(
        name=name,
        keys=keys,
        k=values["k"],
        v=values["v"],
        output=values["context"][at],
        **{part: values[part][at] for part in ("q", "scores", "scaled", "weights")},
    )


def _inputs(tokens: Sequence[str], x: Tensor, precision: Precision) -> Step:
    return Step(
        "Embeddings: each token is a vector",
        "X has one row for each token",
        ("token", "x"),
        tuple(
            (name, precision.vector("x", row.numpy()))
            for name, row in zip(tokens, x, strict=True)
        ),
        "A network works with numbers, so every token stands for a short list of them.",
    )


def _projected(
    title: str,
    name: str,
    tokens: Sequence[str],
    x: Tensor,
    matrix: Tensor,
    precision: Precision,
) -> Step:
    """Return the step that makes q, k or v of x, with its arithmetic written out."""
    projected = (x @ matrix).numpy()
    decimals = Precision({"w": 1, **precision.decimals})
    rows = [
        (
            token,
            ", ".join(product(row, w, decimals, ("x", "w")) for w in matrix.T.numpy()),
            precision.vector(name, result),
        )
        for token, row, result in zip(tokens, x.numpy(), projected, strict=True)
    ]
    written = ", ".join(decimals.vector("w", row.numpy()) for row in matrix)
    return Step(
        title,
        f"{name} = x W_{name.upper()},  W_{name.upper()} = [{written}]",
        ("token", "x times each column", name),
        tuple(rows),
        _PROJECTED[name],
        "llr",
    )


_PROJECTED = {
    "q": "A query is the token's question to the others: what am I looking for?",
    "k": "A key is what a token holds out to be found by.",
    "v": "A value is what a token hands over to those that look at it.",
}


def _nonzero(left: Numbers, right: Numbers, precision: Precision) -> str:
    """Return the arithmetic of a dot product without the terms that are times 0."""
    used = np.flatnonzero(right)
    return product(left[used], right[used], precision, ("heads", "W_O"))


def _mask_step(
    token: str,
    tokens: Sequence[str],
    at: int,
    plain: Mapping[str, Numbers],
    masked: Mapping[str, Numbers],
    precision: Precision,
) -> Step:
    rows = [
        (
            name,
            precision.number("weights", plain["weights"][at, i]),
            precision.number("weights", masked["weights"][at, i])
            if i <= at
            else MASKED,
        )
        for i, name in enumerate(tokens)
    ]
    outputs = (precision.vector("output", of["context"][at]) for of in (plain, masked))
    later = ", ".join(tokens[at + 1 :])
    return Step(
        "With a causal mask: no looking ahead",
        "scaled = -infinity where the key comes after the query, then softmax again",
        ("key of", "without mask", "with mask"),
        (*rows, ("output", *outputs)),
        f"A decoder has not yet written {later}: {token} may not look there, and their "
        "shares go to the tokens that are left."
        if later
        else f"Nothing comes after {token}, so that a mask changes nothing for it.",
    )


def _triangle(tokens: Sequence[str], weights: Numbers, precision: Precision) -> Step:
    rows = [
        (
            name,
            *(
                precision.number("weights", weights[t, s]) if s <= t else MASKED
                for s in range(len(tokens))
            ),
        )
        for t, name in enumerate(tokens)
    ]
    return Step(
        "The masked weights of every token",
        "row: the token that looks;  column: the token looked at",
        ("", *tokens),
        tuple(rows),
        f"Each row still adds up to 1; a dot ({MASKED}) marks what a mask hides.",
    )


if __name__ == "__main__":
    sys.exit(main())
