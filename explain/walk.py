"""The worked example's steps through a trained model, on the numbers of a real trace.

Every number shown is the trace's own, shortened to a vector's first few dimensions and
to two or three decimals. Attention is told by the same functions as the worked example.
"""

from dataclasses import dataclass

from rich.console import RenderableType

from data.tokenizer import Tokenizer
from explain.glossary import Glossary
from explain.kinds import Kind
from explain.probes import candidates
from explain.steps import (
    Numbers,
    Part,
    Precision,
    Query,
    Step,
    attention_steps,
    bar,
    concatenation_step,
    projection_step,
    render,
)
from explain.trace import AttentionMap, AttentionTrace
from explain.views import (
    ARTICLES_SOURCE,
    column_labels,
    default_row,
    entries,
    find_row,
    printable,
    source_labels,
    target_labels,
)
from model.transformer import Transformer

_NAMES = ("q", "k", "v", "scores", "output", "heads", "x")
_PRECISION = Precision(dict.fromkeys(_NAMES, 2) | {"weights": 3}, first=4, terms=2)
_NARROW = Precision(_PRECISION.decimals, first=2)


def walk(
    model: Transformer,
    trace: AttentionTrace,
    tokenizer_target: Tokenizer,
    glossary: Glossary,
    token: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> list[RenderableType]:
    """Return the steps from a source token's embedding to the next target token.

    `token` chooses the row that is followed: a target token that is read (私は where
    the translation has it), or a source token (love). Layer and head count from 1; on a
    side with fewer layers the last is shown. Raises `ValueError` for a token, layer or
    head that is not there, and for a trace without states.
    """
    return render(
        walk_parts(model, trace, tokenizer_target, glossary, token, layer, head)
    )


def walk_parts(
    model: Transformer,
    trace: AttentionTrace,
    tokenizer_target: Tokenizer,
    glossary: Glossary,
    token: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> list[Part]:
    """Return what `walk` renders."""
    if not trace.states:
        raise ValueError(
            "this trace has no states: take one from trace_attention, not from a file"
        )
    source_row, target_row = _rows(trace, token)
    layer, head = (1 if n is None else n for n in (layer, head))
    _check(trace, layer, head)
    positions = model.positions.float().cpu().numpy()
    encoder = _Side(trace, "encoder", source_row, layer, head, positions)
    decoder = _Side(trace, "decoder", target_row, layer, head, positions)
    return [
        Part(f"The encoder reads “{printable(trace.source.text)}”", _encoder(encoder)),
        Part(
            f"The decoder, having read {' '.join(decoder.labels[: target_row + 1])}",
            (
                *_decoder(decoder),
                _last_norm(decoder),
                _prediction(decoder, tokenizer_target, glossary),
            ),
        ),
    ]


@dataclass(frozen=True)
class _Side:
    """The encoder or the decoder, and the row, layer and head that are followed."""

    trace: AttentionTrace
    name: str
    row: int
    asked_layer: int  # from 1
    head: int  # from 1
    positions: Numbers

    @property
    def labels(self) -> tuple[str, ...]:
        if self.name == "encoder":
            return source_labels(self.trace)
        return target_labels(self.trace.target.tokens_in)

    @property
    def token(self) -> str:
        return self.labels[self.row]

    @property
    def layers(self) -> int:
        return self.trace.layers("encoder_self" if self.name == "encoder" else "cross")

    @property
    def layer(self) -> int:
        """The layer that is shown, from 0."""
        return min(self.asked_layer, self.layers) - 1

    @property
    def place(self) -> str:
        return f"{self.name} layer {self.layer + 1}"

    def state(self, name: str) -> Numbers:
        """Return the followed row of a state of the layer that is shown."""
        states = self.trace.states[f"{self.name}.{self.layer}.{name}"]
        row: Numbers = states[self.row]
        return row


def _rows(trace: AttentionTrace, token: str | None) -> tuple[int, int]:
    """Return the source row and the target row to follow."""
    read = trace.target.tokens_in
    source_names, target_names = source_labels(trace), target_labels(read)
    rows = (
        source_names.index(ARTICLES_SOURCE) if ARTICLES_SOURCE in source_names else 0,
        default_row(trace),
    )
    if token is None:
        return rows
    if (row := find_row(read, target_names, token)) is not None:
        return rows[0], row
    if token in source_names:
        return source_names.index(token), rows[1]
    raise ValueError(
        f"the translation reads no token {token!r}: give one of "
        f"{' '.join(dict.fromkeys(target_names + source_names))}"
    )


def _check(trace: AttentionTrace, layer: int, head: int) -> None:
    layers = max(trace.layers("encoder_self"), trace.layers("cross"))
    heads = len(trace.maps[0].weights)
    for name, value, most in (("layer", layer, layers), ("head", head, heads)):
        if not 1 <= value <= most:
            raise ValueError(f"there is no {name} {value}: give one from 1 to {most}")


def _encoder(side: _Side) -> tuple[Step, ...]:
    memory = side.trace.states["memory"]
    last = Step(
        "The encoder's output",
        f"one vector for each token, after layer {side.layers} and a last layer norm",
        ("token", "encoder output"),
        tuple(
            (name, _PRECISION.vector("x", row))
            for name, row in zip(side.labels, memory, strict=True)
        ),
        "Each token's vector now knows its sentence. The decoder will look at these, "
        "and at nothing else of the source.",
    )
    return (
        _embedding(side),
        _layer_norm(side, "encoder_self"),
        *_attention(side, "encoder_self"),
        *_after_attention(side),
        last,
    )


def _decoder(side: _Side) -> tuple[Step, ...]:
    return (
        _embedding(side),
        _layer_norm(side, "decoder_self"),
        *_attention(side, "decoder_self"),
        _residual(side, "self_attention", "cross_attention"),
        _layer_norm(side, "cross"),
        *_attention(side, "cross"),
        *_after_attention(side),
    )


def _embedding(side: _Side) -> Step:
    group = "source" if side.name == "encoder" else "target"
    token = side.trace.states[f"{group}.token"][side.row]
    x = side.trace.states[f"{side.name}.0.self_attention.x"][side.row]
    position = side.positions[side.row]
    return Step(
        f"Embedding and position of {side.token}",
        "x = √d_model × embedding of the token + vector of the position (from 0)",
        ("", "first numbers"),
        (
            (f"√{len(x)} × embedding", _PRECISION.vector("x", token)),
            (f"position {side.row}", _PRECISION.vector("x", position)),
            ("x", _PRECISION.vector("x", x)),
        ),
        "A token stands for a list of numbers, and so does its place in the sentence: "
        "attention by itself would not see the order of words.",
    )


def _layer_norm(side: _Side, kind: Kind) -> Step:
    found = side.trace.map(kind, side.layer)
    before, after = (found.values[name][side.row] for name in ("input", "normalised"))
    where = "cross-attention" if kind == "cross" else "self-attention"
    return Step(
        f"Layer norm, before the {where} of {side.place}",
        "norm(x) = (x - mean of x) / standard deviation of x × gain + bias",
        ("", "first numbers"),
        (
            ("x", _PRECISION.vector("x", before)),
            ("norm(x)", _PRECISION.vector("x", after)),
        ),
        f"The {len(before)} numbers of {side.token} are brought to a common scale; "
        "gain and bias are learnt.",
    )


def _attention(side: _Side, kind: Kind) -> tuple[Step, ...]:
    """Return the steps of one sub-layer, from queries, keys and values to W_O."""
    found, head = side.trace.map(kind, side.layer), side.head - 1
    name = "cross_attention" if kind == "cross" else "self_attention"
    keys = column_labels(side.trace, kind)
    v, weights = found.values["v"][head], found.weights[head, side.row]
    query = Query(
        name=side.token,
        keys=keys,
        k=found.values["k"][head],
        v=v,
        weights=weights,
        output=found.values["context"][head, side.row],
        masked=[kind == "decoder_self" and s > side.row for s in range(len(keys))],
        **{n: found.values[n][head, side.row] for n in ("q", "scores", "scaled")},
    )
    concatenated = side.state(f"{name}.concatenated")
    heads = concatenated.reshape(len(found.weights), -1)
    output = found.values["output"][side.row]
    line = _PRECISION.vector("output", output)
    return (
        _queries_keys_values(side, found, query),
        *attention_steps(query, _PRECISION),
        concatenation_step(heads, _PRECISION),
        projection_step(
            side.token, len(output), [("output", line)], ("", "first numbers")
        ),
    )


def _queries_keys_values(side: _Side, found: AttentionMap, query: Query) -> Step:
    """Return the step with the followed row's query, and every key and value."""
    vectors = [
        (key, *(_NARROW.vector("k", row) for row in (query.k[i], query.v[i])))
        for i, key in enumerate(query.keys)
    ]
    asked = (f"query of {query.name}", _PRECISION.vector("q", query.q), "")
    if found.kind == "cross":
        formula = "q = norm(x) W_Q;  k = m W_K and v = m W_V, of the encoder's output m"
        plain = (
            f"The query comes from the decoder, which has just read {query.name}; the "
            "keys and values come from the encoder's output."
        )
    else:
        formula = "q = norm(x) W_Q,  k = norm(x) W_K,  v = norm(x) W_V"
        plain = (
            "A query asks what to look for, a key is what a token holds out to be "
            "found by, a value is what it hands over."
        )
    return Step(
        f"{_TITLES[found.kind]}: query, keys and values of head {side.head}",
        formula,
        ("", "key", "value"),
        (*vectors, asked),
        plain,
        "lll",
    )


_TITLES: dict[Kind, str] = {
    "encoder_self": "Self-attention",
    "decoder_self": "Masked self-attention, over what is written so far",
    "cross": "Cross-attention, over the source",
}


def _residual(side: _Side, name: str, following: str) -> Step:
    before, output = (side.state(f"{name}.{n}") for n in ("x", "output"))
    after = side.state(f"{following}.x")
    return Step(
        "Residual: attention adds, it does not replace",
        "x = x + output",
        ("", "first numbers"),
        (
            ("x before", _PRECISION.vector("x", before)),
            ("output", _PRECISION.vector("output", output)),
            ("x after", _PRECISION.vector("x", after)),
        ),
        f"What {side.token} took from the others is added to what it was.",
    )


def _after_attention(side: _Side) -> tuple[Step, ...]:
    """Return the steps from a layer's last attention to the layers after it."""
    name = "self_attention" if side.name == "encoder" else "cross_attention"
    rows = (
        ("x", "feed_forward.x"),
        ("norm(x)", "feed_forward.normalised"),
        ("output", "feed_forward.output"),
        ("x after", "output"),
    )
    feed_forward = Step(
        "Feed-forward: each token by itself",
        "x = x + max(0, norm(x) W_1 + b_1) W_2 + b_2",
        ("", "first numbers"),
        tuple((label, _PRECISION.vector("x", side.state(n))) for label, n in rows),
        f"Two matrices with a cut at 0 between them work on {side.token} alone; "
        "nothing comes from other tokens here.",
    )
    outputs = [
        (f"after layer {layer + 1}", _PRECISION.vector("x", states[side.row]))
        for layer in range(side.layers)
        for states in [side.trace.states[f"{side.name}.{layer}.output"]]
    ]
    following = Step(
        "The next layer",
        "the x after one layer is the x before the next",
        ("", f"x of {side.token}"),
        tuple(outputs),
        f"Every one of the {side.layers} layers does the same steps with matrices of "
        "its own.",
    )
    return _residual(side, name, "feed_forward"), feed_forward, following


def _last_norm(side: _Side) -> Step:
    states = side.trace.states
    before = states[f"decoder.{side.layers - 1}.output"][side.row]
    return Step(
        "A last layer norm",
        "h = norm(x)",
        ("", "first numbers"),
        (
            ("x", _PRECISION.vector("x", before)),
            ("h", _PRECISION.vector("x", states["hidden"][side.row])),
        ),
        f"This vector holds all that the decoder has to say after {side.token}.",
    )


def _prediction(side: _Side, tokenizer: Tokenizer, glossary: Glossary) -> Step:
    found = candidates(side.trace, tokenizer)[side.row]
    rows = []
    for candidate in found:
        (label,) = target_labels([candidate.token])
        (entry,) = entries([candidate.token], glossary)
        reading = f"{entry.reading} {entry.meaning}".strip() if entry else ""
        shown = f"{candidate.probability:.3f}"
        rows.append((label, shown, bar(candidate.probability), reading))
    logits = side.trace.states["logits"]
    (predicted,) = target_labels([side.trace.target.tokens_out[side.row]])
    return Step(
        "The next token",
        "P = softmax(h Eᵀ), and each row of E is a target token's embedding",
        ("token", "P", "", ""),
        tuple(rows),
        f"Each of the {logits.shape[-1]} tokens is scored against h; "
        f"after {side.token} the translation goes on with {predicted}.",
        "lrll",
    )
