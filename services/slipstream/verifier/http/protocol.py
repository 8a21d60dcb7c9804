"""One HTTP connection: a deadline for the head of a request, a limit on connections, and a role by TLS."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from slipstream.rpc.security.identity import InvalidIdentity, role_of
from slipstream.telemetry.logs import Log


def protocol(
    *, head_seconds: float, connections: int, trust_domain: str | None, log: Log
) -> type[H11Protocol]:
    """A protocol that closes a connection which takes longer than `head_seconds` for the head of a request.

    Of more than `connections` the one that is idle for longest is closed; a new one is answered 503 only when
    all of them have a request in work.

    With a trust domain it puts the role of the caller's certificate into the state of each request.
    """

    class Bounded(H11Protocol):
        deadline: asyncio.TimerHandle | None = None
        idle_since = 0.0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.idle_since = self.loop.time()
            self._close_an_idle_connection()
            if trust_domain is not None:
                role = _role(transport, trust_domain, str(self.client), log)
                self.app_state = {**self.app_state, "role": role}
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.idle_since = self.loop.time()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop()

        def _watch(self) -> None:
            """Count while the head of a request is not whole; between two requests another limit holds."""
            if self.conn.their_state is not h11.IDLE:
                self._stop()
            elif self.deadline is None and self.timeout_keep_alive_task is None:
                self.deadline = self.loop.call_later(head_seconds, self.transport.close)

        def _close_an_idle_connection(self) -> None:
            """Close the connection that is idle for longest, when there are more than there may be."""
            others = [each for each in self.connections if each is not self and not _is_closing(each)]
            if len(others) < connections:
                return
            idle = [each for each in others if isinstance(each, Bounded) and each._is_idle()]
            if idle:
                min(idle, key=lambda each: each.idle_since).transport.close()
            else:
                self.limit_concurrency = 1  # its requests are answered 503

        def _is_idle(self) -> bool:
            answered = self.cycle is None or self.cycle.response_complete
            return answered and self.conn.their_state is h11.IDLE

        def _stop(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

    return Bounded


def _is_closing(connection: Any) -> bool:
    return bool(connection.transport.is_closing())


def _role(transport: Any, trust_domain: str, client: str, log: Log) -> str:
    certificate = transport.get_extra_info("peercert") or {}
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    try:
        return role_of(uris, trust_domain=trust_domain)
    except InvalidIdentity as error:
        log.warning("call refused", peer=client, who=",".join(uris), reason=str(error))
        return "stranger"
