"""The folders of fork servers: each is locked by the verifier that made it, and swept once that is gone.

A verifier that is killed leaves its folders behind. The lock alone says whether the owner lives: the kernel
releases it when a process ends. So verifiers of one machine never sweep the folders of each other.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slipstream.sandbox import scratch

PREFIX = "slipstream-scratch-"
"""Of folders that are locked before they are used, by every version that makes them."""


class Home:
    """A folder with the lock of this process on it."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def make(cls) -> "Home":
        """A new one. Errors: OSError."""
        while True:
            path = tempfile.mkdtemp(prefix=PREFIX)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # somebody has swept it before it was locked
                continue
            if _lock(descriptor) and _is_at(path, descriptor):
                return cls(path, descriptor)
            os.close(descriptor)

    def remove(self) -> None:
        """Remove it with whatever is in it, and give up the lock."""
        try:
            _remove(self.path)
        finally:
            os.close(self._descriptor)


def sweep() -> int:
    """Remove the folders in the temporary folder whose owners are gone; returns how many they were."""
    swept = 0
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        with suppress(OSError), _opened(str(path)) as descriptor:
            if _lock(descriptor) and _is_at(str(path), descriptor):
                _remove(str(path))
                swept += not path.exists()
    return swept


@contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Whether nobody else holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: str, descriptor: int) -> bool:
    """Whether a path still leads to an open folder."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove(path: str) -> None:
    """Remove a folder that a killed program may have filled with anything."""
    with suppress(OSError):
        scratch.clear(path)
        os.rmdir(path)
