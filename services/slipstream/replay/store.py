"""Leases, groups, admission and the ledger: every change is one atomic script in Redis."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.algorithms.shaping import has_variance
from slipstream.algorithms.spec import DynamicSampling, Shaping
from slipstream.records import (
    START,
    Activity,
    Cursor,
    Generated,
    HandOut,
    InsertOutcome,
    Ledger,
    Purpose,
    ReplayStats,
    WorkerActivity,
)
from slipstream.replay.connection import Scripts
from slipstream.replay.redis_health import RedisHealth, health_from
from slipstream.replay.summary import Summary
from slipstream.rpc.errors import NotFound

COUNTERS = (
    "leased",
    "inserted",
    "returned",
    "expired",
    "trained",
    "tokens_inserted",
    "tokens_trained",
    "fenced",
    "duplicates",
    "withheld",
    "refills_exhausted",
)
NEVER = -1
READ_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A lease without its prompt; `index` counts dispatches, or the held-out prompts of an evaluation.

    `decided` is true when the curriculum has admitted the prompt before, with this size.
    """

    group_id: str
    epoch: int
    index: int
    size: int
    decided: bool

    @property
    def purpose(self) -> Purpose:
        """Training or evaluation, as the id says."""
        return purpose_of(self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """Who asks for leases, and how many.

    An attempt with the id of an earlier one, whose answer was lost, gets the leases of that one again.
    Without an id each call leases anew.
    """

    worker: str
    max_prompts: int
    serving_version: int
    request_id: str = ""
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A prompt that nobody gets any more, and who held it when its last lease ended by a fault."""

    group_id: str
    index: int
    worker: str
    fault: str

    @property
    def purpose(self) -> Purpose:
        """Training or evaluation, as the id says."""
        return purpose_of(self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep did: leases that expired, or began anew because nobody could have renewed them; and the
    prompts that were retired since the last sweep."""

    expired: int
    renewed: int
    retired: tuple[Retired, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inserted:
    """What became of an insert, why it was filtered if it was, and what is wrong with it if it is invalid."""

    outcome: InsertOutcome
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """Groups that a new learner finds back in the buffer: from in flight, and from steps that were lost; and
    the epoch that it has from now on."""

    released: int
    restored: int
    learner_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """How many groups were in flight until now, what was generated since the step before, and where the data
    stand; and how many groups the step trained on although its hand-out did not hold them any more."""

    acked: int
    retrained: int
    generated: Generated
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The numbers of a run that the scripts need."""

    group_size: int
    lease_seconds: float
    pipeline_depth: int
    groups_per_step: int
    shaping: Shaping


class ReplayStore:
    """The state of one run. Any number of these may work on the same Redis.

    Invariants: the ledger closes after every call; accepted + running never grows beyond
    (pipeline_depth + version + 1) · groups_per_step; a group is trained on at most once.
    Every method raises Unreachable or OutOfMemory when Redis fails or is full.
    """

    def __init__(self, scripts: Scripts, limits: Limits) -> None:
        self._scripts = scripts
        self._limits = limits

    async def lease(self, request: LeaseRequest) -> tuple[Slot, ...]:
        """What an earlier attempt was given; then evaluation prompts up to the version that the worker
        serves; then what admission allows."""
        found = await self._scripts.call(
            "lease",
            request.worker,
            request.max_prompts,
            request.serving_version,
            self._lease_milliseconds,
            self._limits.group_size,
            self._limits.pipeline_depth,
            self._limits.groups_per_step,
            request.request_id,
            request.attempt,
        )
        return tuple(
            Slot(group_id=i.decode(), epoch=e, index=n, size=s, decided=bool(d)) for i, e, n, s, d in found
        )

    async def renew(
        self,
        worker: str,
        leases: Sequence[tuple[str, int]],
        *,
        serving_version: int = NEVER,
        scoring_failure: str = "",
    ) -> tuple[tuple[str, int], ...]:
        """The heartbeat of a worker with all its leases, as (group id, epoch); those that it has lost."""
        flat = [part for lease in leases for part in lease]
        lost = await self._scripts.call(
            "renew", worker, self._lease_milliseconds, serving_version, scoring_failure, *flat
        )
        return tuple((group_id.decode(), int(epoch)) for group_id, epoch in lost)

    async def return_leases(self, worker: str, leases: Sequence[tuple[str, int]], *, fault: str = "") -> int:
        """Return leases, as (group id, epoch), unworked; how many were still this worker's.

        A fault counts against the prompts: the third retires them.
        """
        flat = [part for lease in leases for part in lease]
        return int(await self._scripts.call("return", worker, fault, *flat))

    async def expire(self) -> Swept:
        """End the leases that no heartbeat renewed in time."""
        expired, renewed, retired = await self._scripts.call("expire", self._lease_milliseconds)
        return Swept(
            expired=expired, renewed=renewed, retired=tuple(_retired(json.loads(text)) for text in retired)
        )

    async def activity(self) -> Activity:
        """What the workers are doing, and the ledger a moment before."""
        stats = await self.stats()
        workers, oldest, holder = await self._scripts.call("activity")
        return Activity(
            ledger=stats.ledger,
            admission_free=stats.admission_free,
            workers=tuple(sorted((_worker(json.loads(text)) for text in workers), key=lambda w: w.worker_id)),
            oldest_lease_seconds=oldest / 1000,
            oldest_lease_worker=holder.decode(),
        )

    async def insert(self, group_id: str, epoch: int, summary: Summary, payload: bytes) -> Inserted:
        """Take a finished training group. Idempotent by (group id, epoch).

        Without variance it is filtered while dynamic sampling has refills left for the announced version. One
        with a fault, with not as many completions as were leased, or sampled by a version that no learner has
        made, is filtered as invalid.
        """
        answer = await self._scripts.call(
            "insert",
            group_id,
            epoch,
            summary.fault,
            summary.completions,
            summary.scored,
            summary.withheld,
            summary.tokens,
            summary.newest_version,
            payload,
            self._most_refills(summary),
            summary.prompt_id,
            self._correct(summary),
            repr(self._limits.shaping.difficulty.decay),
            int(summary.scored > 0 and not self._varied(summary)),
            *(part for name, r in summary.rewards.items() for part in (name, repr(r.sum), r.count)),
        )
        return inserted_from(answer)

    async def sample(
        self, groups: int, *, version: int, max_staleness: int, hand_out: HandOut
    ) -> tuple[str, ...]:
        """Drop what is over age; then put the oldest `groups` groups in flight, or none. Their ids.

        What an older hand-out holds for the same step goes back first. May be called again under the same
        hand-out until it has made one. Errors: Superseded when it is not the newest.
        """
        found = await self._scripts.call(
            "sample", groups, version - max_staleness, version, hand_out.learner_epoch, hand_out.number
        )
        return tuple(group_id.decode() for group_id in found)

    async def payloads(self, group_ids: Sequence[str]) -> AsyncIterator[bytes]:
        """The bytes of groups as they were inserted, in order; about READ_BYTES of them are read at once.

        Errors: NotFound when one is settled.
        """
        start, count = 0, 1
        while ids := group_ids[start : start + count]:
            found = await self._scripts.read_fields([f"group:{group_id}" for group_id in ids], "bytes")
            for group_id, payload in zip(ids, found, strict=True):
                if payload is None:
                    raise NotFound(f"group {group_id} is not in the buffer; attach the learner again")
                yield payload
            largest = max(len(payload) for payload in found if payload is not None)
            start, count = start + count, max(1, READ_BYTES // max(1, largest))

    async def release(self, group_ids: Sequence[str], hand_out: HandOut) -> int:
        """Put groups back at their old place; how many this hand-out held."""
        return int(
            await self._scripts.call("release", f"{hand_out.learner_epoch}:{hand_out.number}", *group_ids)
        )

    async def drop(self, group_ids: Sequence[str], hand_out: HandOut, *, reason: str) -> int:
        """Throw groups away; how many this hand-out held."""
        return int(
            await self._scripts.call(
                "drop", f"{hand_out.learner_epoch}:{hand_out.number}", reason, *group_ids
            )
        )

    async def ack(self, group_ids: Sequence[str], *, version: int, hand_out: HandOut) -> Acked:
        """These took part in the step that made `version`. Errors: Superseded by another learner."""
        acked, flat, dispatched, still, retrained = await self._scripts.call(
            "ack", version, hand_out.learner_epoch, hand_out.number, *group_ids
        )
        cursor = Cursor(dispatched=dispatched, open=tuple(sorted(still)))
        return Acked(acked=acked, retrained=retrained, generated=_generated(flat), cursor=cursor)

    async def confirm_checkpoint(self, version: int, *, learner_epoch: int) -> int:
        """Let go of groups trained up to `version`; how many. Errors: Superseded by another learner."""
        return int(await self._scripts.call("confirm", version, learner_epoch))

    async def announce(self, version: int, *, learner_epoch: int) -> None:
        """The fleet serves `version`. Errors: Superseded by another learner."""
        await self._scripts.call("announce", version, learner_epoch)

    async def attach(self, version: int, cursor: Cursor = START, *, learner_id: str) -> Attached:
        """The learner continues from `version`: all that is in flight or was trained on later comes back.

        `cursor` is where the data stood then: a Redis that has lost that goes on from there. Calls of earlier
        learners are refused from now on. A second call of the same learner changes nothing.
        """
        released, restored, epoch = await self._scripts.call(
            "attach", version, self._limits.groups_per_step, learner_id, cursor.dispatched, *cursor.open
        )
        return Attached(released=released, restored=restored, learner_epoch=epoch)

    async def stats(self) -> ReplayStats:
        """The ledger and the admission state, read in one step."""
        flat, sizes, free = await self._scripts.call(
            "stats", self._limits.pipeline_depth, self._limits.groups_per_step
        )
        counters = {k.decode(): int(v) for k, v in zip(flat[::2], flat[1::2], strict=True)}
        running, buffered, in_flight, kept, retrained = sizes
        ledger = Ledger(
            **{name: counters.get(name, 0) for name in COUNTERS},
            filtered=_by_reason(counters, "filtered:"),
            dropped=_by_reason(counters, "dropped:"),
            skipped=_by_reason(counters, "skipped:"),
            retired=_by_reason(counters, "retired:"),
            running=running,
            buffered=buffered,
            in_flight=in_flight,
            retrained=retrained,
        )
        return ReplayStats(ledger=ledger, version=counters.get("version", 0), admission_free=free, kept=kept)

    async def redis_health(self) -> RedisHealth:
        """How full and how durable Redis is. Errors: Unreachable."""
        return health_from(await self._scripts.info("memory"), await self._scripts.info("persistence"))

    @property
    def _lease_milliseconds(self) -> int:
        return round(1000 * self._limits.lease_seconds)

    def _most_refills(self, summary: Summary) -> int:
        """How many groups may be filtered at one version if this is one to filter, else NEVER."""
        sampling = self._limits.shaping.dynamic_sampling
        if sampling is None or self._varied(summary):
            return NEVER
        return sampling.max_refills * self._limits.groups_per_step

    def _varied(self, summary: Summary) -> bool:
        sampling = self._limits.shaping.dynamic_sampling or DynamicSampling()
        return has_variance(summary.task_rewards, sampling.tolerance)

    def _correct(self, summary: Summary) -> int:
        """How many of the scored completions are correct; NEVER when nothing asks for pass rates."""
        shaping = self._limits.shaping
        if not shaping.remembers_pass_rates:
            return NEVER
        return sum(reward > shaping.difficulty.correct_above for reward in summary.task_rewards)


def purpose_of(group_id: str) -> Purpose:
    """Training or evaluation, as a group's id says."""
    return Purpose.EVALUATION if group_id.startswith("e") else Purpose.TRAINING


def inserted_from(answer: Sequence[bytes]) -> Inserted:
    """The answer of an insert script as a value."""
    outcome, reason, detail = (part.decode() for part in answer)
    return Inserted(outcome=InsertOutcome(outcome), reason=reason, detail=detail)


def _retired(row: list[Any]) -> Retired:
    group_id, index, worker, fault = row
    return Retired(group_id=group_id, index=index, worker=worker, fault=fault)


def _worker(row: list[Any]) -> WorkerActivity:
    name, silent, serving, leases, failure = row
    return WorkerActivity(
        worker_id=name,
        silent_seconds=silent / 1000,
        serving_version=serving,
        leases=leases,
        scoring_failure=failure,
    )


def _generated(flat: Sequence[bytes]) -> Generated:
    found = {name.decode(): float(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
    return Generated(
        groups=int(found.get("groups", 0)),
        unvaried_groups=int(found.get("unvaried_groups", 0)),
        reward_sums={n.removeprefix("sum:"): v for n, v in found.items() if n.startswith("sum:")},
        reward_counts={n.removeprefix("count:"): int(v) for n, v in found.items() if n.startswith("count:")},
    )


def _by_reason(counters: dict[str, Any], start: str) -> dict[str, int]:
    return {name.removeprefix(start): n for name, n in counters.items() if name.startswith(start)}
