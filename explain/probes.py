"""Questions put to a model about one of its own translations.

What would each row have predicted, what did each decoder layer have in mind, and what
does each head change? Attention weights alone answer none of the three.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from data.tokenizer import Tokenizer
from explain.kinds import Kind
from explain.trace import AttentionTrace, sub_layers
from model.engine import Hypothesis
from model.search import search
from model.transformer import Transformer


@dataclass(frozen=True)
class Candidate:
    """A token that a row might have predicted."""

    token: str
    probability: float


Candidates = tuple[Candidate, ...]
"""The likeliest tokens of one row, the likeliest first."""


@dataclass(frozen=True)
class HeadOff:
    """What a translation becomes without one head."""

    kind: Kind
    layer: int
    head: int
    translation: str
    """What greedy search finds with the head off."""
    complete: bool
    """False where that search reached its cap."""
    change: float
    """By how much the log-probability of the traced translation changes."""


@dataclass(frozen=True)
class WhatIf:
    """A translation without each of the heads in turn."""

    translation: str
    """What greedy search finds with every head on."""
    complete: bool
    """False where that search reached the model's limit."""
    heads: tuple[HeadOff, ...]


def candidates(
    trace: AttentionTrace, tokenizer: Tokenizer, most: int = 5
) -> tuple[Candidates, ...]:
    """Return the likeliest next tokens of each target row.

    Raises `ValueError` for a trace without states, such as one read from a file.
    """
    logits = torch.from_numpy(_states(trace)["logits"])
    return _likeliest(logits, tokenizer, most)


@torch.inference_mode()
def layer_lens(
    model: Transformer, trace: AttentionTrace, tokenizer: Tokenizer, most: int = 5
) -> tuple[tuple[Candidates, ...], ...]:
    """Return what each decoder layer would predict, were it the last: layers, rows.

    Each layer's output goes through the decoder's final norm and the output embedding
    ("logit lens", nostalgebraist 2020). Raises `ValueError` as `candidates` does.
    """
    states = _states(trace)
    layers = []
    for layer in range(len(model.decoder)):
        output = torch.from_numpy(states[f"decoder.{layer}.output"])  # (T, D)
        output = output.to(model.positions.device)
        logits = model.logits(model.decoder_norm(output))
        layers.append(_likeliest(logits, tokenizer, most))
    return tuple(layers)


def what_if(model: Transformer, trace: AttentionTrace, tokenizer: Tokenizer) -> WhatIf:
    """Translate again without each head, and score the traced translation without it.

    A head is off when its rows of W_O are zero: it still attends, and nobody hears it.
    """
    model = copy.deepcopy(model)
    greedy = _translate(model, trace)
    # Without a head a model may babble to its limit; twice the length shows that.
    cap = 2 * max(len(greedy.ids), len(trace.target.ids_out)) + 8
    before = _log_probability(model, trace)
    found = []
    for kind, layer, _, module in sub_layers(model):
        width = module.w_o.shape[0] // module.heads
        for head in range(module.heads):
            # W_O is stored transposed: the head's rows are columns here.
            columns = module.w_o.data[:, head * width : (head + 1) * width]
            kept = columns.clone()
            columns.zero_()
            off = _translate(model, trace, cap)
            text = _text(off.ids, tokenizer)
            change = _log_probability(model, trace) - before
            columns.copy_(kept)
            found.append(HeadOff(kind, layer, head, text, off.complete, change))
    return WhatIf(_text(greedy.ids, tokenizer), greedy.complete, tuple(found))


def _states(trace: AttentionTrace) -> Mapping[str, np.ndarray]:
    if "logits" not in trace.states:
        raise ValueError(
            "this trace has no states: take one from trace_attention, not from a file"
        )
    return trace.states


def _likeliest(
    logits: Tensor, tokenizer: Tokenizer, most: int
) -> tuple[Candidates, ...]:
    """Return the likeliest tokens of each row of logits, (T, V)."""
    probabilities, ids = logits.float().softmax(dim=-1).topk(min(most, logits.shape[1]))
    return tuple(
        tuple(map(Candidate, tokenizer.tokens(row_ids), row))
        for row_ids, row in zip(ids.tolist(), probabilities.tolist(), strict=True)
    )


def _translate(
    model: Transformer, trace: AttentionTrace, cap: int | None = None
) -> Hypothesis:
    """Return the greedy translation, of `cap` tokens at most."""
    source = torch.tensor([trace.source.ids], device=model.positions.device)
    return search(model, source, max_steps=cap)[0][0]


def _text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Return the text of ids; where bytes make no character, the pieces' names."""
    text = tokenizer.decode(ids)
    return "".join(tokenizer.tokens(ids)) if "\ufffd" in text else text


@torch.inference_mode()
def _log_probability(model: Transformer, trace: AttentionTrace) -> float:
    """Return the log-probability of the traced translation, its end mark included."""
    device = model.positions.device
    source = torch.tensor([trace.source.ids], device=device)
    target = torch.tensor([trace.target.ids_in], device=device)
    logits = model(source, target)[0].cpu()  # mps has no float64
    log_probs = logits.double().log_softmax(dim=-1)
    rows = torch.arange(len(trace.target.ids_out))
    return float(log_probs[rows, list(trace.target.ids_out)].sum())
