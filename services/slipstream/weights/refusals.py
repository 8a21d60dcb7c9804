"""A log of who was refused that a flood of strangers cannot flood."""

import time

from slipstream.telemetry.logs import Log

LOG_SECONDS = 1.0


class Refusals:
    """Logs who was refused and why: for each reason at once, then at most a line in LOG_SECONDS."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._unlogged: dict[str, int] = {}
        self._logged_at: dict[str, float] = {}

    def note(self, reason: str, peer: str) -> None:
        """Somebody was refused."""
        now = time.monotonic()
        if now - self._logged_at.get(reason, -LOG_SECONDS) < LOG_SECONDS:
            self._unlogged[reason] = self._unlogged.get(reason, 0) + 1
            return
        self._logged_at[reason] = now
        unlogged = self._unlogged.pop(reason, 0)
        self._log.warning("rendezvous refused a connection", peer=peer, reason=reason, unlogged=unlogged)
