"""Scaled dot-product attention, and several heads of it side by side.

Vaswani et al. (2017), "Attention Is All You Need", sections 3.2.1 and 3.2.2. This is
the only place where the project computes attention.

Shapes, here and in the comments of every other file: B batch, S source or key length,
T target or query length, D model width, H heads, K width of one head, F feed-forward
width, V vocabulary, N tokens of a packed stream (`model/packing.py`). Batch comes
first.
"""

import math

import torch
from torch import Tensor, nn

from model.linear import linear
from model.packing import Packing

VECTOR = 16
"""fp32 numbers that a processor takes at once: shorter rows of scores are slower."""


class Trace:
    """The intermediate values of one pass, by dotted name.

    A pass that is given a trace keeps its values there, for example under
    `decoder.0.cross_attention.weights`; nothing else about the pass changes.
    """

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self._prefix = ""

    def scope(self, name: str) -> "Trace":
        """Return a view of this trace that puts `name.` before every name."""
        inner = Trace()
        inner.values = self.values
        inner._prefix = f"{self._prefix}{name}."
        return inner

    def keep(self, **values: Tensor) -> None:
        """Record each value under its keyword."""
        for name, value in values.items():
            self.values[self._prefix + name] = value


class _NoTrace(Trace):
    """What a pass is given when nobody wants its values."""

    def scope(self, name: str) -> Trace:
        return self

    def keep(self, **values: Tensor) -> None:
        pass


NO_TRACE: Trace = _NoTrace()


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, trace: Trace = NO_TRACE
) -> Tensor:
    """Mix the values by how well their keys match each query.

    The arithmetic is the one that the articles print, and is written out rather than
    left to `F.scaled_dot_product_attention`: for sentences of 10 to 20 tokens it trains
    faster on a CPU (docs/experiments.md), and every step of it can be traced.

    q is (B, H, T, K), k is (B, H, S, K), v is (B, H, S, K); the result is (B, H, T, K).
    mask is boolean and broadcasts to (B, H, T, S): True where the query may attend. No
    row of it may be all False.
    """
    scores = q @ k.transpose(-2, -1)  # (B, H, T, S)
    scaled = scores * (1.0 / math.sqrt(q.shape[-1]))
    masked = scaled if mask is None else scaled.masked_fill(~mask, -math.inf)
    weights = softmax(masked).to(v.dtype)
    context = weights @ v  # (B, H, T, K)
    trace.keep(
        q=q, k=k, v=v, scores=scores, scaled=scaled, weights=weights, context=context
    )
    return context


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last dimension; scores is (…, S).

    In fp32 whatever flows: more exact, and on a CPU faster than in bf16. There torch's
    own takes 5 times as long as exponentials and their sum for many rows that fill no
    vector; those take over where no gradient is asked for.
    """
    slow = scores.shape[-1] < VECTOR and scores.numel() >= 1_024
    if not slow or scores.device.type != "cpu" or torch.is_grad_enabled():
        return scores.softmax(dim=-1, dtype=torch.float32)
    scores = scores.float()
    exponentials = (scores - scores.amax(dim=-1, keepdim=True)).exp_()
    return exponentials.div_(exponentials.sum(dim=-1, keepdim=True))


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each over its own projections of the input.

    The projections have no bias, so that Q = X W_Q reads as the articles write it.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        # W_Q, W_K and W_V in one tensor, so that one product gives all three. As in
        # torch.nn.Linear each is stored transposed: X W_Q is F.linear(x, w_qkv[0]).
        self.w_qkv = nn.Parameter(torch.empty(3, width, width))
        self.w_o = nn.Parameter(torch.empty(width, width))

    def project(
        self, x: Tensor, packing: Packing | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return x's queries, keys and values, each (B, H, T, K).

        x is (B, T, D), or with a packing (N, D).
        """
        q, k, v = self._heads_of(linear(x, self.w_qkv.flatten(0, 1)), 3, packing)
        return q, k, v

    def project_query(self, x: Tensor, packing: Packing | None = None) -> Tensor:
        """Return the queries of x, (B, H, T, K); x as in `project`."""
        return self._heads_of(linear(x, self.w_qkv[0]), 1, packing)[0]

    def project_memory(
        self, memory: Tensor, packing: Packing | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the keys and values of memory, each (B, H, S, K).

        memory is (B, S, D), or with a packing (N, D).
        """
        projected = linear(memory, self.w_qkv[1:].flatten(0, 1))
        k, v = self._heads_of(projected, 2, packing)
        return k, v

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        trace: Trace = NO_TRACE,
        packing: Packing | None = None,
    ) -> Tensor:
        """Attend with every head, concatenate the heads and project them with W_O.

        q is (B, H, T, K), k and v are (B, H, S, K); the result is (B, T, D), or with a
        packing of the queries (N, D).
        """
        context = attention(q.to(k.dtype), k, v, mask, trace).to(self.w_o.dtype)
        concatenated = context.transpose(1, 2).flatten(2)  # (B, T, H*K = D)
        if packing is not None:
            concatenated = packing.pack(concatenated)  # (N, D)
        output = linear(concatenated, self.w_o)
        trace.keep(concatenated=concatenated, output=output)
        return output

    def _heads_of(
        self, projected: Tensor, parts: int, packing: Packing | None
    ) -> tuple[Tensor, ...]:
        """Split (B, T, parts*D) into `parts` tensors of shape (B, H, T, K)."""
        if packing is not None:
            return packing.unpack_heads(projected, parts, self.heads)
        B, T, D = projected.shape
        split = projected.view(B, T, parts, self.heads, D // parts // self.heads)
        return split.permute(2, 0, 3, 1, 4).unbind(0)
