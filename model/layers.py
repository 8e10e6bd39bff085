"""The layers of the encoder and of the decoder.

Vaswani et al. (2017), sections 3.1 to 3.5, with the layer norm before each sub-layer
(Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture").
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.attention import NO_TRACE, MultiHeadAttention, Trace

KeysValues = tuple[Tensor, Tensor]


def sinusoidal_positions(length: int, width: int) -> Tensor:
    """Return the position vectors, (length, width): sines first, then cosines.

    The paper interleaves the two; the order makes no difference to what a model can
    learn, and this one is CTranslate2's.
    """
    position = torch.arange(length, dtype=torch.float32)[:, None]
    step = math.log(10_000) / max(width // 2 - 1, 1)
    angle = position * torch.exp(torch.arange(width // 2) * -step)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Switch off some of each sentence's D features, the same at all its positions.

    One mask of (B, 1, D) takes far fewer random numbers than one of (B, T, D) (Gal and
    Ghahramani 2016 give the reason to do it as well).
    """
    if not training or probability == 0:
        return x
    keep = 1 - probability
    mask = torch.empty(x.shape[0], 1, x.shape[2], dtype=x.dtype, device=x.device)
    return x * mask.bernoulli_(keep).div_(keep)


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them, at each position alone."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.inner(x))  # (B, T, F)
        output: Tensor = self.outer(hidden)
        return output


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
        self, x: Tensor, mask: Tensor | None, trace: Trace = NO_TRACE
    ) -> Tensor:
        """x is (B, S, D), mask (B, 1, 1, S); the result is (B, S, D)."""
        inner = trace.scope("self_attention")
        normalised = self.self_attention_norm(x)
        inner.keep(x=x, normalised=normalised)
        q, k, v = self.self_attention.project(normalised)
        attended = self.self_attention.attend(q, k, v, mask, inner)
        x = x + dropout(attended, self.dropout, self.training)
        return _feed_forward(self, x, trace)


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
    ) -> Tensor:
        """Run the layer over a whole target prefix.

        x is (B, T, D), self_mask (T, T), memory the keys and values of the encoder's
        output, memory_mask (B, 1, 1, S); the result is (B, T, D).
        """
        inner = trace.scope("self_attention")
        normalised = self.self_attention_norm(x)
        inner.keep(x=x, normalised=normalised)
        q, k, v = self.self_attention.project(normalised)
        attended = self.self_attention.attend(q, k, v, self_mask, inner)
        x = x + dropout(attended, self.dropout, self.training)
        return self.after_self_attention(x, memory, memory_mask, trace)

    def after_self_attention(
        self,
        x: Tensor,
        memory: KeysValues,
        memory_mask: Tensor | None,
        trace: Trace = NO_TRACE,
    ) -> Tensor:
        """Run the cross-attention and feed-forward blocks; shapes as in `forward`."""
        inner = trace.scope("cross_attention")
        normalised = self.cross_attention_norm(x)
        inner.keep(x=x, normalised=normalised)
        q = self.cross_attention.project_query(normalised)
        attended = self.cross_attention.attend(q, *memory, memory_mask, inner)
        x = x + dropout(attended, self.dropout, self.training)
        return _feed_forward(self, x, trace)


def _feed_forward(
    layer: EncoderLayer | DecoderLayer, x: Tensor, trace: Trace
) -> Tensor:
    """Run a layer's last block, the same in both kinds; x is (B, T, D)."""
    normalised = layer.feed_forward_norm(x)
    output = layer.feed_forward(normalised)
    result = x + dropout(output, layer.dropout, layer.training)
    trace.scope("feed_forward").keep(x=x, normalised=normalised, output=output)
    trace.keep(output=result)
    return result
