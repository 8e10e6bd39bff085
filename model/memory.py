"""How the C library and oneDNN use memory; torch is not needed for it."""

import ctypes
import os
from typing import Any


def tune_memory() -> None:
    """Let both keep what recurs; to be called before the first matrix product.

    glibc hands every large buffer back to the system and gets it again, page by page,
    an instant later, which took a third of a training step; it is asked to keep them.
    oneDNN keeps the kernels of 512 shapes, and all that is kept takes memory, so both a
    training and a search see to it that the same few recur (docs/experiments.md).
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "512")
    # Each thread of torch's keeps some as well, 1,024 unless it is told so.
    os.environ.setdefault("LRU_CACHE_CAPACITY", "16")
    if (mallopt := _c_function("mallopt")) is not None:
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # names in malloc.h
        # glibc before 2.35 takes no more than half of a heap. It gives 0 where it
        # refuses; without this one the others would make it worse.
        if mallopt(mmap_threshold, 1 << 30) or mallopt(mmap_threshold, 32 << 20):
            mallopt(trim_threshold, 2**31 - 1)
            mallopt(top_pad, 64 << 20)


def release_freed_memory() -> None:
    """Give freed memory back to the system once, where the C library can.

    After `tune_memory` it keeps what preparing the corpus and a trial in fp32 needed.
    """
    if (malloc_trim := _c_function("malloc_trim")) is not None:
        malloc_trim(0)


def _c_function(name: str) -> Any:
    """Return a function of the C library, or None where it has none of that name."""
    return getattr(ctypes.CDLL(None), name, None) if os.name == "posix" else None
