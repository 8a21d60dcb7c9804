"""A connection whose caller must have sent a whole request in time: silence holds no place for ever."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

ARRIVING = (h11.IDLE, h11.SEND_BODY)
"""States of a caller whose request is not there as a whole."""


class InTime(H11Protocol):
    """Invariant: from its first byte, and the first one from the connection, a request takes `seconds` to
    arrive at most; after that the connection is gone. How long its answer takes is another's business."""

    seconds: float = 30.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Waits for the first request from now on."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Waits for the rest of a request, if there is a rest."""
        if self.conn.their_state is h11.IDLE:
            self._expect()
        super().data_received(data)
        if self.conn.their_state not in ARRIVING:
            self._forget()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing."""
        self._forget()
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self.seconds, self.transport.abort)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
