"""The standard streams of a program: its input as a file in memory, its output through pipes, up to a
limit."""

import fcntl
import os
import select
from dataclasses import dataclass, field

CHUNK = 65_536
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(slots=True, kw_only=True)
class Streams:
    """The streams of one program. Invariant: of each output at most `limit` bytes and one chunk are kept."""

    theirs: dict[int, int]
    """Number of a descriptor in the program → the descriptor here that it becomes a copy of."""
    sources: dict[int, bytearray]
    """Our read end of each pipe → the bytes that have arrived."""
    stdout: bytearray
    value: bytearray
    limit: int
    ended: set[int] = field(default_factory=set)

    @classmethod
    def open(cls, stdin: str, *, limit: int) -> "Streams":
        """Open standard input, and pipes for standard output and the value; standard error goes to
        /dev/null."""
        (stdout_ours, stdout_theirs), (value_ours, value_theirs) = os.pipe(), os.pipe()
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        stdout, value = bytearray(), bytearray()
        for descriptor in (stdout_ours, value_ours):
            os.set_blocking(descriptor, False)
        return cls(
            theirs={
                0: _input(stdin.encode("utf-8", "replace")),
                1: stdout_theirs,
                2: null,
                3: value_theirs,
            },
            sources={stdout_ours: stdout, value_ours: value},
            stdout=stdout,
            value=value,
            limit=limit,
        )

    def close_theirs(self) -> None:
        """Close the program's ends, after the fork."""
        while self.theirs:
            os.close(self.theirs.popitem()[1])

    def wait(self, pidfd: int, seconds: float) -> bool:
        """Read output for at most `seconds`. Returns whether the process of `pidfd` has ended."""
        readable = [pidfd, *(source for source in self.sources if source not in self.ended)]
        ready, _, _ = select.select(readable, [], [], seconds)
        for source in ready:
            if source != pidfd:
                self._read(source)
        return pidfd in ready

    def drain(self) -> None:
        """Read the rest of the output, after all writers have ended."""
        for source in self.sources:
            while source not in self.ended and not self.over():
                if not self._read(source):
                    break

    def over(self) -> bool:
        """Return whether an output is longer than the limit."""
        return any(len(data) > self.limit for data in self.sources.values())

    def close(self) -> None:
        """Close all descriptors."""
        self.close_theirs()
        for source in self.sources:
            os.close(source)

    def _read(self, source: int) -> bool:
        """Read one chunk. Returns whether there was one."""
        try:
            data = os.read(source, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.ended.add(source)
        self.sources[source] += data
        return bool(data)


def _input(data: bytes) -> int:
    """Return a sealed file in memory. It is no pipe, because programs may ask for the size of their input."""
    descriptor = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor
