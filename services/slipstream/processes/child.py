"""A child process that exchanges frames with its parent over a socket."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from slipstream.processes.frames import LENGTH, body_length, from_body


class Child:
    """A running child process. It leads a process group, so that `kill` also ends what the child started."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self.pid = process.pid

    @classmethod
    async def start(
        cls, command: Callable[[int], Sequence[str]], *, environment: Mapping[str, str] | None = None
    ) -> Self:
        """Start a child process with one end of a new socket pair.

        `command` takes the file descriptor of the child's end, and returns the arguments of the program.
        `environment`: the child's environment variables; None for those of this process. Errors: OSError.
        """
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *command(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=environment,
                )
        except BaseException:
            writer.close()
            raise
        return cls(process, reader, writer)

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None before `kill` has returned."""
        return self._process.returncode

    async def exchange(self, frames: bytes) -> dict[str, Any]:
        """Send frames, and return the next message of the child. Errors: as `receive`."""
        self._writer.write(frames)
        await self._writer.drain()
        return await self.receive()

    async def receive(self) -> dict[str, Any]:
        """Return the next message of the child. Errors: EOFError, OSError, ValueError (BadFrame)."""
        length = body_length(await self._reader.readexactly(LENGTH.size))
        return from_body(await self._reader.readexactly(length))

    async def kill(self) -> None:
        """Kill the child's process group, and wait for the child."""
        self._writer.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()
