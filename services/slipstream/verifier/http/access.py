"""In front of the application: who may come in, and with how much."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from slipstream.telemetry.logs import Log

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

SCORERS = frozenset({"rollout", "probe", "console"})
"""Roles that may score over HTTP."""


class Guard:
    """Refuses those who may not score, and bodies over `max_bytes`, before any of the body is parsed.

    A server with mutual TLS puts the caller's role into the state of the connection (see listener.py).
    """

    def __init__(self, app: App, *, max_bytes: int, secure: bool, log: Log) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._secure = secure
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        role = scope.get("state", {}).get("role", "nobody")
        if self._secure and role not in SCORERS:
            reason = f"a {role} may not score; those who may: {', '.join(sorted(SCORERS))}"
            self._log.warning(
                "call refused", peer=str(scope.get("client")), method=scope["path"], reason=reason
            )
            await _refuse(send, 403, reason)
            return
        body = await self._whole(receive)
        if body is None:
            await _refuse(send, 413, f"the body is over {self._max_bytes} bytes (rpc.max_message_mib)")
            return
        await self._app(scope, _once(body, receive), send)

    async def _whole(self, receive: Receive) -> bytes | None:
        """The body, or None when it is too large."""
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                return None
            if not message.get("more_body", False):
                return bytes(body)


def _once(body: bytes, receive: Receive) -> Receive:
    """Gives the body, and then whatever else the connection says."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


async def _refuse(send: Send, status: int, error: str) -> None:
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    closing = [*headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": closing})
    await send({"type": "http.response.body", "body": body})
