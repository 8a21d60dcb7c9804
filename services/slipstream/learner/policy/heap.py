"""What the C library does with memory that is given back, while much is allocated and freed at once."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
SMALL_BYTES: Final = 64 * 2**10
LARGE_BYTES: Final = 32 * 2**20
"""What glibc raises its threshold to by itself; see mallopt(3)."""


@contextmanager
def returning_freed_memory() -> Iterator[None]:
    """Return blocks above 64 KiB to the system as soon as they are freed (glibc; elsewhere: nothing).

    glibc would keep them, to use them again: training on a CPU is faster that way. While a model is loaded
    and checked for the first time, what it keeps is several times what the model needs.
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
