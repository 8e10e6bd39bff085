"""The feed-forward block's arithmetic, with a gradient of its own."""

from typing import Any

import torch
from torch import Tensor

from model.linear import linear


def feed_forward(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Return max(0, x W1 + b1) W2 + b2 for x, (…, D).

    W1 is (D, F) and W2 is (F, D), each stored transposed, as in torch.nn.Linear.
    """
    if not torch.is_grad_enabled():
        return _feed_forward(x, w1, b1, w2, b2)[1]
    output: Tensor = _FeedForward.apply(  # type: ignore[no-untyped-call]
        x, w1, b1, w2, b2
    )
    return output


def _feed_forward(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the hidden numbers as well, (…, F)."""
    hidden = linear(x, w1, b1, relu=True)
    return hidden, linear(hidden, w2, b2)


class _FeedForward(torch.autograd.Function):
    """The block as one operation, which passes over its hidden numbers less often.

    Biases and the ReLU are part of the products, and the ReLU's gradient overwrites the
    one that it is computed from.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        w1, b1, w2, b2 = weights
        hidden, output = _feed_forward(x, w1, b1, w2, b2)
        ctx.save_for_backward(x, hidden, w1, w2)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        x, hidden, w1, w2 = ctx.saved_tensors
        of_output = gradients[0].flatten(0, -2)
        x, hidden, shape = x.flatten(0, -2), hidden.flatten(0, -2), x.shape
        of_hidden = of_output @ w2
        # What autograd calls for a ReLU, told to write where it reads.
        torch.ops.aten.threshold_backward.grad_input(
            of_hidden, hidden, 0, grad_input=of_hidden
        )
        return (
            (of_hidden @ w1).view(shape),
            of_hidden.t() @ x,
            of_hidden.sum(dim=0),
            of_output.t() @ hidden,
            of_output.sum(dim=0),
        )
