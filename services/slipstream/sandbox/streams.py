"""What goes into a program, a file in memory, and pipes for what comes out, kept up to a bound."""

import fcntl
import os
import select
from dataclasses import dataclass, field

CHUNK = 65_536
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(slots=True, kw_only=True)
class Streams:
    """The standard streams of one program. Invariant: of each at most `limit` bytes and a chunk are kept."""

    theirs: dict[int, int]
    """Number of the descriptor in the program → its end of a pipe, or its input."""
    sources: dict[int, bytearray]
    """Our ends of what it writes → what has come."""
    stdout: bytearray
    value: bytearray
    limit: int
    ended: set[int] = field(default_factory=set)

    @classmethod
    def open(cls, stdin: str, *, limit: int) -> "Streams":
        """Standard input, and pipes for standard output and the value; standard error goes nowhere."""
        (stdout_ours, stdout_theirs), (value_ours, value_theirs) = os.pipe(), os.pipe()
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        stdout, value = bytearray(), bytearray()
        for descriptor in (stdout_ours, value_ours):
            os.set_blocking(descriptor, False)
        return cls(
            theirs={
                0: _input(stdin.encode("utf-8", "replace")),
                1: stdout_theirs,
                2: nowhere,
                3: value_theirs,
            },
            sources={stdout_ours: stdout, value_ours: value},
            stdout=stdout,
            value=value,
            limit=limit,
        )

    def close_theirs(self) -> None:
        """Let go of the program's ends, once it has them."""
        while self.theirs:
            os.close(self.theirs.popitem()[1])

    def wait(self, ender: int, seconds: float) -> bool:
        """Carry bytes for at most some seconds; whether the process behind the descriptor `ender` ended."""
        readable = [ender, *(source for source in self.sources if source not in self.ended)]
        ready, _, _ = select.select(readable, [], [], seconds)
        for source in ready:
            if source != ender:
                self._read(source)
        return ender in ready

    def drain(self) -> None:
        """Read what is left, once nobody writes any more."""
        for source in self.sources:
            while source not in self.ended and not self.over():
                if not self._read(source):
                    break

    def over(self) -> bool:
        """Whether more came than is allowed."""
        return any(len(data) > self.limit for data in self.sources.values())

    def close(self) -> None:
        """Close all ends of ours."""
        self.close_theirs()
        for source in self.sources:
            os.close(source)

    def _read(self, source: int) -> bool:
        """Take a chunk; whether there was one."""
        try:
            data = os.read(source, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.ended.add(source)
        self.sources[source] += data
        return bool(data)


def _input(data: bytes) -> int:
    """A file, since programs ask how long their input is, that nobody can write to any more."""
    descriptor = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor
