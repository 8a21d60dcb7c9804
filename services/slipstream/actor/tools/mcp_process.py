"""The process of an MCP server: JSON-RPC messages in lines of its standard input and output.

    session ── messages ──▶ stdin ── server ── stdout ──▶ messages ── session
                                        └──── stderr ──▶ the last bytes, for errors

The package `mcp` has such a transport as well. This one bounds what a server may write, passes on no further
environment variable, and ends the whole process group, also when the actor is killed.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from slipstream.actor.adapters.local_server import ServerFailed, child_environment, executable
from slipstream.actor.program.child import Output, output_pipe
from slipstream.processes.lifetime import left_over, parent_death

MESSAGE_BYTES = 8 * 1024 * 1024
"""Longest message of a server. A server that writes a longer one is ended."""
ERROR_BYTES = 2000
"""What of the error output is kept."""
END_SECONDS = 2.0
"""Time for a server to end by itself, once its standard input is closed."""


class ServerProcess:
    """A command that starts a server, and the error output of its newest process."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str]) -> None:
        self._command = command
        self._env = env
        self._errors = Output(ERROR_BYTES)
        self._end = ""

    @property
    def why(self) -> str:
        """How the newest process ended, if it has, and the end of its error output."""
        tail = " ".join(self._errors.text.split())[-500:]
        return f"{self._end}its error output ends with: {tail or 'nothing'}"

    @asynccontextmanager
    async def transport(self, ended: asyncio.Event) -> AsyncIterator[TransportStreams]:
        """Run a process, and yield the streams of its messages. `ended` is set when it closes its output.

        Errors: ServerFailed if the command cannot be started.
        """
        async with output_pipe(ERROR_BYTES) as errors:
            self._errors, self._end = errors.output, ""
            process = await self._start(errors.writable)
            errors.close_writable()
            to_session, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            to_server, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
            pumps = [
                asyncio.create_task(self._read(process, to_session, ended)),
                asyncio.create_task(_write(process, outgoing)),
            ]
            try:
                yield received, to_server
            finally:
                await _end(process, pumps)
                self._end = self._end or f"it ended with status {process.returncode}; "
                for stream in (received, to_session, to_server, outgoing):
                    stream.close()

    async def _read(self, process: asyncio.subprocess.Process, to_session: Any, ended: asyncio.Event) -> None:
        """Pass on the messages of a server until it ends. Other lines, such as prints, are left out."""
        assert process.stdout is not None
        with to_session, suppress(OSError, anyio.BrokenResourceError):
            try:
                while line := await process.stdout.readline():
                    if message := _message(line):
                        await to_session.send(message)
            except ValueError:  # `readline`: the line is over its limit
                self._end = f"it wrote a message of more than {MESSAGE_BYTES >> 20} MiB; "
            finally:
                ended.set()

    async def _start(self, errors: int) -> asyncio.subprocess.Process:
        program = executable(self._command[0])
        if program is None:
            raise ServerFailed(f"there is no program {self._command[0]}")
        mark = (
            {left_over.TOKEN_VARIABLE: os.environ[left_over.TOKEN_VARIABLE]}
            if left_over.TOKEN_VARIABLE in os.environ
            else {}
        )
        try:
            return await asyncio.create_subprocess_exec(
                *parent_death.with_parent_death([program, *self._command[1:]]),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=MESSAGE_BYTES,
                start_new_session=True,
                env=child_environment({**mark, **self._env}),
            )
        except OSError as error:
            raise ServerFailed(f"{self._command[0]} cannot be started: {error}") from error


def _message(line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


async def _write(process: asyncio.subprocess.Process, outgoing: Any) -> None:
    assert process.stdin is not None
    with outgoing, suppress(OSError):
        async for each in outgoing:
            text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()


async def _end(process: asyncio.subprocess.Process, pumps: Sequence[asyncio.Task[None]]) -> None:
    """Close the input of a server, and kill its process group if it does not end by itself."""
    assert process.stdin is not None
    for pump in pumps:
        pump.cancel()
    process.stdin.close()
    try:
        await asyncio.wait_for(_ended(process), END_SECONDS)
    except TimeoutError:
        pass
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        await asyncio.wait_for(_ended(process), END_SECONDS)
    process._transport.close()  # type: ignore[attr-defined]  # a process outside of the group may hold a pipe


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of the process alone: `Process.wait` waits for all that hold its pipes."""
    while process.returncode is None:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.01)
