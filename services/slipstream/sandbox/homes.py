"""The folders of fork servers. Each is locked by the process that made it, and removed after that process
ends.

A process that is killed leaves its folders behind. Only the lock tells whether the owner still runs: the
kernel releases the lock when the process ends. So several processes of one machine never remove each other's
folders.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slipstream.sandbox import scratch

PREFIX = "slipstream-scratch-"
"""Every version of Slipstream that uses this prefix locks its folders before it uses them."""


class Home:
    """A folder that this process has locked."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def make(cls) -> "Home":
        """Make and lock a new folder. Errors: OSError."""
        while True:
            path = tempfile.mkdtemp(prefix=PREFIX)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # another process removed it before it was locked
                continue
            if _lock(descriptor) and _is_at(path, descriptor):
                return cls(path, descriptor)
            os.close(descriptor)

    def remove(self) -> None:
        """Remove the folder with its content, and release the lock."""
        try:
            _remove(self.path)
        finally:
            os.close(self._descriptor)


def sweep() -> int:
    """Remove the folders whose owners have ended from the temporary folder. Returns how many were removed."""
    removed = 0
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        with suppress(OSError), _opened(str(path)) as descriptor:
            if _lock(descriptor) and _is_at(str(path), descriptor):
                _remove(str(path))
                removed += not path.exists()
    return removed


@contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Take the lock without waiting. Returns whether no other process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: str, descriptor: int) -> bool:
    """Return whether the path still leads to the open folder."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove(path: str) -> None:
    """Remove a folder with any content that a killed program may have left."""
    with suppress(OSError):
        scratch.clear(path)
        os.rmdir(path)
