"""The leases of an actor: requests to replay, leases requested ahead of need, and returned leases."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import grpc

from slipstream.actor.replay_client import ReplayClient
from slipstream.records import Lease
from slipstream.rpc.errors import SlipstreamError, Unreachable, reason_of
from slipstream.served_version import ServedVersion
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

LEASE_WAIT_SECONDS = 1.0
PAUSE_AFTER_FAILURE_SECONDS = 0.5
ANSWER_SECONDS = 1.0
"""Longest time that a stopping actor waits for the answer to its last request, beyond
LEASE_WAIT_SECONDS."""
REMEMBERED_GROUPS = 32


class Leasing:
    """Requests leases and returns leases.

    Invariant: a lease that replay granted reaches the caller, through `request` or through `late`, also when
    `request` is cancelled while replay answers.
    """

    def __init__(self, replay: ReplayClient, served: ServedVersion, *, metrics: Metrics, log: Log) -> None:
        self._replay = replay
        self._served = served
        self._metrics = metrics
        self._log = log
        self._pending: asyncio.Task[list[Lease]] | None = None

    async def request(self, wanted: int) -> list[Lease]:
        """Return up to `wanted` leases; none when replay admits none in time or does not answer."""
        try:
            with self._metrics.waiting("admission"):
                self._pending = asyncio.create_task(
                    self._replay.lease(
                        max_prompts=wanted,
                        wait_seconds=LEASE_WAIT_SECONDS,
                        serving_version=self._served.version,
                    )
                )
                leases = await asyncio.shield(self._pending)
        except (Unreachable, grpc.aio.AioRpcError) as error:
            self._log.warning("no leases", error=reason_of(error))
            await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)
            leases = []
        self._pending = None
        return leases

    async def late(self) -> list[Lease]:
        """Return the leases of a cancelled request, after a bounded wait for the answer."""
        pending, self._pending = self._pending, None
        if pending is None:
            return []
        await asyncio.wait((pending,), timeout=LEASE_WAIT_SECONDS + ANSWER_SECONDS)
        if pending.done() and pending.exception() is None:
            return pending.result()
        pending.cancel()
        return []

    async def return_leases(self, leases: Sequence[Lease], *, fault: str = "") -> None:
        """Return leases when this actor stops, so that other actors get them at once."""
        if not leases:
            return
        try:
            returned = await self._replay.return_leases(leases, fault=fault)
        except (SlipstreamError, grpc.aio.AioRpcError) as error:
            self._log.warning("leases not returned; they expire", leases=len(leases), error=reason_of(error))
        else:
            self._metrics.count("drained_groups_total", returned, outcome="returned")
            self._log.info("leases returned", leases=returned)

    async def return_fault(self, lease: Lease, fault: str, *, engines_lost: int = 0) -> None:
        """Return a lease whose group failed, so that another actor gets it at once.

        `engines_lost`: engines that the prompt ended. Each of them is a fault.
        """
        try:
            await self._replay.return_leases([lease], fault=fault, engines_lost=engines_lost)
        except (SlipstreamError, grpc.aio.AioRpcError) as error:
            self._log.warning("lease not returned; it expires", group=lease.group_id, error=reason_of(error))


class LeasePrefetch:
    """The number of leases to request ahead of need, so that no slot idles while replay answers.

    It is the number of groups that finish during one round trip to replay, at the pace of the last
    REMEMBERED_GROUPS groups.
    """

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._finished: deque[float] = deque(maxlen=REMEMBERED_GROUPS)

    def finished(self) -> None:
        """Record that a group was finished now."""
        self._finished.append(time.monotonic())

    def groups(self, round_trip_seconds: float) -> int:
        """Return the number of leases to hold beyond the slots, at most `most`."""
        if len(self._finished) < 2:
            return 0
        seconds = max(time.monotonic() - self._finished[0], 1e-3)
        pace = len(self._finished) / seconds
        return min(self._most, round(pace * round_trip_seconds))
