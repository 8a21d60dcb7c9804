"""A connection to an MCP server, which is made again when it has ended.

    call ── is it open? ── yes ─────────────────────────▶ tools/call, bounded by `seconds`
                 └ no ── one start for all callers, bounded by `start_seconds` ──┘

The client of the package `mcp` must be opened and closed by one task, so a task of its own holds it.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from mcp import Client, MCPError
from mcp.client import Transport
from mcp_types import CONNECTION_CLOSED, CallToolResult, Tool

from slipstream.actor.adapters.local_server import ServerFailed
from slipstream.telemetry import background, logs

RETRY_SECONDS = 2.0
"""Time after a failed start in which calls fail without a further one."""
CLOSE_SECONDS = 10.0
"""Longest wait for the end of a connection."""
MOST_TOOLS = 128
PAGES = 20
"""Most pages of a list of tools that are read."""


class Server(Protocol):
    """How a server is reached."""

    @property
    def why(self) -> str:
        """What is known of the end of the server; empty for one that somebody else runs."""

    def transport(self, ended: asyncio.Event) -> Transport:
        """Return a context that yields the streams of a new connection. `ended` may be set at its end."""


@dataclass(slots=True, eq=False)
class _Opened:
    """One connection while it is held."""

    ready: "asyncio.Future[tuple[Client, list[Tool]]]"
    end: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the connection is of no more use."""


class McpConnection:
    """Calls the tools of one server.

    Invariant: at most one connection is open, and none after `close`.
    """

    def __init__(self, server: Server, *, start_seconds: float, log: logs.Log) -> None:
        self._server = server
        self._start_seconds = start_seconds
        self._log = log
        self._opened: _Opened | None = None
        self._holders: set[background.BackgroundTask[None]] = set()
        self._retry_at = 0.0
        self._failure = ""

    async def tools(self) -> list[Tool]:
        """Return the tools of the server, which is started if it does not run. Errors: ServerFailed."""
        _, tools = await self._connected()
        return tools

    async def call(self, name: str, arguments: Mapping[str, Any], *, seconds: float) -> CallToolResult:
        """Return the result of a call.

        Errors: ServerFailed if the server cannot be reached, or ends; TimeoutError after `seconds`; MCPError
        and others if the server refuses the call or answers what is no result.
        """
        client, _ = await self._connected()
        opened = self._opened
        try:
            async with asyncio.timeout(seconds):
                return await client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise
            self._drop(opened)
            raise ServerFailed(self._with_why(f"the connection ended during a call of {name}")) from error

    async def answers(self, *, seconds: float) -> None:
        """Give the connection up if the server does not name its tools within some seconds."""
        opened = self._opened
        if opened is None or not opened.ready.done():
            return
        client, _ = opened.ready.result()
        try:
            async with asyncio.timeout(seconds):
                await _listed(client)
        except Exception as error:  # whatever it is, the server does not answer
            self._log.warning("a tool server does not answer", error=f"{type(error).__name__}: {error}")
            self._drop(opened)

    async def close(self) -> None:
        """End the connection, and a server that was started for it."""
        self._drop(self._opened)
        for holder in list(self._holders):
            await holder.wait(seconds=CLOSE_SECONDS)
            await holder.drop()

    async def _connected(self) -> tuple[Client, list[Tool]]:
        if self._opened is None or self._opened.end.is_set():
            if time.monotonic() < self._retry_at:
                raise ServerFailed(self._failure)
            self._opened = _Opened(asyncio.get_running_loop().create_future())
            background.BackgroundTask.begin(self._hold(self._opened), "tool server", self._log).keep_in(
                self._holders
            )
        return await asyncio.shield(self._opened.ready)

    def _drop(self, opened: _Opened | None) -> None:
        if opened is not None:
            opened.end.set()

    async def _hold(self, opened: _Opened) -> None:
        """Keep a connection open until `opened.end` is set."""
        try:
            async with AsyncExitStack() as stack:
                client = Client(self._server.transport(opened.end), cache=None)
                async with asyncio.timeout(self._start_seconds):
                    await stack.enter_async_context(client)
                    tools = await _listed(client)
                opened.ready.set_result((client, tools))
                await opened.end.wait()
        except Exception as error:  # transports raise groups of anything
            self._ended(opened, error)
        finally:
            opened.end.set()
            if not opened.ready.done():
                opened.ready.set_exception(ServerFailed("the connection was closed during its start"))
                opened.ready.exception()  # nobody may wait for it any more

    def _ended(self, opened: _Opened, error: Exception) -> None:
        """Record why a connection could not be made, or log why one that was made has ended."""
        if opened.ready.done():
            self._log.warning("the connection to a tool server failed", error=_message(error))
            return
        reason = (
            f"no list of tools after {self._start_seconds:g} s"
            if isinstance(error, TimeoutError)
            else _message(error)
        )
        self._failure = self._with_why(reason)
        self._retry_at = time.monotonic() + RETRY_SECONDS
        opened.ready.set_exception(ServerFailed(self._failure))
        opened.ready.exception()  # nobody may wait for it any more

    def _with_why(self, reason: str) -> str:
        """Return one line: a reason, and what is known of the end of the server."""
        return " ".join(f"{reason}; {self._server.why}".rstrip("; ").split())


async def _listed(client: Client) -> list[Tool]:
    """Return all tools of a server. Errors: ServerFailed for a list that is too long."""
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools
    raise ServerFailed(f"the list of tools has more than {PAGES} pages")


def _message(error: BaseException) -> str:
    """Return the message of an error; of a group, that of its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, ServerFailed) else f"{type(error).__name__}: {error}"
