"""Leases, groups, admission and the ledger.

Each change is one Lua script, which Redis executes atomically.
"""

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from slipstream import records
from slipstream.algorithms.shaping import has_variance
from slipstream.algorithms.spec import DynamicSampling
from slipstream.replay.connection import Scripts
from slipstream.replay.redis_health import RedisHealth, health_from
from slipstream.replay.summary import Summary
from slipstream.replay.values import Acked, Attached, Inserted, LeaseRequest, Limits, Retired, Slot, Swept
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
FILTERED_BYTES = 16 << 20
"""Most bytes of the filtered and dropped groups that the learner has not taken yet."""
READ_BYTES = 2 * 1024 * 1024


class ReplayStore:
    """The state of one run in Redis. Several processes may use the same state.

    Invariants: the equations of the ledger hold after every call; accepted + running never grows beyond
    (pipeline_depth + version + 1) · groups_per_step; a group is trained on at most once.

    Every method raises Unreachable if Redis fails, and OutOfMemory if it is full.
    """

    def __init__(self, scripts: Scripts, limits: Limits) -> None:
        self._scripts = scripts
        self._limits = limits

    async def lease(self, request: LeaseRequest) -> tuple[Slot, ...]:
        """Lease prompts, in this order: those of an earlier attempt of the same request; prompts of
        evaluations whose version its rollouts serve; and as many training prompts as admission allows."""
        leases = await self._scripts.call(
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
            Slot(group_id=i.decode(), epoch=e, index=n, size=s, decided=bool(d), engines_lost=lost)
            for i, e, n, s, d, lost in leases
        )

    async def renew(
        self,
        worker: str,
        leases: Sequence[tuple[str, int]],
        *,
        serving_version: int = NEVER,
        scoring_failure: str = "",
        throughput: float | None = None,
    ) -> tuple[tuple[str, int], ...]:
        """Extend all leases of an actor, given as (group id, epoch). Returns those that it has lost.

        `throughput`: completions per second that it finished lately, if it reports them.
        """
        flat = [part for lease in leases for part in lease]
        lost = await self._scripts.call(
            "renew",
            worker,
            self._lease_milliseconds,
            serving_version,
            scoring_failure,
            _optional(throughput),
            *flat,
        )
        return tuple((group_id.decode(), int(epoch)) for group_id, epoch in lost)

    async def return_leases(
        self, worker: str, leases: Sequence[tuple[str, int]], *, fault: str = "", engines_lost: int = 0
    ) -> int:
        """End leases, given as (group id, epoch), without groups. Return how many the actor still held.

        Each engine that a prompt ended is a fault. The third fault of a prompt retires it.
        """
        flat = [part for lease in leases for part in lease]
        return int(await self._scripts.call("return", worker, fault, engines_lost, *flat))

    async def expire(self) -> Swept:
        """Expire the leases that no heartbeat renewed in time."""
        expired, renewed, retired = await self._scripts.call("expire", self._lease_milliseconds)
        return Swept(
            expired=expired, renewed=renewed, retired=tuple(_retired(json.loads(text)) for text in retired)
        )

    async def activity(self) -> records.Activity:
        """Return the state of each actor and rollout, and the ledger a moment earlier."""
        stats = await self.stats()
        workers, oldest, holder = await self._scripts.call("activity")
        return records.Activity(
            ledger=stats.ledger,
            admission_free=stats.admission_free,
            admission=stats.admission,
            workers=tuple(sorted((_worker(json.loads(text)) for text in workers), key=lambda w: w.worker_id)),
            oldest_lease_seconds=oldest / 1000,
            oldest_lease_worker=holder.decode(),
        )

    async def report_rollout(
        self, rollout: records.ListedRollout, *, throughput: float | None = None
    ) -> None:
        """Record the heartbeat of a rollout; one without an address is not listed any more.

        `throughput`: tokens per second that it sampled lately, if it reports them.
        """
        described = json.dumps(asdict(rollout)) if rollout.address else ""
        serving = rollout.status.serving_version
        await self._scripts.call(
            "report_rollout", rollout.worker_id, serving, described, _optional(throughput)
        )

    async def list_rollouts(self) -> tuple[records.ListedRollout, ...]:
        """Return the rollouts whose last heartbeat is not older than a lease lasts, by name."""
        rows = await self._scripts.call("list_rollouts", self._lease_milliseconds)
        return tuple(sorted((_rollout(json.loads(row)) for row in rows), key=lambda r: r.worker_id))

    async def insert(self, group_id: str, epoch: int, summary: Summary, payload: bytes) -> Inserted:
        """Insert a finished training group. Idempotent by (group id, epoch).

        A group without variance is filtered while dynamic sampling has refills left for the announced
        version. A group is filtered as invalid if it has a fault, if its number of completions is not the
        leased one, or if a version sampled it that no learner has made.
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
            summary.source,
            *(part for name, r in summary.rewards.items() for part in (name, repr(r.sum), r.count)),
        )
        return inserted_from(answer)

    async def sample(
        self, groups: int, *, version: int, max_staleness: int, hand_out: records.HandOut
    ) -> tuple[str, ...]:
        """Put the oldest `groups` groups in flight, or none if there are fewer. Returns their ids.

        First, groups that an older hand-out holds for the same step go back to the buffer, and groups over
        age are dropped. The caller may repeat the call under the same hand-out until it gets a batch. Errors:
        Superseded when the hand-out is not the newest.
        """
        ids = await self._scripts.call(
            "sample",
            groups,
            version - max_staleness,
            version,
            hand_out.learner_epoch,
            hand_out.number,
            FILTERED_BYTES if self._limits.stores_completions else 0,
        )
        return tuple(group_id.decode() for group_id in ids)

    async def payloads(self, group_ids: Sequence[str]) -> AsyncIterator[bytes]:
        """Yield the bytes of groups as they were inserted, in order, reading about READ_BYTES at a time.

        Errors: NotFound when a group is not in the buffer any more.
        """
        start, count = 0, 1
        while ids := group_ids[start : start + count]:
            payloads = await self._scripts.read_fields([f"group:{group_id}" for group_id in ids], "bytes")
            for group_id, payload in zip(ids, payloads, strict=True):
                if payload is None:
                    raise NotFound(f"group {group_id} is not in the buffer; attach the learner again")
                yield payload
            largest = max(len(payload) for payload in payloads if payload is not None)
            start, count = start + count, max(1, READ_BYTES // max(1, largest))

    async def release(self, group_ids: Sequence[str], hand_out: records.HandOut) -> int:
        """Release groups to their place in the buffer. Returns how many of them the hand-out still held."""
        return int(
            await self._scripts.call("release", f"{hand_out.learner_epoch}:{hand_out.number}", *group_ids)
        )

    async def drop(self, group_ids: Sequence[str], hand_out: records.HandOut, *, reason: str) -> int:
        """Drop groups for a reason. Returns how many of them the hand-out still held."""
        return int(
            await self._scripts.call(
                "drop", f"{hand_out.learner_epoch}:{hand_out.number}", reason, *group_ids
            )
        )

    async def keep_filtered(self, reason: str, payload: bytes) -> None:
        """Keep a filtered group for the learner, which stores it. Errors: OutOfMemory, Unreachable."""
        await self._scripts.call("keep_filtered", reason, payload, FILTERED_BYTES)

    async def take_filtered(self) -> AsyncIterator[tuple[str, str, bytes]]:
        """Yield the groups that were filtered or dropped since the last call, the oldest first: `filtered` or
        `dropped`, reason, bytes."""
        while entries := await self._scripts.call("take_filtered", READ_BYTES):
            for entry in entries:
                name, _, payload = entry.partition(b"\n")
                state, _, reason = name.decode().partition(":")
                yield state, reason, payload

    async def ack(self, group_ids: Sequence[str], *, version: int, hand_out: records.HandOut) -> Acked:
        """Record that the step that made `version` trained on these groups.

        Errors: Superseded by another learner.
        """
        acked, flat, dispatched, open_indices, retrained = await self._scripts.call(
            "ack", version, hand_out.learner_epoch, hand_out.number, *group_ids
        )
        cursor = records.Cursor(dispatched=dispatched, open=tuple(sorted(open_indices)))
        return Acked(acked=acked, retrained=retrained, generated=_generated(flat), cursor=cursor)

    async def confirm_checkpoint(self, version: int, *, learner_epoch: int) -> int:
        """Free the groups that were trained on up to `version`, whose checkpoint is durable. Return how many.

        Errors: Superseded by another learner.
        """
        return int(await self._scripts.call("confirm", version, learner_epoch))

    async def announce(self, version: int, *, learner_epoch: int) -> None:
        """Record that the fleet serves `version`, which opens admission.

        Errors: Superseded by another learner.
        """
        await self._scripts.call("announce", version, learner_epoch)

    async def attach(
        self, version: int, cursor: records.Cursor = records.START, *, learner_id: str
    ) -> Attached:
        """Attach a learner that continues from `version`.

        Groups in flight, and groups that later versions trained on, return to the buffer. `cursor` is the
        position in the data at `version`; it counts if Redis has lost its own. From now on calls of earlier
        learners fail. A second call of the same learner changes nothing.
        """
        released, restored, epoch = await self._scripts.call(
            "attach", version, self._limits.groups_per_step, learner_id, cursor.dispatched, *cursor.open
        )
        return Attached(released=released, restored=restored, learner_epoch=epoch)

    async def stats(self) -> records.ReplayStats:
        """Return the ledger and the state of admission, read in one atomic script."""
        flat, sizes, free, admission = await self._scripts.call(
            "stats", self._limits.pipeline_depth, self._limits.groups_per_step
        )
        counters = {k.decode(): int(v) for k, v in zip(flat[::2], flat[1::2], strict=True)}
        running, buffered, in_flight, kept, retrained = sizes
        ledger = records.Ledger(
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
        return records.ReplayStats(
            ledger=ledger,
            version=counters.get("version", 0),
            admission_free=free,
            kept=kept,
            admission=_admission(admission),
        )

    async def set_admission(self, *, paused: bool, by: str, reason: str) -> tuple[records.Admission, bool]:
        """Pause admission, or end the pause. Return the state, and whether the call has changed it.

        Running leases go on. The state is that of all replicas, and outlives them.
        """
        changed, state = await self._scripts.call("set_admission", int(paused), by, reason)
        return _admission(state), bool(changed)

    async def redis_health(self) -> RedisHealth:
        """Return how full and how durable Redis is. Errors: Unreachable."""
        return health_from(await self._scripts.info("memory"), await self._scripts.info("persistence"))

    @property
    def _lease_milliseconds(self) -> int:
        return round(1000 * self._limits.lease_seconds)

    def _most_refills(self, summary: Summary) -> int:
        """Return how many groups one version may filter, or NEVER if this group is not to be filtered."""
        sampling = self._limits.shaping.dynamic_sampling
        if sampling is None or self._varied(summary):
            return NEVER
        return sampling.max_refills * self._limits.groups_per_step

    def _varied(self, summary: Summary) -> bool:
        sampling = self._limits.shaping.dynamic_sampling or DynamicSampling()
        return has_variance(summary.task_rewards, sampling.tolerance)

    def _correct(self, summary: Summary) -> int:
        """Return how many scored completions are correct, or NEVER if the run remembers no pass rates."""
        shaping = self._limits.shaping
        if not shaping.remembers_pass_rates:
            return NEVER
        return sum(reward > shaping.difficulty.correct_above for reward in summary.task_rewards)


def inserted_from(answer: Sequence[bytes]) -> Inserted:
    """Return the result of an insert script as a value."""
    outcome, reason, detail = (part.decode() for part in answer)
    return Inserted(outcome=records.InsertOutcome(outcome), reason=reason, detail=detail)


def _admission(state: Sequence[Any]) -> records.Admission:
    paused, at, by, reason, now = state
    if at is None:
        return records.NEVER_PAUSED
    return records.Admission(
        paused=paused == b"1",
        seconds=(now - int(at)) / 1000,
        since=int(at) / 1000,
        by=by.decode(),
        reason=reason.decode(),
    )


def _retired(row: list[Any]) -> Retired:
    group_id, index, worker, fault = row
    return Retired(group_id=group_id, index=index, worker=worker, fault=fault)


def _worker(row: list[Any]) -> records.WorkerActivity:
    name, kind, silent, serving, leases, failure, throughput = row
    return records.WorkerActivity(
        worker_id=name,
        kind=records.WorkerKind(kind),
        silent_seconds=silent / 1000,
        serving_version=serving,
        leases=leases,
        scoring_failure=failure,
        throughput=throughput,
    )


def _optional(number: float | None) -> str:
    """Return a number as a script takes it; an empty text for none."""
    return "" if number is None else repr(number)


def _rollout(row: dict[str, Any]) -> records.ListedRollout:
    return records.ListedRollout(**{**row, "status": records.RolloutStatus(**row["status"])})


def _generated(flat: Sequence[bytes]) -> records.Generated:
    sums = {name.decode(): float(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
    return replace(
        _of_source(sums, ""), by_source={name: _of_source(sums, f"@{name}") for name in sources_in(sums)}
    )


def sources_in(fields: Iterable[str]) -> list[str]:
    """Return the sources in the names of fields, which end with `@` and the source, in order."""
    return sorted({source for _, at, source in (name.partition("@") for name in fields) if at})


def _of_source(numbers: Mapping[str, float], ending: str) -> records.Generated:
    sums = {
        name.removesuffix(ending): value
        for name, value in numbers.items()
        if name.endswith(ending) and ("@" in name) == bool(ending)
    }
    return records.Generated(
        groups=int(sums.get("groups", 0)),
        unvaried_groups=int(sums.get("unvaried_groups", 0)),
        reward_sums={n.removeprefix("sum:"): v for n, v in sums.items() if n.startswith("sum:")},
        reward_counts={n.removeprefix("count:"): int(v) for n, v in sums.items() if n.startswith("count:")},
    )


def _by_reason(counters: dict[str, Any], start: str) -> dict[str, int]:
    return {name.removeprefix(start): n for name, n in counters.items() if name.startswith(start)}
