"""The wait for a batch: its deadline, and why none comes, by the ledger and the state of actors and rollouts.

The time for which an operator has paused admission does not count towards the deadline. The wire format calls
actors and rollouts workers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import grpc

from slipstream.config import LearnerConfig, RolloutConfig
from slipstream.records import Activity, Admission, Ledger, WorkerActivity, WorkerKind
from slipstream.rpc.errors import SlipstreamError
from slipstream.telemetry.logs import Log

T = TypeVar("T")
LOOK_SECONDS = 1.0
TELL_SECONDS = 60.0
SILENT_SECONDS = 30.0
"""An actor or a rollout without a sign of life for so long counts as gone."""
MOST_WORKERS = 8
"""Most actors, and most rollouts, that a message lists."""


class Starved(SlipstreamError):
    """No full batch came within the deadline."""


class SampleDeadline:
    """The deadline of a wait for groups. Until the first groups come, it includes the start of an engine."""

    def __init__(self, learner: LearnerConfig, rollout: RolloutConfig) -> None:
        self._wait = learner.sample_timeout_seconds
        self._start = rollout.start_timeout_seconds
        self._served = False

    @property
    def seconds(self) -> float:
        """The longest wait from now on."""
        return self._wait if self._served else self._wait + self._start

    @property
    def keys(self) -> str:
        """The configuration keys that the deadline comes from, for messages."""
        return "learner.sample_timeout_seconds" + ("" if self._served else " + rollout.start_timeout_seconds")

    def groups_came(self) -> None:
        """Record that groups came, so an engine has started."""
        self._served = True


class Observed(Protocol):
    """The part of the client of replay that is used here."""

    async def activity(self) -> Activity:
        """Return the ledger and the state of actors and rollouts. Errors: SlipstreamError, AioRpcError."""


class StarvationReport:
    """Watches one wait for a batch, and explains why none came."""

    def __init__(self, replay: Observed, log: Log, *, say: Callable[[str], None]) -> None:
        """`say` shows a line to the user of the run."""
        self._replay = replay
        self._log = log
        self._say = say
        self._before: Ledger | None = None
        self._paused = False

    async def watch(self) -> None:
        """Log until cancelled: a pause of admission and its end, and once a minute why no batch came yet."""
        await asyncio.sleep(LOOK_SECONDS)
        now = await self._look()
        self._before = now.ledger if now else None
        self._note_pause(now)
        while True:
            await asyncio.sleep(LOOK_SECONDS if self._paused else TELL_SECONDS)
            before, now = self._paused, await self._look()
            self._note_pause(now)
            if not before and not self._paused:
                self._log.warning("no batch yet", why=self._explanation(now))

    async def explain(self) -> str:
        """Describe what happened since the wait began."""
        return self._explanation(await self._look())

    async def outlast_pauses(self, wait: Callable[[float], Awaitable[T]], seconds: float) -> T:
        """Return the result of `wait`, which gets its deadline in seconds and raises TimeoutError after it.

        The deadline runs anew from the end of a pause of admission. Errors: TimeoutError, those of `wait`.
        """
        left = seconds
        while True:
            try:
                return await wait(left)
            except TimeoutError:
                left = await self._seconds_left(seconds)
                if left <= 0:
                    raise

    async def _seconds_left(self, seconds: float) -> float:
        """Return what is left of a deadline of so many seconds that has passed, as pauses do not count.

        A replay that does not answer, for example while it is started again, has not ended a pause. The call
        that samples gives up by itself if replay stays away.
        """
        now = await self._look()
        if now is None:
            return seconds if self._paused else 0.0
        if now.admission.paused:
            return seconds
        return 0.0 if now.admission.seconds is None else seconds - now.admission.seconds

    def _explanation(self, now: Activity | None) -> str:
        return "replay does not answer" if now is None else describe(self._before, now)

    def _note_pause(self, now: Activity | None) -> None:
        """Log the begin or the end of a pause, and show it to the user."""
        if now is None or now.admission.paused == self._paused:
            return
        self._paused, state = now.admission.paused, now.admission
        what = "paused" if state.paused else "resumed"
        self._log.info(what, by=state.by, reason=state.reason)
        self._say(_change(state))

    async def _look(self) -> Activity | None:
        try:
            return await self._replay.activity()
        except (SlipstreamError, grpc.aio.AioRpcError):
            return None


def describe(before: Ledger | None, now: Activity) -> str:
    """Describe the groups since `before` (None: since the run began), the leases, actors and rollouts."""
    return "; ".join(
        [
            _groups(before, now.ledger),
            *_withheld(before, now),
            f"{now.ledger.buffered} groups are buffered",
            *([_change(now.admission)] if now.admission.paused else []),
            _leases(now),
            _workers(WorkerKind.ROLLOUT, now),
            _workers(WorkerKind.ACTOR, now),
            *_missing(now),
        ]
    )


def _change(admission: Admission) -> str:
    """Describe the last change of admission: "paused by anna: new disk"."""
    reason = f": {admission.reason}" if admission.reason else ""
    return f"{'paused' if admission.paused else 'resumed'} by {admission.by}{reason}"


def _missing(now: Activity) -> list[str]:
    """Say how to start what was never heard from."""
    heard = {worker.kind for worker in now.workers}
    keys = [f"{kind.value}.workers" for kind in (WorkerKind.ROLLOUT, WorkerKind.ACTOR) if kind not in heard]
    if not keys:
        return []
    return [f"`slipstream run` starts as many as {' and '.join(keys)} say, a cluster their pods"]


def _groups(before: Ledger | None, now: Ledger) -> str:
    since = "since then" if before else "since the run began"
    old = before or Ledger()
    parts = [f"{since} {now.inserted - old.inserted} groups were handed in"]
    for name in ("filtered", "dropped", "retired"):
        changed = _changes(getattr(old, name), getattr(now, name))
        what = "prompts were retired" if name == "retired" else f"groups were {name}"
        parts += [f"{count} {what} ({reason})" for reason, count in changed.items()]
    if expired := now.expired - old.expired:
        parts.append(f"{expired} leases expired because their worker fell silent")
    return ", ".join(parts)


def _changes(old: Mapping[str, int], new: Mapping[str, int]) -> dict[str, int]:
    return {reason: n - old.get(reason, 0) for reason, n in sorted(new.items()) if n != old.get(reason, 0)}


def _withheld(before: Ledger | None, now: Activity) -> list[str]:
    """Describe completions without a score, and the first failure of scoring."""
    withheld = now.ledger.withheld - (before.withheld if before else 0)
    failures = [(w.worker_id, w.scoring_failure) for w in now.workers if w.scoring_failure]
    first = [f"the first failure of {name} was: {failure}" for name, failure in failures[:1]]
    if not withheld:
        return first
    return [f"{withheld} completions were withheld because they could not be scored", *first]


def _leases(now: Activity) -> str:
    if not now.ledger.running:
        return f"no lease is running, and {now.admission_free} groups may be started"
    oldest, holder = now.oldest_lease_seconds, now.oldest_lease_worker
    return f"{now.ledger.running} leases are running, the oldest for {oldest:.0f} s at {holder}"


def _workers(kind: WorkerKind, now: Activity) -> str:
    """Describe the rollouts, or the actors."""
    workers = [worker for worker in now.workers if worker.kind is kind]
    if not workers:
        return f"no {kind.value} was ever heard from: is one running?"
    if all(worker.silent_seconds > SILENT_SECONDS for worker in workers):
        return f"{_listed(kind, workers)}; no {kind.value} was heard from of late: is one running?"
    return _listed(kind, workers)


def _listed(kind: WorkerKind, workers: Sequence[WorkerActivity]) -> str:
    listed = ", ".join(_worker(worker) for worker in workers[:MOST_WORKERS])
    more = len(workers) - MOST_WORKERS
    return f"{kind.value}s: {listed}" + (f", and {more} more" if more > 0 else "")


def _worker(worker: WorkerActivity) -> str:
    parts = [f"heard from {worker.silent_seconds:.0f} s ago"]
    version = f"version {worker.serving_version}" if worker.serving_version >= 0 else "no version"
    if worker.kind is WorkerKind.ROLLOUT:
        parts.append(f"serves {version}")
    else:
        parts += [f"samples {version}", f"holds {worker.leases} leases"]
    return f"{worker.worker_id} ({', '.join(parts)})"
