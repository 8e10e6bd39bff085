"""The product with a weight matrix: torch's, or where that is slow oneDNN's."""

import functools
import platform
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FEWEST_ROWS = 16
"""Of an input, for oneDNN's product to be the faster."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `F.linear(x, weight, bias)`; x is (…, D), weight (E, D), bias (E,).

    In fp32 torch multiplies by MKL, which on an AMD processor with AVX512 reaches half
    of oneDNN's rate (107 of 240 GFLOP/s on one core). oneDNN's product has no gradient,
    so a training does without.
    """
    rows = x.numel() // max(x.shape[-1], 1)
    if (
        x.dtype == torch.float32
        and rows >= FEWEST_ROWS
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and (product := _onednn()) is not None
    ):
        result: Tensor = product(x, weight, bias, "none", [], "")
        return result
    return F.linear(x, weight, bias)


@functools.cache
def _onednn() -> Any:
    """Return oneDNN's linear map, or None where this torch has none."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return None
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    # What torch.compile calls; torch has no public name for it.
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)
