"""A rate-limited log of the connections that the rendezvous refuses."""

import time

from slipstream.telemetry.logs import Log

LOG_SECONDS = 1.0


class RefusalLog:
    """Logs the peer and the reason of a refusal: at most one line for each reason in LOG_SECONDS."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._unlogged: dict[str, int] = {}
        self._logged_at: dict[str, float] = {}

    def note(self, reason: str, peer: str) -> None:
        """Log a refusal, or count it for the next line with this reason."""
        now = time.monotonic()
        if now - self._logged_at.get(reason, -LOG_SECONDS) < LOG_SECONDS:
            self._unlogged[reason] = self._unlogged.get(reason, 0) + 1
            return
        self._logged_at[reason] = now
        unlogged = self._unlogged.pop(reason, 0)
        self._log.warning("rendezvous refused a connection", peer=peer, reason=reason, unlogged=unlogged)
