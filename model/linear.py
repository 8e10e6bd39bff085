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
    """Return `F.linear(x, weight, bias)`, with `relu` its numbers below 0 set to 0.

    x is (…, D), weight (E, D), bias (E,). In fp32 torch multiplies by MKL, which on an
    AMD processor with AVX512 reaches half to nine tenths of oneDNN's rate (without
    AVX512 it is the faster); in bf16 by oneDNN, but it copies the bias first and adds
    the product to it. oneDNN's product takes both in, has no gradient, and so is there
    for passes without one, and for operations that know their own.
    """
    rows = x.numel() // max(x.shape[-1], 1)
    slow = x.dtype == torch.float32 or x.dtype == torch.bfloat16 and bias is not None
    if (
        slow
        and rows >= FEWEST_ROWS
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and (product := _onednn(x.dtype)) is not None
    ):
        also = "relu" if relu else "none"
        result: Tensor = product(x, weight, bias, also, [], "")
        return result
    result = F.linear(x, weight, bias)
    return F.relu(result, inplace=True) if relu else result


def has_kernels_by_shape(dtype: torch.dtype, device: str) -> bool:
    """Tell whether products have a kernel for each shape, made at its first.

    oneDNN's have, and a few shapes that recur save it much; on a CPU all else, such as
    MKL, has one for all. Of other devices nothing was measured: shapes recur there.
    """
    if device != "cpu" or dtype == torch.bfloat16:
        return True
    return dtype == torch.float32 and _onednn(dtype) is not None


@functools.cache
def _onednn(dtype: torch.dtype) -> Any:
    """Return oneDNN's linear map, or None where this torch has none for a dtype."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return None
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    # What torch.compile calls; torch has no public names for them.
    functions = torch.ops.mkldnn
    if dtype == torch.float32 and not _has_avx512():
        return None
    if dtype == torch.bfloat16:
        supported = getattr(functions, "_is_mkldnn_bf16_supported", lambda: False)
        if not supported():
            return None
    return getattr(functions, "_linear_pointwise", None)


def _has_avx512() -> bool:
    return "AVX512" in torch.backends.cpu.get_cpu_capability()
