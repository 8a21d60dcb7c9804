"""One fork server, as the verifier sees it."""

import asyncio
import os
import secrets
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from slipstream.verifier.sandbox import scratch
from slipstream.verifier.sandbox.job import Bounds, Ran, Run, ran_from_json
from slipstream.verifier.sandbox.layers import Report
from slipstream.verifier.sandbox.warden import PATIENCE
from slipstream.verifier.workers.frames import LENGTH, BadFrame, body_length, from_body, to_frame

SOURCE_ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("server.py")
INTERPRETER_FLAGS = ("-s", "-P", "-S", "-B", "-X", "utf8")
"""No packages, no folders of the user, nothing of where it is started, no caches written."""
ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""The order of a set is part of what a program does, and a verdict is to be the same again."""
START_SECONDS = 60.0
MARGIN_SECONDS = 20.0


class SandboxLost(Exception):
    """The infrastructure failed a run: its server could not start, has ended, or said nothing sensible."""


class ServerProcess:
    """A fork server that has one run at a time. It is of no use after SandboxLost."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        home: str,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._home = home
        self.report = Report(active=())

    @classmethod
    async def start(cls, bounds: Bounds) -> "ServerProcess":
        """A server that is ready, with the report of its walls. Errors: SandboxLost."""
        home = tempfile.mkdtemp(prefix="slipstream-sandbox-")
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        with theirs:
            process = await _start(theirs.fileno(), home, bounds)
        server = cls(process, reader, writer, home)
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await server._receive()
            server.report = Report(active=ready["active"], missing=ready["missing"])
        except BaseException as error:
            await server.kill()
            if isinstance(error, EOFError | OSError | TimeoutError | ValueError | KeyError):
                raise SandboxLost(f"a sandbox did not start: {type(error).__name__}: {error}") from error
            raise
        return server

    async def have(self, run: Run) -> Ran:
        """What became of a run. Errors: SandboxLost."""
        nonce = secrets.token_hex(16)
        try:
            async with asyncio.timeout(PATIENCE * run.seconds + MARGIN_SECONDS):
                self._writer.write(to_frame(run.to_json()) + to_frame({"nonce": nonce}))
                await self._writer.drain()
                reply = await self._receive()
            if reply.get("nonce") != nonce:
                raise BadFrame("an answer with another nonce")
            if "failed" in reply:
                raise BadFrame(reply["failed"])
            return ran_from_json(reply)
        except (EOFError, OSError, TimeoutError, ValueError, KeyError) as error:
            raise SandboxLost(f"a run was not had: {type(error).__name__}: {error}") from error

    async def kill(self) -> None:
        """End the server and with it all that it started, and remove its folder."""
        self._writer.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await asyncio.to_thread(_remove, self._home)

    async def _receive(self) -> dict[str, Any]:
        length = body_length(await self._reader.readexactly(LENGTH.size))
        return from_body(await self._reader.readexactly(length))


def _remove(home: str) -> None:
    """Remove a folder that a killed program may have filled with anything."""
    with suppress(OSError):
        scratch.clear(home)
        os.rmdir(home)


async def _start(descriptor: int, home: str, bounds: Bounds) -> asyncio.subprocess.Process:
    limits = (bounds.output_bytes, bounds.scratch_mib)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *INTERPRETER_FLAGS,
        str(SCRIPT),
        str(SOURCE_ROOT),
        str(descriptor),
        home,
        *map(str, limits),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        pass_fds=[descriptor],
        start_new_session=True,
        env=ENVIRONMENT,
    )
