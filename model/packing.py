"""The real tokens of padded sentences as one stream, without their padding.

All of a layer but its attention treats each token alone. So a training, and a search
that reads many tokens, run it on a stream of them, (N, D), which is laid out as
sentences, (B, T, D), only where tokens look at each other. No padding is multiplied;
and where a processor's matrix kernels are made anew for each new shape, the stream's
length is rounded up, so that the same few shapes recur and kernels are found ready.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from model.linear import has_kernels_by_shape

ROUND, LITTLE = 128, 8
"""A stream's length is a multiple of this; its last rows, one at least, are filled up.
The second is for products without kernels by shape; 1 was as fast."""
PLACES, APART = 8_192, 8
"""A dropout mask begins at one of so many places, so many numbers apart."""


@dataclass(frozen=True)
class Packing:
    """Where each token of B padded sentences, T cells each, stands in a stream.

    A stream has N rows: the real tokens in reading order, then rows that are filled up.
    What these hold must not reach a loss, so that their gradient is 0.
    """

    B: int
    T: int
    N: int
    cells: Tensor
    """The cell, b * T + t, of each real token, (tokens,)."""
    rows: Tensor
    """The row of each cell, (B * T,); of padding the last row, which is filled up."""
    position: Tensor
    """The position, t, of each row, (N,); 0 in the rows that are filled up."""

    drawn: dict[tuple[int, float, torch.dtype], Tensor] = field(default_factory=dict)
    """What dropout masks are cut from, for each size, probability and dtype."""
    moves: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    """`head_moves`, for each number of parts and heads."""

    @classmethod
    def of(cls, real: Tensor, dtype: torch.dtype) -> "Packing":
        """Return the packing of sentences whose real tokens are marked in (B, T).

        dtype is that of the stream which it is for, and decides how long that is.
        """
        B, T = real.shape
        cells = real.flatten().nonzero()[:, 0]
        tokens = len(cells)
        multiple = ROUND if has_kernels_by_shape(dtype, real.device.type) else LITTLE
        N = (tokens // multiple + 1) * multiple
        rows = cells.new_full((B * T,), N - 1)
        rows[cells] = torch.arange(tokens, device=real.device)
        filled = cells.new_zeros(N)
        filled[:tokens] = cells
        return cls(B, T, N, cells, rows, filled % T)

    def pack(self, padded: Tensor) -> Tensor:
        """Return the stream, (N, …), of what stands in cells, (B, T, …)."""
        stream: Tensor = _Pack.apply(padded, self)  # type: ignore[no-untyped-call]
        return stream

    def dropout_mask(self, x: Tensor, probability: float) -> Tensor:
        """Return what to multiply x, (N, D), with: 0 for some, 1/(1 - p) for the rest.

        The masks of a pass are cut from one row of random numbers, each from another
        place on. To draw every one anew takes longer, and what they have in common this
        way was not seen to change what is learned (docs/performance.md).
        """
        kind = (x.numel(), probability, x.dtype)
        if kind not in self.drawn:
            numbers = x.new_empty(x.numel() + PLACES * APART)
            self.drawn[kind] = draw_mask(numbers, probability)
        first = APART * int(torch.randint(PLACES, ()))
        return self.drawn[kind][first : first + x.numel()].view_as(x)

    def head_moves(self, parts: int, heads: int) -> tuple[Tensor, Tensor]:
        """Return which vector of a stream each vector of its heads is, and back.

        A stream, (N, parts*H*K), and its heads, (parts, B, H, T, K), are taken as rows
        of K numbers. The second result has the real tokens alone, in reading order.
        """
        if (parts, heads) not in self.moves:
            each, rows = parts * heads, self.rows.view(1, self.B, 1, self.T)
            head = torch.arange(each, device=rows.device).view(parts, 1, heads, 1)
            there = (rows * each + head).flatten()
            padded = torch.arange(len(there), device=rows.device)
            padded = padded.view(parts, self.B, heads, self.T).permute(1, 3, 0, 2)
            back = padded.flatten(0, 1).index_select(0, self.cells).flatten()
            self.moves[parts, heads] = there, back
        return self.moves[parts, heads]

    def unpack_heads(
        self, stream: Tensor, parts: int, heads: int
    ) -> tuple[Tensor, ...]:
        """Return the cells of a stream, (N, parts*H*K), as `parts` of (B, H, T, K)."""
        found: tuple[Tensor, ...] = _UnpackHeads.apply(  # type: ignore[no-untyped-call]
            stream, self, parts, heads
        )
        return found


def draw_mask(numbers: Tensor, probability: float) -> Tensor:
    """Fill numbers, (n,), with 0 by a probability p, else 1/(1 - p); return them."""
    if numbers.device.type != "cpu":
        return F.dropout(numbers.fill_(1), probability, inplace=True)
    keep, n = 1 - probability, len(numbers)
    # Sixteen random bits for each number are 3 times as fast as bernoulli_.
    bits = torch.empty(n // 4 + 1, dtype=torch.int64)
    bits.random_(-(2**63), None)
    chosen = bits.view(torch.int16)[:n]  # -32,768 to 32,767
    kept = chosen < min(round(keep * 2**16), 2**16 - 1) - 2**15
    return torch.mul(kept, 1 / keep, out=numbers)


def _chosen(rows: Tensor, places: Tensor, size: int) -> Tensor:
    """Return rows[places], filled up with zeros to (size, …)."""
    n = len(places)
    result = rows.new_empty(size, *rows.shape[1:])
    torch.index_select(rows, 0, places, out=result[:n])
    result[n:] = 0
    return result


def _unpack(stream: Tensor, packing: Packing) -> Tensor:
    cells = stream.index_select(0, packing.rows)
    return cells.view(packing.B, packing.T, *stream.shape[1:])


class _Pack(torch.autograd.Function):
    """Packing moves gradients as unpacking moves values; torch's own backward of an
    index would add them up row by row."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, packing: Packing) -> Tensor:
        ctx.packing = packing
        return _chosen(padded.flatten(0, 1), packing.cells, packing.N)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _unpack(gradients[0], ctx.packing), None


class _UnpackHeads(torch.autograd.Function):
    """Here and back each number is copied once, besides the joining of gradients."""

    @staticmethod
    def forward(
        ctx: Any, stream: Tensor, packing: Packing, parts: int, heads: int
    ) -> tuple[Tensor, ...]:
        ctx.packing = packing
        there, _ = packing.head_moves(parts, heads)
        vectors = stream.view(packing.N * parts * heads, -1)
        shape = (parts, packing.B, heads, packing.T, -1)
        return vectors.index_select(0, there).view(shape).unbind(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        packing, parts = ctx.packing, len(gradients)
        _, heads, _, K = gradients[0].shape
        _, back = packing.head_moves(parts, heads)
        joined = torch.stack(gradients) if parts > 1 else gradients[0].contiguous()
        stream = _chosen(joined.view(-1, K), back, packing.N * parts * heads)
        return stream.view(packing.N, -1), None, None, None
