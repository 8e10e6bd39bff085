"""The product with a weight matrix: torch's, or where that is slow oneDNN's."""

import functools
import platform
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FEWEST_ROWS = 16
"""Of an input, for oneDNN's product to be the faster."""


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False
) -> Tensor:
    """Return `F.linear(x, weight, bias)`, with relu what is positive of it.

    x is (…, D), weight (E, D), bias (E,). In fp32 torch multiplies by MKL, which on an
    AMD processor with AVX512 reaches half of oneDNN's rate (107 of 240 GFLOP/s on one
    core). oneDNN adds the bias and takes the ReLU on the way, in bf16 as well. It has
    no gradient, so a training does without.
    """
    rows = x.numel() // max(x.shape[-1], 1)
    if (
        rows >= FEWEST_ROWS
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and (product := _onednn(x.dtype)) is not None
    ):
        then = "relu" if relu else "none"
        result: Tensor = product(x, weight, bias, then, [], "")
        return result
    result = F.linear(x, weight, bias)
    return F.relu(result, inplace=True) if relu else result


@functools.cache
def _onednn(dtype: torch.dtype) -> Any:
    """Return oneDNN's linear map of a type, or None where this torch has none."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return None
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    # What torch.compile asks and calls; torch has no public names for them.
    in_bf16 = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    if dtype != torch.float32 and not (dtype == torch.bfloat16 and in_bf16()):
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)
