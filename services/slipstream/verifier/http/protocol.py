"""One connection over HTTP: it has so much time to ask, and with mutual TLS a role."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from slipstream.rpc.security.identity import Stranger, role_of
from slipstream.telemetry.logs import Log


def protocol(*, head_seconds: float, trust_domain: str | None, log: Log) -> type[H11Protocol]:
    """A protocol that closes a connection which takes longer than `head_seconds` for the head of a request.

    With a trust domain it puts the role of the caller's certificate into the state of each request.
    """

    class Bounded(H11Protocol):
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if trust_domain is not None:
                role = _role(transport, trust_domain, str(self.client), log)
                self.app_state = {**self.app_state, "role": role}
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop()

        def _watch(self) -> None:
            """Count while the head of a request is not whole; between two requests another limit holds."""
            if self.conn.their_state is not h11.IDLE:
                self._stop()
            elif self.deadline is None and self.timeout_keep_alive_task is None:
                self.deadline = self.loop.call_later(head_seconds, self.transport.close)

        def _stop(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

    return Bounded


def _role(transport: Any, trust_domain: str, client: str, log: Log) -> str:
    certificate = transport.get_extra_info("peercert") or {}
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    try:
        return role_of(uris, trust_domain=trust_domain)
    except Stranger as error:
        log.warning("call refused", peer=client, who=",".join(uris), reason=str(error))
        return "stranger"
