"""One session of an OpenEnv server: `reset` and `step` as JSON over a WebSocket.

The messages are those of the package openenv (0.10; 0.3 of openenv-core has the same). Its own client
would bring gradio and fastmcp into the actor.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from slipstream.rpc.errors import SlipstreamError

MOST_BYTES = 16 * 1024 * 1024
"""Longest message of a server."""
FULL = "CAPACITY_REACHED"
CLOSE_SECONDS = 1.0
FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0
"""Seconds between two tries for a session of a server that has all its sessions in use."""


class OpenEnvFailed(SlipstreamError):
    """The server does not answer, answers nonsense, or its environment raised an error."""


class ActionRefused(SlipstreamError):
    """The server does not take the action: it has not the form that the environment wants."""


class ServerFull(SlipstreamError):
    """All sessions of the server are in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The result of `reset` or `step`."""

    observation: Mapping[str, Any]
    reward: float
    """Reward of this step; 0 if the environment gave none."""
    done: bool


class Session:
    """One instance of the server's environment. No other connection acts in it."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def reset(self, arguments: Mapping[str, Any]) -> Step:
        """Begin an episode. Errors: OpenEnvFailed, ServerFull."""
        return await self._asked("reset", arguments)

    async def step(self, action: Mapping[str, Any]) -> Step:
        """Act. Errors: ActionRefused, after which another action may be tried; OpenEnvFailed."""
        return await self._asked("step", action)

    async def close(self) -> None:
        """Tell the server that the session ends, unless it has ended already."""
        with suppress(OpenEnvFailed):
            await self._send("close", {})

    async def _asked(self, kind: str, data: Mapping[str, Any]) -> Step:
        with suppress(OpenEnvFailed):  # the reason why the server has closed the session is received below
            await self._send(kind, data)
        try:
            answer = json.loads(await self._connection.recv())
        except (WebSocketException, ValueError, RecursionError) as error:
            raise OpenEnvFailed(f"{kind}: no answer of the environment: {error}") from error
        return read_answer(kind, answer)

    async def _send(self, kind: str, data: Mapping[str, Any]) -> None:
        message = {"type": kind, "data": data} if kind != "close" else {"type": kind}
        try:
            await self._connection.send(json.dumps(message))
        except WebSocketException as error:
            raise OpenEnvFailed(f"{kind}: the server has closed the session: {error}") from error


def read_answer(kind: str, answer: Any) -> Step:
    """Return the step of a message of the server. Errors: OpenEnvFailed, ActionRefused, ServerFull."""
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, dict):
        raise OpenEnvFailed(f"{kind}: the answer is no message of OpenEnv: {str(answer)[:200]}")
    if answer.get("type") == "error":
        raise _error(kind, data)
    observation, reward = data.get("observation"), data.get("reward")
    if not isinstance(observation, dict) or not isinstance(reward, float | int | None):
        raise OpenEnvFailed(f"{kind}: no observation and reward in the answer: {str(data)[:200]}")
    return Step(observation=observation, reward=float(reward or 0.0), done=bool(data.get("done")))


def _error(kind: str, data: Mapping[str, Any]) -> SlipstreamError:
    message = " ".join(str(data.get("message", data)).split())[:500]
    if data.get("code") == FULL:
        return ServerFull(message)
    if kind == "step" and data.get("code") == "VALIDATION_ERROR":
        return ActionRefused(message)
    return OpenEnvFailed(f"{kind}: {message}")


@asynccontextmanager
async def open_session(url: str) -> AsyncIterator[Session]:
    """Open a session of the server at `url`, and close it at the end. Errors: OpenEnvFailed."""
    address = url.rstrip("/").replace("http", "ws", 1) + "/ws"
    proxy: Literal[True] | None = None if is_loopback(url) else True
    try:
        # No pings: a step may block the server. The bound is `seconds` of the configuration.
        connection = await connect(
            address, max_size=MOST_BYTES, proxy=proxy, ping_interval=None, close_timeout=CLOSE_SECONDS
        )
    except (OSError, TimeoutError, WebSocketException) as error:
        raise OpenEnvFailed(f"{address} cannot be reached: {error or type(error).__name__}") from error
    session = Session(connection)
    try:
        yield session
        await session.close()
    finally:
        await connection.close()


@asynccontextmanager
async def begun_session(url: str, arguments: Mapping[str, Any]) -> AsyncIterator[tuple[Session, Step]]:
    """Open a session and reset it; while all sessions of the server are in use, try again and again.

    Errors: OpenEnvFailed.
    """
    wait = FIRST_WAIT
    while True:
        async with open_session(url) as session:
            try:
                first = await session.reset(arguments)
            except ServerFull:
                first = None
            if first is not None:
                yield session, first
                return
        await asyncio.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)


def is_loopback(url: str) -> bool:
    """Whether an address is of this machine, to which no proxy leads."""
    return urlsplit(url).hostname in {"localhost", "127.0.0.1", "::1"}
