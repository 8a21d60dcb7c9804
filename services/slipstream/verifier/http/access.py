"""In front of the application: who may come in, with how much, and how slowly."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from slipstream.config.addresses import is_loopback
from slipstream.telemetry.logs import Log
from slipstream.verifier.reward import describe

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

SCORERS = frozenset({"actor", "probe", "console"})
"""Roles that may score over HTTP."""
RETRY_AFTER_SECONDS = b"1"


class Guard:
    """Refuses those who may not score, and bodies too large or too slow, before any of the body is parsed.

    Invariant: the bodies of all requests in work are together at most as large as one may be.

    A server with mutual TLS puts the caller's role into the state of the connection (see protocol.py). Pages
    in a browser may not score: they send an Origin, and one that another site made name this machine
    (DNS rebinding) sends that name as Host, which a `local` server does not answer to.
    """

    def __init__(
        self, app: App, *, max_bytes: int, body_seconds: float, secure: bool, local: bool, log: Log
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._body_seconds = body_seconds
        self._secure = secure
        self._local = local
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        try:
            self._admit(scope)
            await self._read(receive, body)
            await self._app(scope, once(bytes(body), receive), send)
        except _Refused as refused:
            await _refuse(send, refused.status, str(refused))
        except Exception as error:  # the application has sent the status 500
            self._log.error("http request failed", reason=describe(error))
        finally:
            self._held_bytes -= len(body)

    def _admit(self, scope: Scope) -> None:
        """Errors: _Refused."""
        headers = dict(scope["headers"])
        role = scope.get("state", {}).get("role", "nobody")
        if self._secure and role not in SCORERS:
            reason = f"a {role} may not score; those who may: {', '.join(sorted(SCORERS))}"
            self._log.warning(
                "call refused", peer=str(scope.get("client")), method=scope["path"], reason=reason
            )
            raise _Refused(403, reason)
        if b"origin" in headers:
            raise _Refused(403, "a page in a browser may not score, and this request has an Origin")
        host = headers.get(b"host", b"").decode("latin-1")
        if self._local and not _is_this_machine(host):
            raise _Refused(421, f"this verifier answers to localhost and 127.0.0.1, not to {host[:80]!a}")

    async def _read(self, receive: Receive, body: bytearray) -> None:
        """Read the body; what there is of it is held until the request is answered. Errors: _Refused."""
        try:
            async with asyncio.timeout(self._body_seconds):
                while True:
                    message = await receive()
                    part = message.get("body", b"")
                    if len(body) + len(part) > self._max_bytes:
                        raise _Refused(413, f"the body is over {self._max_bytes} bytes (rpc.max_message_mib)")
                    if self._held_bytes + len(part) > self._max_bytes:
                        raise _Refused(
                            429, f"the bodies of all requests are over {self._max_bytes} bytes; come again"
                        )
                    body += part
                    self._held_bytes += len(part)
                    if not message.get("more_body", False):
                        return
        except TimeoutError:
            raise _Refused(408, f"the body did not come within {self._body_seconds:g} s") from None


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _is_this_machine(host: str) -> bool:
    """Whether a Host header names the loopback interface, by address or as localhost."""
    try:
        return is_loopback(f"{urlsplit(f'//{host}').hostname}:0")
    except ValueError:
        return False


def once(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body first, and then the further messages of the connection."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


async def _refuse(send: Send, status: int, error: str) -> None:
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    closing = [*headers, (b"connection", b"close")]
    if status == 429:
        closing.append((b"retry-after", RETRY_AFTER_SECONDS))
    await send({"type": "http.response.start", "status": status, "headers": closing})
    await send({"type": "http.response.body", "body": body})
