"""The heartbeat of a worker: one call, every few seconds, that keeps all its leases.

It waits for the next beat, or until somebody has news; a call is tried again until the next beat is due.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from slipstream.records import Lease
from slipstream.rollout.replay_client import LeaseName, ReplayClient
from slipstream.rollout.served_version import NO_VERSION, ServedVersion
from slipstream.rpc.errors import SlipstreamError
from slipstream.telemetry.logs import Log


class Heartbeat:
    """Renews what `held` says, every `seconds`; hands leases that the worker has lost to `lose`."""

    def __init__(
        self,
        *,
        replay: ReplayClient,
        served: ServedVersion,
        seconds: float,
        held: Callable[[], Sequence[Lease]],
        lose: Callable[[LeaseName], None],
        log: Log,
    ) -> None:
        self._replay = replay
        self._served = served
        self._seconds = seconds
        self._held = held
        self._lose = lose
        self._log = log
        self._news = asyncio.Event()
        self._scoring_failure = ""
        self.round_trip_seconds = 0.0
        """Of the last beat that was answered at its first attempt."""

    def soon(self) -> None:
        """Beat at once: replay then knows that leases have arrived."""
        self._news.set()

    def report_failure(self, failure: str) -> None:
        """What kept a completion from being scored; the first is told, and logged."""
        if not self._scoring_failure:
            self._scoring_failure = failure
            self._log.warning("a completion could not be scored and is withheld", failure=failure)
            self.soon()

    async def run(self) -> None:
        """Beat until cancelled. A replay that is away is tried again at the next beat."""
        while True:
            self._news.clear()
            await self._beat()
            # In Python 3.11, asyncio.wait_for drops a cancellation that comes at the same moment as the news.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._news.wait()

    async def _beat(self) -> None:
        began = time.monotonic()
        try:
            lost = await self._replay.renew(
                self._held(),
                serving_version=self._served.version if self._served.serving else NO_VERSION,
                scoring_failure=self._scoring_failure,
                give_up_after=self._seconds,
            )
        except SlipstreamError as error:
            self._log.warning("no heartbeat: leases may expire", error=str(error))
            return
        self.round_trip_seconds = time.monotonic() - began
        for name in lost:
            self._lose(name)
