"""The kernel's parent-death signal: a child is killed when its parent dies (Linux).

    python -I -S .../parent_death.py PARENT COMMAND ...     runs COMMAND with that signal set

The program exists because setting the signal between fork and exec is unsafe in a process that runs gRPC.
It imports nothing of the project, so that it starts fast.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent dies.

    `parent`: exit at once if this process id is not the parent's any more. The kernel clears the signal when
    the process changes its user. Errors: OSError.
    """
    if sys.platform != "linux":
        return
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent dies. Errors: OSError."""
    if sys.platform == "linux":
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def with_parent_death(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command`, which then dies with this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
