"""The layers of the encoder and of the decoder.

Vaswani et al. (2017), sections 3.1 to 3.5, with the layer norm before each sub-layer
(Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture").
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.attention import NO_TRACE, MultiHeadAttention, Trace
from model.feed_forward import feed_forward
from model.packing import Packing

KeysValues = tuple[Tensor, Tensor]


def sinusoidal_positions(length: int, width: int) -> Tensor:
    """Return the position vectors, (length, width): sines first, then cosines.

    The paper interleaves the two, which makes no difference to what a model can learn,
    and its slowest wave has a step of 10,000^(-(D-2)/D), here 1/10,000. These are
    tensor2tensor's, and CTranslate2's.
    """
    position = torch.arange(length, dtype=torch.float32)[:, None]
    step = math.log(10_000) / max(width // 2 - 1, 1)
    angle = position * torch.exp(torch.arange(width // 2) * -step)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def dropout_mask(
    x: Tensor, probability: float, packing: Packing | None = None
) -> Tensor:
    """Return what to multiply x with: 0 for some of its numbers, 1/(1 - p) for others.

    x is (B, T, D), or with a packing (N, D).
    """
    if packing is None:
        return F.dropout(torch.ones_like(x), probability)
    return packing.dropout_mask(x, probability)


def add_dropped(
    x: Tensor, y: Tensor, layer: "EncoderLayer | DecoderLayer", packing: Packing | None
) -> Tensor:
    """Return x + y, in training with dropout on y; both are (B, T, D) or (N, D)."""
    if not layer.training or layer.dropout == 0:
        return x + y
    return torch.addcmul(x, y, dropout_mask(y, layer.dropout, packing))


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them, at each position alone."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        inner, outer = self.inner, self.outer
        return feed_forward(x, inner.weight, inner.bias, outer.weight, outer.bias)


class EncoderLayer(nn.Module):
    """Self-attention over the source, then a feed-forward block."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.self_attention_norm = nn.LayerNorm(width)
        self.self_attention = MultiHeadAttention(width, heads)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, hidden)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        trace: Trace = NO_TRACE,
        packing: Packing | None = None,
    ) -> Tensor:
        """x is (B, S, D), or packed (N, D), as is the result; mask is (B, 1, 1, S)."""
        x = _first_block(self, x, mask, trace, packing)
        return _last_block(self, x, trace, packing)


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention over the memory, then feed-forward."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.self_attention_norm = nn.LayerNorm(width)
        self.self_attention = MultiHeadAttention(width, heads)
        self.cross_attention_norm = nn.LayerNorm(width)
        self.cross_attention = MultiHeadAttention(width, heads)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, hidden)

    def forward(
        self,
        x: Tensor,
        self_mask: Tensor | None,
        memory: KeysValues,
        memory_mask: Tensor | None,
        trace: Trace = NO_TRACE,
        packing: Packing | None = None,
    ) -> Tensor:
        """Run the layer over a whole target prefix.

        x is (B, T, D), or packed (N, D), as is the result; self_mask is (T, T), memory
        the keys and values of the encoder's output, memory_mask (B, 1, 1, S).
        """
        x = _first_block(self, x, self_mask, trace, packing)
        return self.after_self_attention(x, memory, memory_mask, trace, packing)

    def after_self_attention(
        self,
        x: Tensor,
        memory: KeysValues,
        memory_mask: Tensor | None,
        trace: Trace = NO_TRACE,
        packing: Packing | None = None,
    ) -> Tensor:
        """Run the cross-attention and feed-forward blocks; shapes as in `forward`."""
        inner = trace.scope("cross_attention")
        normalised = self.cross_attention_norm(x)
        inner.keep(x=x, normalised=normalised)
        q = self.cross_attention.project_query(normalised, packing)
        attended = self.cross_attention.attend(q, *memory, memory_mask, inner, packing)
        x = add_dropped(x, attended, self, packing)
        return _last_block(self, x, trace, packing)


def _first_block(
    layer: EncoderLayer | DecoderLayer,
    x: Tensor,
    mask: Tensor | None,
    trace: Trace,
    packing: Packing | None,
) -> Tensor:
    """Run a layer's self-attention, the same in both; x is (B, T, D) or (N, D)."""
    inner = trace.scope("self_attention")
    normalised = layer.self_attention_norm(x)
    inner.keep(x=x, normalised=normalised)
    q, k, v = layer.self_attention.project(normalised, packing)
    attended = layer.self_attention.attend(q, k, v, mask, inner, packing)
    return add_dropped(x, attended, layer, packing)


def _last_block(
    layer: EncoderLayer | DecoderLayer,
    x: Tensor,
    trace: Trace,
    packing: Packing | None,
) -> Tensor:
    """Run a layer's last block, the same in both kinds; x is (B, T, D) or (N, D)."""
    normalised = layer.feed_forward_norm(x)
    output = layer.feed_forward(normalised)
    result = add_dropped(x, output, layer, packing)
    trace.scope("feed_forward").keep(x=x, normalised=normalised, output=output)
    trace.keep(output=result)
    return result
