"""The heartbeat of an actor: one call, every few seconds, that renews all its leases.

The loop waits until the next beat is due, or until `beat_soon` or `report_failure` asks for one at once. A
call without an answer is retried until the next beat is due.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc

from slipstream import records, served_version
from slipstream.actor.replay_client import LeaseName, ReplayClient
from slipstream.rpc.errors import SlipstreamError, reason_of
from slipstream.telemetry.logs import Log
from slipstream.telemetry.throughput import Throughput


class Heartbeat:
    """Renews the leases of `held` every `seconds`, and calls `lose` for each that replay took away."""

    def __init__(
        self,
        *,
        replay: ReplayClient,
        served: served_version.ServedVersion,
        seconds: float,
        held: Callable[[], Sequence[records.Lease]],
        lose: Callable[[LeaseName], None],
        throughput: Throughput,
        log: Log,
    ) -> None:
        """`throughput`: of completions."""
        self._replay = replay
        self._served = served
        self._seconds = seconds
        self._held = held
        self._lose = lose
        self._throughput = throughput
        self._log = log
        self._due = asyncio.Event()
        self._scoring_failure = ""
        self.round_trip_seconds = 0.0
        """Duration of the last beat that replay answered."""

    def beat_soon(self) -> None:
        """Beat at once, so that replay learns that its leases have arrived."""
        self._due.set()

    def report_failure(self, failure: str) -> None:
        """Log the first reason for which a completion was not scored, and send it with every heartbeat."""
        if not self._scoring_failure:
            self._scoring_failure = failure
            self._log.warning("a completion could not be scored and is withheld", failure=failure)
            self.beat_soon()

    async def run(self) -> None:
        """Beat until cancelled. When replay does not answer, the next beat tries again."""
        while True:
            self._due.clear()
            await self._beat()
            # In Python 3.11, asyncio.wait_for drops a cancellation at the moment at which the event is set.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._due.wait()

    async def _beat(self) -> None:
        began = time.monotonic()
        try:
            lost = await self._replay.renew(
                self._held(),
                serving_version=self._served.version if self._served.serving else records.NO_VERSION,
                scoring_failure=self._scoring_failure,
                throughput=self._throughput.per_second(),
                give_up_after=self._seconds,
            )
        except (SlipstreamError, grpc.aio.AioRpcError) as error:
            self._log.warning("no heartbeat: leases may expire", error=reason_of(error))
            return
        self.round_trip_seconds = time.monotonic() - began
        for name in lost:
            self._lose(name)
