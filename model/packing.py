"""The real tokens of padded sentences as one stream, without their padding.

All of a layer but its attention treats each token alone. So a training, and a search
that reads many tokens, run it on a stream of them, (N, D), which is laid out as
sentences, (B, T, D), only where tokens look at each other. No padding is multiplied;
and the stream's length is rounded up, so that the same few shapes recur and a
processor's matrix kernels, which are made anew for each new shape, are found ready.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

ROUND = 128
"""A stream's length is a multiple of this; its last rows, one at least, are filled up.
"""
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

    @classmethod
    def of(cls, real: Tensor) -> "Packing":
        """Return the packing of sentences whose real tokens are marked in (B, T)."""
        B, T = real.shape
        cells = real.flatten().nonzero()[:, 0]
        tokens = len(cells)
        N = (tokens // ROUND + 1) * ROUND
        rows = cells.new_full((B * T,), N - 1)
        rows[cells] = torch.arange(tokens, device=real.device)
        filled = cells.new_zeros(N)
        filled[:tokens] = cells
        return cls(B, T, N, cells, rows, filled % T)

    def pack(self, padded: Tensor) -> Tensor:
        """Return the stream, (N, …), of what stands in cells, (B, T, …)."""
        stream: Tensor = _Pack.apply(padded, self)  # type: ignore[no-untyped-call]
        return stream

    def unpack(self, stream: Tensor) -> Tensor:
        """Return the cells, (B, T, …), of a stream, (N, …); padding is its last row."""
        padded: Tensor = _Unpack.apply(stream, self)  # type: ignore[no-untyped-call]
        return padded

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


def _pack(padded: Tensor, packing: Packing) -> Tensor:
    found = padded.flatten(0, 1)
    n = len(packing.cells)
    stream = found.new_empty(packing.N, *found.shape[1:])
    torch.index_select(found, 0, packing.cells, out=stream[:n])
    stream[n:] = 0
    return stream


def _unpack(stream: Tensor, packing: Packing) -> Tensor:
    cells = stream.index_select(0, packing.rows)
    return cells.view(packing.B, packing.T, *stream.shape[1:])


class _Pack(torch.autograd.Function):
    """Packing moves gradients as unpacking moves values; torch's own backward of an
    index would add them up row by row."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, packing: Packing) -> Tensor:
        ctx.packing = packing
        return _pack(padded, packing)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _unpack(gradients[0], ctx.packing), None


class _Unpack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stream: Tensor, packing: Packing) -> Tensor:
        ctx.packing = packing
        return _unpack(stream, packing)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _pack(gradients[0], ctx.packing), None


class _UnpackHeads(torch.autograd.Function):
    """Here and back with one copy besides the one that unpacks."""

    @staticmethod
    def forward(
        ctx: Any, stream: Tensor, packing: Packing, parts: int, heads: int
    ) -> tuple[Tensor, ...]:
        ctx.packing = packing
        cells = _unpack(stream, packing).view(packing.B, packing.T, parts, heads, -1)
        return cells.permute(2, 0, 3, 1, 4).contiguous().unbind(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        B, H, T, K = gradients[0].shape
        cells = gradients[0].new_empty(B, T, len(gradients), H, K)
        for part, gradient in enumerate(gradients):
            cells[:, :, part] = gradient.transpose(1, 2)
        return _pack(cells.flatten(2), ctx.packing), None, None, None
