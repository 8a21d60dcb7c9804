"""What goes into a program and what comes out of it: pipes, never more kept of them than a bound."""

import os
import select
from contextlib import suppress
from dataclasses import dataclass, field

CHUNK = 65_536


@dataclass(slots=True, kw_only=True)
class Streams:
    """The pipes of one program. Invariant: of each at most `limit` bytes and a chunk are kept."""

    theirs: dict[int, int]
    """Number of the descriptor in the program → its end of a pipe."""
    feed: int | None
    """Our end of its standard input; None once all is written."""
    sources: dict[int, bytearray]
    """Our ends of what it writes → what has come."""
    stdout: bytearray
    value: bytearray
    stdin: bytes
    limit: int
    ended: set[int] = field(default_factory=set)

    @classmethod
    def open(cls, stdin: str, *, limit: int) -> "Streams":
        """Pipes for standard input, standard output and the value; standard error goes nowhere."""
        (stdin_theirs, feed), (stdout_ours, stdout_theirs), (value_ours, value_theirs) = (
            os.pipe() for _ in range(3)
        )
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        stdout, value = bytearray(), bytearray()
        for descriptor in (feed, stdout_ours, value_ours):
            os.set_blocking(descriptor, False)
        return cls(
            theirs={0: stdin_theirs, 1: stdout_theirs, 2: nowhere, 3: value_theirs},
            feed=feed,
            sources={stdout_ours: stdout, value_ours: value},
            stdout=stdout,
            value=value,
            stdin=stdin.encode("utf-8", "replace"),
            limit=limit,
        )

    def close_theirs(self) -> None:
        """Let go of the program's ends, once it has them."""
        while self.theirs:
            os.close(self.theirs.popitem()[1])

    def wait(self, ender: int, seconds: float) -> bool:
        """Carry bytes for at most some seconds; whether the process behind the descriptor `ender` ended."""
        readable = [ender, *(source for source in self.sources if source not in self.ended)]
        ready, writable, _ = select.select(readable, [] if self.feed is None else [self.feed], [], seconds)
        if writable:
            self._write()
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
        self._stop_feeding()
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

    def _write(self) -> None:
        assert self.feed is not None
        with suppress(BlockingIOError):
            try:
                self.stdin = self.stdin[os.write(self.feed, self.stdin[:CHUNK]) :] if self.stdin else b""
            except BrokenPipeError:
                self.stdin = b""
        if not self.stdin:
            self._stop_feeding()

    def _stop_feeding(self) -> None:
        if self.feed is not None:
            os.close(self.feed)
            self.feed = None
