"""The one attention function, against PyTorch's own and against a hand calculation."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.attention import MultiHeadAttention, Trace, attention, softmax

SHAPES = [(1, 1, 1, 1, 1), (2, 3, 5, 7, 4), (3, 2, 8, 8, 16), (1, 4, 1, 9, 2)]
"""(B, H, T, S, K)"""


def _inputs(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, k, v and a random mask of which no row is all False."""
    B, H, T, S, K = shape
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(B, H, T, K, generator=generator) * 2
    k, v = torch.randn(2, B, H, S, K, generator=generator) * 2
    mask = torch.rand(B, H, T, S, generator=generator) < 0.5
    mask |= F.one_hot(mask.int().argmax(-1), S).bool()
    return q, k, v, mask


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_values_and_gradients_equal_the_fused_kernel(
    shape: tuple[int, ...], masked: bool, seed: int
) -> None:
    q, k, v, mask = _inputs(shape, seed)
    given = mask if masked else None
    ours = [x.clone().requires_grad_() for x in (q, k, v)]
    theirs = [x.clone().requires_grad_() for x in (q, k, v)]
    result = attention(*ours, given)
    expected = F.scaled_dot_product_attention(*theirs, attn_mask=given)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    weight = torch.randn(result.shape, generator=torch.Generator().manual_seed(seed))
    (result * weight).sum().backward()
    (expected * weight).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask_shape", [(1, 1, 1, 7), (2, 1, 1, 7), (5, 7)])
def test_masks_broadcast(mask_shape: tuple[int, ...]) -> None:
    q, k, v, _ = _inputs((2, 3, 5, 7, 4), 0)
    mask = torch.rand(mask_shape, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[..., 0] = True
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(attention(q, k, v, mask), expected)


@pytest.mark.parametrize("seed", range(5))
def test_rows_sum_to_one_and_masked_weights_are_exactly_zero(seed: int) -> None:
    q, k, v, mask = _inputs((3, 4, 9, 11, 8), seed)
    trace = Trace()
    attention(q * 10, k * 10, v, mask, trace)  # scores of hundreds
    weights = trace.values["weights"]
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 9), rtol=0, atol=1e-6)
    assert (weights[~mask] == 0).all()
    assert (weights >= 0).all()


@pytest.mark.parametrize("columns", [1, 9, 15, 16, 40])
@pytest.mark.parametrize("rows", [2, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_is_torchs_with_and_without_a_gradient(
    columns: int, rows: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(columns)
    scores = (torch.randn(rows, 4, 1, columns, generator=generator) * 30).to(dtype)
    scores[1, :, :, 1:] = -math.inf
    expected = scores.float().softmax(-1)
    torch.testing.assert_close(softmax(scores), expected)
    with torch.no_grad():
        torch.testing.assert_close(softmax(scores), expected)
        assert (softmax(scores)[1, :, :, 1:] == 0).all()


def test_one_row_by_hand() -> None:
    """Scores 2 ln 2 and 0 over sqrt(4): weights 2/3 and 1/3."""
    q = torch.tensor([[[[2 * math.log(2), 0, 0, 0]]]])
    k = torch.tensor([[[[1.0, 0, 0, 0], [0, 1, 0, 0], [9, 9, 9, 9]]]])
    v = torch.tensor([[[[3.0, 0, 0, 0], [0, 3, 0, 0], [100, 100, 100, 100]]]])
    trace = Trace()
    context = attention(q, k, v, torch.tensor([True, True, False]), trace)
    torch.testing.assert_close(context, torch.tensor([[[[2.0, 1.0, 0, 0]]]]))
    torch.testing.assert_close(
        trace.values["weights"], torch.tensor([[[[2 / 3, 1 / 3, 0.0]]]])
    )
    scores = trace.values["scores"][0, 0, 0]
    torch.testing.assert_close(scores[:2], torch.tensor([2 * math.log(2), 0.0]))
    torch.testing.assert_close(trace.values["scaled"][0, 0, 0], scores / 2)


def _ours_and_torchs(width: int, heads: int) -> tuple[MultiHeadAttention, nn.Module]:
    torch.manual_seed(width + heads)
    theirs = nn.MultiheadAttention(width, heads, bias=False, batch_first=True)
    ours = MultiHeadAttention(width, heads)
    with torch.no_grad():
        ours.w_qkv.copy_(theirs.in_proj_weight.view(3, width, width))
        ours.w_o.copy_(theirs.out_proj.weight)
    return ours, theirs


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_self_attention_equals_torchs(heads: int) -> None:
    ours, theirs = _ours_and_torchs(16, heads)
    x = torch.randn(3, 6, 16)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    trace = Trace()
    result = ours.attend(*ours.project(x), mask, trace)
    expected, weights = theirs(
        x, x, x, attn_mask=~mask, average_attn_weights=False
    )  # fmt: skip
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(trace.values["weights"], weights)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_cross_attention_equals_torchs(heads: int) -> None:
    ours, theirs = _ours_and_torchs(16, heads)
    x, memory = torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    real = torch.arange(7) < torch.tensor([[7], [3], [1]])
    trace = Trace()
    q, (k, v) = ours.project_query(x), ours.project_memory(memory)
    result = ours.attend(q, k, v, real[:, None, None, :], trace)
    expected, weights = theirs(
        x, memory, memory, key_padding_mask=~real, average_attn_weights=False
    )
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(trace.values["weights"], weights)


def test_projections_are_parts_of_one_matrix() -> None:
    """Q = X W_Q, head h in columns h*K to (h+1)*K, as the articles write it."""
    ours, _ = _ours_and_torchs(8, 2)
    x = torch.randn(1, 3, 8)
    q, k, v = ours.project(x)
    for made, stored in zip((q, k, v), ours.w_qkv, strict=True):
        whole = x[0] @ stored.T
        torch.testing.assert_close(made[0, 0], whole[:, :4])
        torch.testing.assert_close(made[0, 1], whole[:, 4:])
    torch.testing.assert_close(ours.project_query(x), q)
    for made, expected in zip(ours.project_memory(x), (k, v), strict=True):
        torch.testing.assert_close(made, expected)


def test_a_trace_changes_nothing_and_scopes_its_names() -> None:
    ours, _ = _ours_and_torchs(8, 2)
    x = torch.randn(2, 3, 8)
    trace = Trace()
    traced = ours.attend(*ours.project(x), None, trace.scope("a").scope("b"))
    assert torch.equal(traced, ours.attend(*ours.project(x), None))
    assert set(trace.values) == {
        f"a.b.{name}"
        for name in (
            "q", "k", "v", "scores", "scaled", "weights", "context", "concatenated",
            "output",
        )
    }  # fmt: skip
    assert torch.equal(trace.values["a.b.output"], traced)
