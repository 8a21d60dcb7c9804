"""The actor loop: lease prompts, sample and score their groups, insert them into replay.

    lease loop ──▶ one task per group: wait for a place ─▶ sample ─▶ free the place ─▶ score ─▶ insert
        ▲                                                                  │
        └─ lease while fewer groups are sampled than places and prefetched leases ─┘
    heartbeat ──▶ replay, every few seconds: renews all leases, and cancels the tasks of lost leases

The lease loop waits until a rollout serves a version, then for room for more groups, then for admission by
replay (at most LEASE_WAIT_SECONDS a request). A task waits for a place at a rollout, then for the rollout and
the verifier (together at most rollout.group_timeout_seconds), then for replay. No group waits for another.
After a stop the actor leases no more, and its tasks may finish for `drain_seconds`. Then it cancels the rest,
which aborts their requests, and returns their leases.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, get_args

import grpc

from slipstream.actor.episode_run import OwnTime
from slipstream.actor.group_clock import GroupClock
from slipstream.actor.group_sampler import GroupSampler
from slipstream.actor.heartbeat import Heartbeat
from slipstream.actor.leasing import LeasePrefetch, Leasing
from slipstream.actor.own_code import located
from slipstream.actor.replay_client import LeaseName, ReplayClient
from slipstream.actor.sampler import GroupPlace, RolloutsLost, SamplingRefused
from slipstream.config.sources import UnknownSource
from slipstream.records import NO_VERSION, Group, Lease, Outcome, Purpose
from slipstream.rpc.errors import Unreachable
from slipstream.served_version import ServedVersion
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.telemetry.throughput import Throughput

LOST = (
    *(
        "lease_lost",
        "group_timeout",
        "no_rollout",
        "over_age",
        "engine_died",
        "sampling_refused",
        "unreachable",
    ),
    *("invalid_value", "unexpected_error"),
)
DRAINED = ("finished", "returned")
MOST_UNEXPECTED_ERRORS = 8
"""Groups that may fail with an unexpected error one after the other. Then the cause is no single prompt, and
the error ends the actor."""
CANCEL_SECONDS = 5.0
"""Longest wait of a stopping actor for the end of its cancelled groups."""

Phase = Literal["waiting", "sampling", "scoring", "inserting"]
PHASES: tuple[Phase, ...] = get_args(Phase)


class Places(Protocol):
    """The places of groups at rollouts."""

    on_change: Callable[[], None]
    """Called when `capacity` may have changed."""

    @property
    def capacity(self) -> int:
        """Groups that this actor may hold places for: its own, and the free ones."""

    def place(
        self,
        group_id: str,
        *,
        prompt_id: str,
        min_version: int = NO_VERSION,
        engines_lost: int = 0,
        on_tokens: Callable[[str], None] = lambda _: None,
    ) -> AbstractAsyncContextManager[GroupPlace]:
        """Wait for a free place at a rollout that serves `min_version` or a later version, and hold it.

        `engines_lost`: engines that the prompt ended under earlier leases. `on_tokens`: called with the name
        of the rollout when the first tokens of a request arrive.
        """


class _GroupTooSlow(Exception):
    """A group had no time left. A TimeoutError of other code is no such end."""


class _OverAge(_GroupTooSlow):
    """A group had no time left while it waited for a rollout whose tokens would train."""


@dataclass(slots=True, eq=False)
class Work:
    """A lease whose group is in work."""

    lease: Lease
    clock: GroupClock = field(default_factory=GroupClock)
    phase: Phase = "waiting"
    over: bool = False
    """Whether the group is inserted, has failed, or has lost its lease."""

    @property
    def needs_place(self) -> bool:
        """Whether the group is not sampled yet."""
        return self.phase in ("waiting", "sampling")


class Actor:
    """Works on at most `max_groups` groups at a time; each lease ends as an insert, return or expiry."""

    def __init__(
        self,
        *,
        sampler: GroupSampler,
        places: Places,
        replay: ReplayClient,
        served: ServedVersion,
        max_groups: int,
        group_timeout_seconds: float,
        heartbeat_seconds: float,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._sampler = sampler
        self._places = places
        self._replay = replay
        self._served = served
        self._max_groups = max_groups
        self._group_timeout = group_timeout_seconds
        self._metrics = metrics
        self._log = log
        self._works: dict[asyncio.Task[None], Work] = {}
        self._unexpected_errors = 0
        self._progress = asyncio.Event()
        places.on_change = self._progress.set
        self._leasing = Leasing(replay, served, metrics=metrics, log=log)
        self._prefetch = LeasePrefetch(most=max_groups)
        self._heartbeat = Heartbeat(
            replay=replay,
            served=served,
            seconds=heartbeat_seconds,
            held=self._held,
            lose=self._lose,
            throughput=Throughput(lambda: metrics.total("completions_total")),
            log=log,
        )
        for reason in LOST:  # Prometheus sees no rise in a counter that appears with its first event
            metrics.count("groups_lost_total", 0, reason=reason)
        for outcome in DRAINED:
            metrics.count("drained_groups_total", 0, outcome=outcome)
        metrics.follow("actor_groups", self._groups_by_phase)

    async def run(self, stop: asyncio.Event, *, drain_seconds: float = 0.0) -> None:
        """Work until `stop`, let running groups finish for at most `drain_seconds`, and return other leases.

        A cancellation returns all leases at once.
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
        while True:
            with self._metrics.waiting("first_version"):
                await self._served.wait()
            wanted = await self._wanted_leases()
            self._metrics.set("places_waiting", max(0, self._capacity - self._in_work))
            try:
                leases = await self._leasing.request(wanted)
            finally:
                self._metrics.set("places_waiting", 0)
            for lease in leases:
                self._begin(lease)
            if leases:
                self._heartbeat.beat_soon()

    def _begin(self, lease: Lease) -> None:
        """Start the task of a group.

        The tasks are in no TaskGroup: one that fails during the drain must not cancel the others.
        `_wanted_leases` raises the error of a task before the stop, `_return_unfinished` logs it after.
        """
        work = Work(lease)
        task = asyncio.create_task(self._work(work))
        task.add_done_callback(lambda _: self._progress.set())
        self._works[task] = work

    @property
    def _capacity(self) -> int:
        """Groups that may be sampled at the same time."""
        return min(self._max_groups, self._places.capacity)

    @property
    def _in_work(self) -> int:
        """Groups that are being sampled, or wait for a place."""
        return sum(work.needs_place and not task.done() for task, work in self._works.items())

    def _groups_by_phase(self) -> dict[str, float]:
        """Count the groups in work; the thread that serves the metrics calls this."""
        phases = [work.phase for task, work in list(self._works.items()) if not task.done()]
        return {phase: float(phases.count(phase)) for phase in PHASES}

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

    async def _wanted_leases(self) -> int:
        """Wait until there is room for more groups; return how many. Errors: those of a group's task.

        Groups that are sampled but not inserted yet use no place. Their number is bounded too, so that they
        do not pile up while the verifier or replay is away.
        """
        while True:
            self._progress.clear()
            for task in [task for task in self._works if task.done()]:
                if not task.cancelled():
                    task.result()
                del self._works[task]
            capacity = self._capacity
            ahead = min(capacity, self._prefetch.groups(self._heartbeat.round_trip_seconds))
            wanted = capacity + ahead - self._in_work
            if wanted > 0 and len(self._works) < 2 * capacity + ahead:
                return wanted
            with self._metrics.waiting("free_place"):
                await self._progress.wait()

    async def _work(self, work: Work) -> None:
        """Sample, score and insert one group; return the lease of a failed group as a fault.

        Errors: UnknownSource, if the actor's configuration is not that of replay; the last one of
        MOST_UNEXPECTED_ERRORS.
        """
        lease = work.lease
        try:
            await self._insert(work)
            self._unexpected_errors = 0
        except _OverAge:
            await self._return_blameless(
                lease, "over_age", "its rollout is over age, and no other has a place"
            )
        except _GroupTooSlow:
            detail = f"not finished in {self._group_timeout:g} s (rollout.group_timeout_seconds)"
            if self._served.serving:
                await self._return_fault(lease, "group_timeout", detail)
            else:  # the prompt is not at fault
                await self._return_blameless(lease, "no_rollout", detail)
        except RolloutsLost as error:
            await self._return_fault(lease, "engine_died", str(error), engines_lost=error.engines)
        except SamplingRefused as error:
            await self._return_fault(lease, "sampling_refused", str(error))
        except Unreachable as error:
            self._count_lost(lease, "unreachable", str(error))
        except grpc.aio.AioRpcError as error:
            await self._return_fault(lease, error.code().name.lower(), error.details() or "")
        except UnknownSource:
            raise
        except asyncio.CancelledError as error:
            if _cancelled():
                raise
            await self._fail(lease, RuntimeError(f"code of the group cancelled it: {located(error)}"))
        except Exception as error:
            await self._fail(lease, error)

    async def _insert(self, work: Work) -> None:
        try:
            group = await self._sampled_and_scored(work)
            work.phase = "inserting"
            outcome = await self._replay.insert(replace(group, times=work.clock.times()))
            self._log.debug("inserted", group=work.lease.group_id, outcome=outcome.value)
        finally:
            work.over = True

    async def _sampled_and_scored(self, work: Work) -> Group:
        """Return the group.

        Its time counts from the moment at which it has a place, without the time in which an episode waits
        for others to end. Errors: _GroupTooSlow, _OverAge.
        """
        lease = work.lease
        newest = self._served.version if lease.purpose is Purpose.EVALUATION else NO_VERSION
        async with self._places.place(
            lease.group_id,
            prompt_id=lease.prompt.prompt_id,
            min_version=newest,
            engines_lost=lease.engines_lost,
            on_tokens=work.clock.tokens_came,
        ) as place:
            work.clock.place_given()
            group_time = OwnTime(self._group_timeout)
            work.phase = "sampling"
            try:
                async with _bounded(group_time.timeout):
                    generated = await self._sampler.generate(lease, place, group_time.paused)
            except _GroupTooSlow as error:
                if place.over_age:
                    raise _OverAge from error
                raise
            work.clock.all_sampled()
        work.phase = "scoring"
        self._prefetch.finished()
        self._progress.set()
        async with _bounded(asyncio.timeout_at(group_time.timeout.when())):
            group = await self._sampler.score(lease, generated)
        work.clock.all_scored()
        self._report_scoring_failure(group)
        return group

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
            unfinished = work.phase != "inserting" and not work.over
            if (work.lease.group_id, work.lease.lease_epoch) == name and unfinished:
                work.over = True
                self._count_lost(work.lease, "lease_lost", "no heartbeat arrived in time")
                task.cancel()

    async def _fail(self, lease: Lease, error: Exception) -> None:
        """Return the lease of a group that failed in an unexpected way as a fault.

        A ValueError is a text or a token id of the episode that no message can carry. Errors: `error`, if too
        many groups fail so.
        """
        self._unexpected_errors += 1
        if self._unexpected_errors >= MOST_UNEXPECTED_ERRORS:
            raise error
        self._log.error("group failed", group=lease.group_id, error=located(error))
        fault = "invalid_value" if isinstance(error, ValueError) else "unexpected_error"
        await self._return_fault(lease, fault, f"{type(error).__name__}: {error}")

    async def _return_fault(self, lease: Lease, fault: str, detail: str, *, engines_lost: int = 0) -> None:
        """Count a group as lost, and return its lease as a fault of the prompt or of this actor."""
        self._count_lost(lease, fault, detail)
        await self._leasing.return_fault(lease, fault, engines_lost=engines_lost)

    async def _return_blameless(self, lease: Lease, reason: str, detail: str) -> None:
        """Count a group as lost, and return its lease without a fault of the prompt."""
        self._count_lost(lease, reason, detail)
        await self._leasing.return_leases([lease])

    def _count_lost(self, lease: Lease, reason: str, detail: str) -> None:
        self._metrics.count("groups_lost_total", reason=reason)
        self._log.warning("group lost", group=lease.group_id, reason=reason, detail=detail)

    async def _return_late_leases(self) -> None:
        await self._leasing.return_leases(await self._leasing.late())

    async def _return_unfinished(self) -> None:
        """Cancel running groups, and return the leases of all that are unfinished or failed."""
        unfinished = [work.lease for task, work in self._works.items() if not _succeeded(task)]
        unfinished += await self._leasing.late()
        for task in self._works:
            task.cancel()
        if self._works:  # an environment may take long to end, or never
            await asyncio.wait(self._works, timeout=CANCEL_SECONDS)
        for task, work in self._works.items():
            error = task.exception() if task.done() and not task.cancelled() else None
            if error is not None:
                self._log.error("group failed", group=work.lease.group_id, error=located(error))
            if not task.done():
                self._log.error("group does not end when it is cancelled", group=work.lease.group_id)
        await self._leasing.return_leases(unfinished)


@asynccontextmanager
async def _bounded(timeout: asyncio.Timeout) -> AsyncIterator[None]:
    """Bound the time of a group. Errors: _GroupTooSlow, and those of the code inside."""
    try:
        async with timeout:
            yield
    except TimeoutError as error:
        if not timeout.expired():
            raise
        raise _GroupTooSlow from error


def _cancelled() -> bool:
    """Return whether this actor has cancelled the current task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _succeeded(task: asyncio.Task[None]) -> bool:
    """Return whether the task of a group ended without an error."""
    return task.done() and not task.cancelled() and task.exception() is None
