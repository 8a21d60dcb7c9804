"""A server that an actor starts for itself on loopback, and restarts when it has ended."""

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from slipstream.processes.lifetime.parent_death import with_parent_death
from slipstream.rpc.errors import SlipstreamError
from slipstream.telemetry.logs import Log

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""Variables that the server gets from the actor, whose others may be secrets."""
POLL_SECONDS = 0.1
TAIL_BYTES = 2000
"""Number of bytes at the end of the server's output that are read for an error message."""


class ServerFailed(SlipstreamError):
    """The server cannot be started, or ended before it answered."""


class LocalServer:
    """One server process. Invariant: at most one process lives, and none after `close`."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], start_seconds: float, log: Log
    ) -> None:
        """`command`: `{port}` in a part becomes the port of the server."""
        self._command = command
        self._env = env
        self._start_seconds = start_seconds
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._port = 0

    async def url(self) -> str:
        """Return the address of the running server, which is started if it does not run.

        Errors: ServerFailed with the end of the server's output.
        """
        async with self._starting:
            if self.ended:
                await self._start()
        return f"http://127.0.0.1:{self._port}"

    @property
    def ended(self) -> bool:
        """Whether no server runs."""
        return self._process is None or self._process.returncode is not None

    async def close(self) -> None:
        """Kill the server's process group."""
        await self._kill()
        self._output.close()

    async def _start(self) -> None:
        if self._process is not None:
            self._log.warning(
                "environment server ended", status=self._process.returncode, output=self._tail()
            )
        await self._kill()
        self._port = free_port()
        self._output.truncate(0)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._arguments(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
                env=child_environment(self._env),
            )
        except OSError as error:
            raise ServerFailed(f"{self._command[0]} cannot be started: {error}") from error
        await self._until_it_listens(self._process)

    def _arguments(self) -> list[str]:
        program = executable(self._command[0])
        if program is None:
            raise ServerFailed(f"there is no program {self._command[0]}")
        rest = (part.replace("{port}", str(self._port)) for part in self._command[1:])
        return with_parent_death([program, *rest])

    async def _until_it_listens(self, process: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._start_seconds
        while not await _listens(self._port):
            if process.returncode is not None:
                raise ServerFailed(f"the server ended with status {process.returncode}: {self._tail()}")
            if loop.time() > deadline:
                await self._kill()
                raise ServerFailed(f"no answer after {self._start_seconds:g} s: {self._tail()}")
            await asyncio.sleep(POLL_SECONDS)

    async def _kill(self) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._process = None

    def _tail(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        tail = os.pread(self._output.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
        return " ".join(tail.decode(errors="replace").split())[-500:] or "it wrote nothing"


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child: what is harmless of ours, and `extra`."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {**inherited, "PYTHONUNBUFFERED": "1", **extra}


def executable(name: str) -> str | None:
    """Return the path of a program, found as the shell does; None if there is none."""
    path = shutil.which(name)
    return None if path is None else str(Path(path).absolute())


def free_port() -> int:
    """Return a TCP port of loopback that no socket has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
