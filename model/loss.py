"""What a training minimises: the cross-entropy of each next token."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from model.packing import Packing
from model.transformer import Transformer


def batch_loss(
    model: Transformer,
    source: Tensor,
    target_in: Tensor,
    target_out: Tensor,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the mean cross-entropy of a real target token, in nats.

    source is (B, S), target_in and target_out are (B, T).
    """
    padding = model.config.padding_id
    weight = model.target_embedding.weight
    packings = (
        Packing.of(source != padding, weight.dtype),
        Packing.of(target_out != padding, weight.dtype),
    )
    memory = model.encode(source, packing=packings[0])
    mask = model.source_mask(source)
    hidden = model.decode(target_in, memory, mask, packings=packings)  # (N, D)
    truth, real = packings[1].pack(target_out), len(packings[1].cells)
    return linear_cross_entropy(hidden, weight, truth, real, label_smoothing)


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, truth: Tensor, real: int, label_smoothing: float
) -> Tensor:
    """Return `F.cross_entropy(F.linear(hidden, weight), truth)`, faster.

    It is the mean of the first `real` of N rows; hidden is (N, D), weight (V, D), truth
    (N,).
    """
    loss: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, weight, truth, real, label_smoothing
    )
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    """Logits and their cross-entropy as one operation.

    The logits, (N, V), are the largest tensor of a step, and torch's own passes over
    them take a fifth of it. Here a softmax in place is the only one. The gradient of
    the logits is then the probabilities, less 1 - smoothing at the truth, less
    smoothing / V everywhere; the last is the same for all, so what it contributes
    comes from sums of the weight's and of hidden's rows.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        truth: Tensor,
        real: int,
        smoothing: float,
    ) -> Tensor:
        logits = F.linear(hidden, weight)
        probs = logits[:real]
        at_truth = torch.arange(real, device=truth.device), truth[:real]
        of_truth = probs[at_truth].float()
        torch.softmax(probs, dim=-1, out=probs)
        probability = probs[at_truth].float()
        norms = of_truth - probability.log()  # of each row the logarithm of its sum
        lost = probability < torch.finfo(torch.float32).tiny
        if lost.any():  # e^-87 or less, which is no fp32 number
            norms[lost] = F.linear(hidden[:real][lost], weight).float().logsumexp(1)
        sums = [x.sum(dim=0, dtype=torch.float32) for x in (hidden[:real], weight)]
        # All log-probabilities are logits less their row's norm, and the sum of all
        # logits is the product of both sums.
        total = norms.sum() - (1 - smoothing) * of_truth.sum()
        total -= smoothing * (sums[0] @ sums[1]) / len(weight)
        probs[at_truth] = (probability - (1 - smoothing)).to(probs)
        logits[real:] = 0
        ctx.save_for_backward(hidden, weight, logits, *sums)
        ctx.real, ctx.uniform = real, smoothing / len(weight)
        return total / real

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, of_logits, sum_hidden, sum_weight = ctx.saved_tensors
        scale = gradients[0] / ctx.real
        of_hidden = of_logits @ weight
        of_hidden[: ctx.real] -= (ctx.uniform * sum_weight).to(of_hidden)
        of_weight = of_logits.t() @ hidden
        of_weight -= (ctx.uniform * sum_hidden).to(of_weight)
        return of_hidden.mul_(scale), of_weight.mul_(scale), None, None, None
