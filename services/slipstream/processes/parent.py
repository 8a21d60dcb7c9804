"""Parents and children among processes."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; exit at once when it already has (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def children(process: Path = Path("/proc/self")) -> list[int]:
    """Ids of the processes that the threads of `process` have started and not yet reaped (Linux).

    A thread that ends while the list is read is skipped: the kernel gives its children to another thread.
    """
    found: list[int] = []
    for thread in process.glob("task/*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (thread / "children").read_text().split())
    return found
