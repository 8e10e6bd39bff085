"""A stream of tokens holds what the padded sentences hold, and gradients follow it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from model.config import ModelConfig
from model.packing import ROUND, Packing
from model.transformer import Transformer

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=30)


def _real(lengths: list[int], extra: int = 0) -> Tensor:
    return torch.arange(max(lengths) + extra) < torch.tensor(lengths)[:, None]


def _cells(stream: Tensor, packing: Packing) -> Tensor:
    """Return the cells of a stream, (B, T, …), as torch's own indexing has them."""
    return stream[packing.rows].view(packing.B, packing.T, *stream.shape[1:])


def test_by_hand() -> None:
    packing = Packing.of(
        torch.tensor([[True, True, False], [True, False, False]]), torch.bfloat16
    )
    padded = torch.tensor([[[1.0], [2.0], [9.0]], [[3.0], [9.0], [9.0]]])
    stream = packing.pack(padded)
    assert stream.shape == (ROUND, 1)
    assert stream[:4, 0].tolist() == [1.0, 2.0, 3.0, 0.0]
    assert packing.position[:4].tolist() == [0, 1, 0, 0]
    stream[-1] = -5.0
    assert _cells(stream, packing)[:, :, 0].tolist() == [[1, 2, -5], [3, -5, -5]]


@pytest.mark.parametrize(
    ("by_shape", "tokens", "rows"),
    [(True, 7, 128), (True, 128, 256), (False, 7, 8), (False, 8, 16)],
)
def test_the_streams_length(
    by_shape: bool, tokens: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that are made for each shape are to be few; one row at least is free."""
    monkeypatch.setattr("model.packing.has_kernels_by_shape", lambda *_: by_shape)
    packing = Packing.of(torch.ones(1, tokens, dtype=torch.bool), torch.float32)
    assert len(packing.position) == rows


@given(LENGTHS, st.integers(0, 3))
def test_packing_is_boolean_indexing(lengths: list[int], extra: int) -> None:
    real = _real(lengths, extra)
    packing = Packing.of(real, torch.bfloat16)
    padded = torch.randn(*real.shape, 3, dtype=torch.float64, requires_grad=True)
    stream = packing.pack(padded)
    assert stream.shape[0] == packing.N > sum(lengths) and packing.N % ROUND == 0
    assert torch.equal(stream[: sum(lengths)], padded[real])
    assert not stream[sum(lengths) :].any()
    assert torch.equal(_cells(stream, packing)[real], padded[real])


@given(LENGTHS, st.integers(0, 3))
def test_gradients_are_those_of_boolean_indexing(
    lengths: list[int], extra: int
) -> None:
    real = _real(lengths, extra)
    packing, tokens = Packing.of(real, torch.bfloat16), sum(lengths)
    padded = torch.randn(*real.shape, 2, dtype=torch.float64, requires_grad=True)
    factor = torch.randn(tokens, 2, dtype=torch.float64)
    (found,) = torch.autograd.grad(
        (packing.pack(padded)[:tokens] * factor).sum(), padded
    )
    (wanted,) = torch.autograd.grad((padded[real] * factor).sum(), padded)
    assert torch.equal(found, wanted)


def test_heads_are_unpacked_cells_apart() -> None:
    real = _real([3, 1, 5])
    packing, parts, heads, K = Packing.of(real, torch.bfloat16), 3, 2, 4
    shape = (packing.B, packing.T, parts, heads, K)
    stream = torch.randn(packing.N, parts * heads * K, requires_grad=True)
    apart = _cells(stream, packing).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
    found = packing.unpack_heads(stream, parts, heads)
    factors = torch.randn(parts, *apart[0].shape)
    gradients = list(torch.autograd.grad(found, stream, list(factors)))
    of_real = factors * real[:, None, :, None]  # padding passes no gradient on
    gradients += torch.autograd.grad(apart, stream, list(of_real))
    for mine, other in zip(found, apart, strict=True):
        assert mine.is_contiguous() and torch.equal(mine, other)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("lengths", [[5], [3, 1, 7, 7, 2], [4] * 32])
def test_a_packed_pass_is_the_padded_one(lengths: list[int]) -> None:
    torch.manual_seed(1)
    model = Transformer(ModelConfig(30, 30, width=16, heads=2, feed_forward=24)).eval()
    real = _real(lengths)
    source = torch.randint(4, 30, real.shape) * real
    target = torch.randint(4, 30, real.shape) * real.flip(0)
    packings = (
        Packing.of(real, torch.bfloat16),
        Packing.of(real.flip(0), torch.bfloat16),
    )
    mask = model.source_mask(source)
    memory = model.encode(source, packing=packings[0])
    hidden = model.decode(target, memory, mask, packings=packings)
    padded = model.decode(target, model.encode(source), mask)
    expected = padded[real.flip(0)]
    torch.testing.assert_close(hidden[: len(expected)], expected, atol=1e-5, rtol=1e-5)
