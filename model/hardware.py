"""What the processor multiplies fast."""

import functools

import torch

from model.engine import Precision

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


@functools.cache
def hardware_precisions(device: str) -> tuple[Precision, ...]:
    """Return the precisions that a device multiplies in hardware, the fastest last.

    Where bf16 is not among them torch still multiplies in it, but some of its products
    take 70 times as long as in fp32.
    """
    if device.startswith("cuda"):
        in_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("fp32", "bf16") if in_bf16 else ("fp32",)
    if not device.startswith("cpu"):  # mps: bf16 is not in every version's hardware
        return ("fp32",)
    # torch has no public question for this; where it is renamed, fp32 is still right.
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return ("fp32", "bf16") if supported() else ("fp32",)


def doubt(precision: Precision, device: str) -> str:
    """Return what to say to somebody who asks for a precision, "" where it is fast."""
    if precision in hardware_precisions(device):
        return ""
    return f"{device} is not known to multiply {precision}: fp32 may be much faster"
