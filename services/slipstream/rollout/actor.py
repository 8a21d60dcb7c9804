"""The actor loop: lease prompts, sample and score their groups, insert them into replay.

    lease loop ──▶ one task per group: wait for a slot ─▶ sample and score ─▶ free the slot ─▶ insert
        ▲                                                                         │
        └─────────── fewer groups in work than slots and prefetched leases ◀──────┘
    heartbeat ──▶ replay, every few seconds: renews all leases, and cancels the tasks of lost leases

The lease loop waits for a served version, then for room for more groups, then for admission by replay
(bounded). A task waits for a slot, then for the engine and the verifier (together at most
rollout.group_timeout_seconds), then for replay. No group waits for another. After a stop the actor leases no
more, and its tasks may finish for `drain_seconds`. Then it cancels the rest, which aborts their requests, and
returns their leases.
"""

import asyncio
from dataclasses import dataclass

import grpc

from slipstream.records import Group, Lease, Outcome
from slipstream.rollout.engine import EngineDied
from slipstream.rollout.group_sampler import GroupSampler
from slipstream.rollout.heartbeat import Heartbeat
from slipstream.rollout.leasing import LeasePrefetch, Leasing
from slipstream.rollout.replay_client import LeaseName, ReplayClient
from slipstream.rollout.served_version import ServedVersion
from slipstream.rpc.errors import Unreachable
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

LOST = ("lease_lost", "group_timeout", "unreachable")
DRAINED = ("finished", "returned")


@dataclass(slots=True, eq=False)
class Work:
    """A lease whose group is being sampled, scored or inserted."""

    lease: Lease
    scored: bool = False
    """Whether the group is sampled and scored, and so needs no slot any more."""


class Actor:
    """Works on at most `max_groups` groups at a time; each lease ends as an insert, return or expiry."""

    def __init__(
        self,
        *,
        sampler: GroupSampler,
        replay: ReplayClient,
        served: ServedVersion,
        max_groups: int,
        group_timeout_seconds: float,
        heartbeat_seconds: float,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._sampler = sampler
        self._replay = replay
        self._served = served
        self._max_groups = max_groups
        self._group_timeout = group_timeout_seconds
        self._metrics = metrics
        self._log = log
        self._works: dict[asyncio.Task[None], Work] = {}
        self._slots = asyncio.Semaphore(max_groups)
        self._progress = asyncio.Event()
        self._leasing = Leasing(replay, served, metrics=metrics, log=log)
        self._prefetch = LeasePrefetch(most=max_groups)
        self._heartbeat = Heartbeat(
            replay=replay,
            served=served,
            seconds=heartbeat_seconds,
            held=self._held,
            lose=self._lose,
            log=log,
        )
        for reason in LOST:  # Prometheus sees no rise in a counter that appears with its first event
            metrics.count("groups_lost_total", 0, reason=reason)
        for outcome in DRAINED:
            metrics.count("drained_groups_total", 0, outcome=outcome)

    @property
    def groups_running(self) -> int:
        """Groups that are not inserted yet; other threads may read it."""
        return sum(not task.done() for task in list(self._works))

    async def run(self, stop: asyncio.Event, *, drain_seconds: float = 0.0) -> None:
        """Work until `stop`, let running groups finish for at most `drain_seconds`, and return other leases.

        A cancellation returns all leases at once. Errors: EngineDied.
        """
        try:
            async with asyncio.TaskGroup() as loops:
                heartbeat = loops.create_task(self._heartbeat.run())
                leasing = loops.create_task(self._keep_leasing())
                await stop.wait()
                leasing.cancel()
                await asyncio.gather(self._drain(drain_seconds), self._return_late_leases())
                heartbeat.cancel()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        finally:
            await self._return_unfinished()

    async def _keep_leasing(self) -> None:
        """Lease and begin groups until cancelled. Errors: those of a group's task."""
        try:
            while True:
                await self._until_serving()
                wanted = await self._wanted_leases()
                self._metrics.set("places_waiting", max(0, self._max_groups - self._in_work))
                try:
                    leases = await self._leasing.request(wanted)
                finally:
                    self._metrics.set("places_waiting", 0)
                for lease in leases:
                    self._begin(lease)
                if leases:
                    self._heartbeat.beat_soon()
        finally:
            self._metrics.set("places", 0)

    def _begin(self, lease: Lease) -> None:
        """Start the task of a group.

        The tasks are in no TaskGroup: one that fails during the drain must not cancel the others.
        `_wanted_leases` raises the error of a task before the stop, `_return_unfinished` logs it after.
        """
        work = Work(lease)
        task = asyncio.create_task(self._work(work))
        task.add_done_callback(lambda _: self._progress.set())
        self._works[task] = work
        self._metrics.set("groups_running", self._in_work)

    @property
    def _in_work(self) -> int:
        """Groups that are being sampled or scored, or wait for a slot."""
        return sum(not (work.scored or task.done()) for task, work in self._works.items())

    def _held(self) -> list[Lease]:
        return [work.lease for task, work in self._works.items() if not task.done()]

    async def _drain(self, seconds: float) -> None:
        """Let running groups finish, for at most `seconds`."""
        working = [task for task in self._works if not task.done()]
        if not working or not seconds:
            return
        self._log.info("draining", groups=len(working), seconds=seconds)
        with self._metrics.waiting("drain"):
            done, _ = await asyncio.wait(working, timeout=seconds)
        finished = [task for task in done if _succeeded(task)]
        self._metrics.count("drained_groups_total", len(finished), outcome="finished")

    async def _until_serving(self) -> None:
        """Wait for a verified version; without one this rollout offers no slots."""
        if not self._served.serving:
            self._metrics.set("places", 0)
        with self._metrics.waiting("first_version"):
            await self._served.wait()
        self._metrics.set("places", self._max_groups)

    async def _wanted_leases(self) -> int:
        """Wait until there is room for more groups; return how many. Errors: those of a group's task.

        Groups that are scored but not inserted yet use no slot. Their number is bounded too, so that they do
        not pile up while replay is away.
        """
        while True:
            self._progress.clear()
            for task in [task for task in self._works if task.done()]:
                if not task.cancelled():
                    task.result()
                del self._works[task]
            self._metrics.set("groups_running", self._in_work)
            ahead = self._prefetch.groups(self._heartbeat.round_trip_seconds)
            wanted = self._max_groups + ahead - self._in_work
            if wanted > 0 and len(self._works) < 2 * self._max_groups + ahead:
                return wanted
            with self._metrics.waiting("free_place"):
                await self._progress.wait()

    async def _work(self, work: Work) -> None:
        """Sample, score and insert one group; return the lease of a failed group as a fault."""
        lease = work.lease
        try:
            async with self._slots:
                async with asyncio.timeout(self._group_timeout):
                    group = await self._sampler.sample_group(lease)
                self._report_scoring_failure(group)
            work.scored = True
            self._prefetch.finished()
            self._progress.set()
            outcome = await self._replay.insert(group)
            self._log.debug("inserted", group=lease.group_id, outcome=outcome.value)
        except TimeoutError:
            detail = f"not finished in {self._group_timeout:g} s (rollout.group_timeout_seconds)"
            await self._return_fault(lease, "group_timeout", detail)
        except Unreachable as error:
            self._count_lost(lease, "unreachable", str(error))
        except grpc.aio.AioRpcError as error:
            await self._return_fault(lease, error.code().name.lower(), error.details() or "")

    def _report_scoring_failure(self, group: Group) -> None:
        """Tell replay the first reason for which a completion of the group could not be scored."""
        rewards = (reward for completion in group.completions for reward in completion.rewards)
        failed = next((reward for reward in rewards if reward.outcome is Outcome.ERROR), None)
        if failed is not None:
            self._heartbeat.report_failure(f"{failed.name}: {failed.detail}")

    def _lose(self, name: LeaseName) -> None:
        """Cancel the work on a lease that replay has taken away.

        A scored group is inserted all the same: the lease may be gone because replay accepted the insert and
        its answer has not arrived yet.
        """
        for task, work in self._works.items():
            if (work.lease.group_id, work.lease.lease_epoch) == name and not (work.scored or task.done()):
                self._count_lost(work.lease, "lease_lost", "no heartbeat arrived in time")
                task.cancel()

    async def _return_fault(self, lease: Lease, fault: str, detail: str) -> None:
        """Count a group as lost, and return its lease as a fault of the prompt or of this worker."""
        self._count_lost(lease, fault, detail)
        await self._leasing.return_fault(lease, fault)

    def _count_lost(self, lease: Lease, reason: str, detail: str) -> None:
        self._metrics.count("groups_lost_total", reason=reason)
        self._log.warning("group lost", group=lease.group_id, reason=reason, detail=detail)

    async def _return_late_leases(self) -> None:
        await self._leasing.return_leases(await self._leasing.late())

    async def _return_unfinished(self) -> None:
        """Cancel running groups, and return the leases of all that are unfinished or failed."""
        died = [work.lease for task, work in self._works.items() if _engine_died(task)]
        unfinished = [
            work.lease for task, work in self._works.items() if not (_succeeded(task) or _engine_died(task))
        ]
        unfinished += await self._leasing.late()
        for task in self._works:
            task.cancel()
        results = await asyncio.gather(*self._works, return_exceptions=True)
        for work, result in zip(self._works.values(), results, strict=True):
            if isinstance(result, Exception):
                error = f"{type(result).__name__}: {result}"
                self._log.error("group failed", group=work.lease.group_id, error=error)
        await self._leasing.return_leases(unfinished)
        await self._leasing.return_leases(died, fault="engine_died")


def _succeeded(task: asyncio.Task[None]) -> bool:
    """Return whether the task of a group ended without an error."""
    return task.done() and not task.cancelled() and task.exception() is None


def _engine_died(task: asyncio.Task[None]) -> bool:
    """Return whether the task of a group failed because the engine died."""
    return task.done() and not task.cancelled() and isinstance(task.exception(), EngineDied)
