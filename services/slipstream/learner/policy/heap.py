"""Makes glibc return freed memory to the system while a model is loaded."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
SMALL_BYTES: Final = 64 * 2**10
LARGE_BYTES: Final = 32 * 2**20
"""The highest threshold that glibc sets by itself; see mallopt(3)."""


@contextmanager
def returning_freed_memory() -> Iterator[None]:
    """Return blocks above 64 KiB to the system as soon as they are freed; without glibc, do nothing.

    glibc keeps freed blocks for reuse, which makes training on a CPU faster. While a model is loaded and
    checked, the kept blocks take several times the memory of the model.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(M_MMAP_THRESHOLD, SMALL_BYTES)
    try:
        yield
    finally:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, 2 * LARGE_BYTES)
