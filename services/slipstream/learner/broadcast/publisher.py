"""Broadcast of one version to all or some members of the fleet, with a deadline on every wait.

    Prepare ─▶ form the group (new members: new epoch) ─▶ all Ready ─▶ Begin ─▶ broadcast
            ─▶ Applied ─▶ Commit ─▶ Serving, each member as soon as it can

The broadcast is a delta if members keep versions from which the changes are known: the oldest of these
versions is its base. Members that keep no such version, for example new ones, get the full version after the
others, in a group of their own. If there is no delta, all members get the full version together.

If anything fails, the epoch ends, and the members that do not serve the version yet get all of it again in a
new epoch. A member that is late is left out of the update (latecomers), sooner if it answers no ping
(liveness). If the forming of a group or a broadcast stands still (pace), all members leave the group, and a
member that does not answer this is late.
A member that does not answer by the deadline, or fails three times in a row, is dropped. It may join again,
and gets the version then.
Publishing to an empty fleet succeeds: a rollout that joins later gets the version then.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from slipstream.config import WeightsConfig
from slipstream.config.sections.services import LARGEST_DELTA
from slipstream.learner.broadcast.fleet import Fleet, Member, MemberLost, UpdateFailed
from slipstream.learner.broadcast.latecomers import Answers, Latecomers
from slipstream.learner.broadcast.pace import Pace, Paces
from slipstream.learner.broadcast.parity_probe import ParityProbe
from slipstream.learner.broadcast.senders import Broadcast, Senders
from slipstream.parallel import both, task_group
from slipstream.records import NO_VERSION
from slipstream.rpc.errors import RankFailed, SlipstreamError, Stuck
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import learner_pb2 as pb
from slipstream.weights.group import Rendezvous, RendezvousStore, TransferError, WeightGroup
from slipstream.weights.last_deadline import CallStuck, Progress, watched
from slipstream.weights.manifest import manifest_to_proto
from slipstream.weights.rendezvous_message import rendezvous_to_proto
from slipstream.weights.seal import new_key

T = TypeVar("T")

TRIES = 3
SENDER_BYTES = 16
FORMING = 1.25
"""The wait for Ready when a group is formed, in timeouts for each sender. A member that waits for a missing
member reports this after one timeout; the rest is for the report to arrive."""


class TornSnapshot(SlipstreamError):
    """The weights to send are of no single version, because copying them failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The result of a publication: rollouts that serve the version, and the longest times of any of them."""

    rollouts: int
    seconds: float
    pause_seconds: float
    transfer_seconds: float
    sent_bytes: int = 0
    changed: float | None = None
    """Share of the elements that differ from the version before; None for the first, or without deltas."""


class Publisher:
    """Sends a snapshot of the weights. Invariant: a group is used only by the members it was formed with.

    senders: of the weights. probe: returns the parity probe of these weights; None if nothing is compared.
    """

    def __init__(
        self,
        *,
        senders: Senders,
        probe: Callable[[], ParityProbe | None] = lambda: None,
        fleet: Fleet,
        config: WeightsConfig,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._senders = senders
        self._probe = probe
        self._parity_every = config.parity_every
        self._fleet = fleet
        self._latecomers = Latecomers(config, fleet, metrics=metrics, log=log)
        self._paces = Paces(config.patience_seconds, self._latecomers, log)
        self._timeout = config.timeout_seconds
        self._metrics = metrics
        self._log = log
        self._store = RendezvousStore(
            config.host, config.port, timeout_seconds=config.timeout_seconds, log=log
        )
        full = senders.full.manifest  # the rollouts compare the same numbers
        self._pauses = not full.in_parts and full.nbytes > config.staging_bytes
        self._encrypts = config.encrypt
        self._sender = secrets.token_bytes(SENDER_BYTES)
        self._group: WeightGroup | None = None
        self._grouped: list[Member] = []
        self._first: set[Member] = set()
        """Members that the next try updates, before the others: a delta leads from what they keep."""
        self._sent_delta = False
        """Whether the last broadcast was a delta."""
        self._failing = False
        self._given_up = 0
        """Groups in a row that were given up because another rank of the learner failed."""
        self._refusal = ""
        self._changed: float | None = None
        self._sent_bytes = 0
        for name in ("publish_failures_total", "publish_bytes_total"):
            metrics.count(name, 0)  # so that a rate sees the first one

    async def publish(self, version: int) -> Published:
        """Bring the members of the fleet to `version`; return once all but latecomers serve it.

        Errors: Stuck when a collective outlasts its last deadline, which only a new process ends;
        TornSnapshot after `refuse`.
        """
        if self._refusal:
            raise TornSnapshot(self._refusal)
        started = time.monotonic()
        self._fleet.version = version
        self._changed = await asyncio.to_thread(self._senders.close, version)
        self._sent_bytes = 0
        updated: set[Member] = set()
        self._paces.begin_publication()
        self._latecomers.begin()
        with self._shown_as_running():
            while members := self._next_members(version):
                await self._attempt(version, members)
                updated.update(member for member in members if member.version == version)
        self._metrics.set("policy_version", version)
        return Published(
            rollouts=sum(member.version == version for member in self._fleet.members()),
            seconds=time.monotonic() - started,
            pause_seconds=max((m.pause_seconds for m in updated), default=0.0),
            transfer_seconds=max((m.receive_seconds for m in updated), default=0.0),
            sent_bytes=self._sent_bytes,
            changed=self._changed,
        )

    def wants_probe(self, version: int) -> bool:
        """Return whether the rollouts shall compare their logprobs under this version."""
        return version % self._parity_every == 0 or not all(m.compared for m in self._fleet.members())

    def refuse(self, reason: str) -> None:
        """Send no weights from now on, for this reason."""
        self._refusal = reason

    def _next_members(self, version: int) -> list[Member]:
        """Return the members to bring to the version next."""
        members = self._latecomers.expected(version)
        first, self._first = self._first, set()
        if chosen := [member for member in members if member in first]:
            return chosen
        if self._sent_delta and (self._changed or 0.0) <= LARGEST_DELTA:
            return [member for member in members if member.version != NO_VERSION] or members
        return members  # all of them get the full version, as far as can be known here

    @contextmanager
    def _shown_as_running(self) -> Iterator[None]:
        self._metrics.set("publish_started_timestamp_seconds", time.time())
        self._metrics.set("publish_running", 1)
        try:
            yield
        finally:
            self._metrics.set("publish_running", 0)

    async def _attempt(self, version: int, members: Sequence[Member]) -> None:
        """Try once, with all of these members, or set `_first` to some of them for the next try.

        Each failure drops a member or counts as one of its TRIES, so tries come to an end.
        """
        self._failing = False
        with self._metrics.timing("publish_seconds", phase="prepare"):
            ready = await self._prepare(version, members)
            if not ready:
                return
            key = new_key() if self._encrypts else b""
            members = list(ready)
            broadcast = await asyncio.to_thread(self._choose, set(ready.values()), key)
            fitting = {member for member, base in ready.items() if base >= broadcast.base}
            if len(fitting) < len(ready):  # so the next try has fewer members
                self._first = fitting
                self._abort(members, "a delta is sent first, to the rollouts that keep a base of it")
                return
        self._sent_delta = broadcast.kind == "delta"
        self._metrics.count("updates_sent_total", kind=broadcast.kind)
        layout = manifest_to_proto(broadcast.manifest)
        for member in members:
            self._fleet.begin(
                member,
                version,
                layout,
                base=broadcast.base,
                key=broadcast.key,
                pauses=broadcast.kind == "full" and self._pauses,
            )
        async with task_group() as tasks:
            applying = {
                member: tasks.create_task(self._answer(member, "applied", version, timeout_seconds=None))
                for member in members
            }
            try:
                with self._metrics.timing("publish_seconds", phase="transfer"):
                    await self._transfer(version, broadcast, applying)
            except TransferError as error:
                self._fail(version, members, str(error))
            with self._metrics.timing("publish_seconds", phase="commit"):
                applied = await self._settle(version, applying)
                for member, answer in applied.items():
                    member.receive_seconds = answer.receive_seconds
                await self._commit(version, list(applied))

    def _choose(self, bases: set[int], key: bytes) -> Broadcast:
        """Return the delta from the oldest version from which there is one; else the full version."""
        for base in sorted(bases - {NO_VERSION}):
            broadcast = self._senders.choose(base, key)
            if broadcast.kind == "delta":
                return broadcast
        return self._senders.choose(NO_VERSION, key)

    async def _prepare(self, version: int, members: Sequence[Member]) -> dict[Member, int]:
        """Prepare the members, and form a group with them.

        Return them with the versions that they keep if all are ready, else none. Errors: Stuck.
        """
        forming = self._grouped != list(members)
        if forming:
            self._leave_group()
            self._fleet.epoch += 1
            self._metrics.set("fleet_epoch", self._fleet.epoch)
        rank = 1
        nonces: dict[Member, bytes] = {}
        for member in members:
            nonce = self._store.server.issue_nonce(connections=member.ranks) if forming else b""
            prepare = rendezvous_to_proto(self._rendezvous(members, nonce=nonce, rank=rank))
            prepare.version, prepare.sender = version, self._sender
            member.tell(prepare=prepare)
            nonces[member] = nonce
            rank += member.ranks
        ready = self._ready(version, nonces)
        fault, answers = await both(self._form(members), ready) if forming else (None, await ready)
        if len(answers) < len(members):
            self._abort(members, "the update goes on without a rollout that is late")
        elif self._group is not None and all(answers.values()):
            return {member: _base_of(answer) for member, answer in answers.items()}
        else:
            self._fail(version, members, fault or "another member was not ready")
        return {}

    async def _ready(self, version: int, nonces: Mapping[Member, bytes]) -> Mapping[Member, Any]:
        """Return the members' answers to Prepare; None for a failure. Late members are missing.

        nonces: with which the members join a new group; empty if the group exists. A group is formed with all
        of its members, so its forming ends as soon as one is late.
        """
        forming = any(nonces.values())
        seconds = self._timeout * (FORMING * self._senders.size if forming else 1)
        async with task_group() as tasks:
            asking = {
                member: tasks.create_task(self._answer(member, "ready", version, timeout_seconds=seconds))
                for member in nonces
            }
            late = await self._latecomers.leave_out(
                asking, version, "ready", answered=lambda member: self._has_come(nonces[member])
            )
            if late:
                self._end_group()
            elif forming and all(task.done() or self._has_come(nonces[m]) for m, task in asking.items()):
                late = await self._watch_forming(asking, version)
        if late:
            self._paces.forgive()
        return {member: task.result() for member, task in asking.items() if member not in late}

    def _has_come(self, nonce: bytes) -> bool:
        """Return whether a member has connected, with its nonce, to form a group."""
        return self._store.server.used(nonce)

    async def _watch_forming(self, asking: Answers, version: int) -> Sequence[Member]:
        """Wait until a group is formed whose members have all come; return those that stop meanwhile."""
        pace = self._paces.begin("forming")
        if await self._paces.stands_still("forming", asking.values(), asking, version=version):
            self._end_group()
            return await self._latecomers.leave_out(asking, version, "ready")
        if all(task.result() for task in asking.values()):
            pace.step()
        return ()

    async def _form(self, members: Sequence[Member]) -> str | None:
        """Form the group of a new epoch; return why it could not be formed. Errors: Stuck."""
        own, *nonces = [self._store.server.issue_nonce(connections=1) for _ in range(self._senders.size)]
        rendezvous = self._rendezvous(members, nonce=own)
        try:
            self._group = await self._watched(
                partial(self._senders.form, rendezvous, nonces, self._give_up),
                f"the forming of the weight group of epoch {rendezvous.epoch}",
            )
        except TransferError as error:
            if self._given_up >= TRIES:
                raise RankFailed(f"{error}; it failed {TRIES} times in a row") from error
            return str(error)
        self._grouped = list(members)
        self._given_up = 0
        return None

    def _give_up(self) -> None:
        """End the forming of a group because a rank of the learner failed in it. Threads may call."""
        if not self._failing:
            self._failing = True  # what the rollouts report now is no failure of theirs
            self._given_up += 1
            self._store.server.end_epoch()

    async def _transfer(
        self, version: int, broadcast: Broadcast, applying: Mapping[Member, asyncio.Task[Any]]
    ) -> None:
        """Broadcast the weights, or what changed in them. Errors: TransferError, Stuck."""
        group = self._group
        if group is None or any(task.done() for task in applying.values()):
            raise TransferError("a member failed before the broadcast")
        pace = self._paces.begin(broadcast.kind)
        sending = self._watched(
            partial(self._send, group, version, broadcast, pace), f"the broadcast of version {version}"
        )
        async with task_group() as tasks:
            task = tasks.create_task(sending)
            if await self._paces.stands_still(broadcast.kind, [task], applying, version=version):
                self._end_group()
        self._sent_bytes += broadcast.nbytes
        self._metrics.count("publish_bytes_total", broadcast.nbytes)

    async def _watched(self, call: Callable[[Progress], T], what: str) -> T:
        """Run a blocking call in a thread. Errors: its own; Stuck after its last deadline."""
        try:
            return await watched(call, timeout_seconds=self._timeout, what=what)
        except CallStuck as error:
            raise Stuck(
                f"{error} (weights.timeout_seconds is {self._timeout:g}): a rollout, or the network to it, "
                "is stuck in the middle of a collective, and only the end of this process ends that. Started "
                "again, the learner goes on from its last checkpoint"
            ) from error

    async def _settle(
        self, version: int, applying: Mapping[Member, asyncio.Task[Any]]
    ) -> Mapping[Member, pb.Applied]:
        """Return the members' answers to a transfer, without those of members that failed or are late.

        Their deadline begins at its end: the transfer had deadlines of its own.
        """
        deadline = time.monotonic() + self._timeout
        late = await self._latecomers.leave_out(applying, version, "applied", timeout_seconds=self._timeout)
        awaited = {member: task for member, task in applying.items() if member not in late}
        if awaited:
            await asyncio.wait(awaited.values(), timeout=max(0.0, deadline - time.monotonic()))
        for member, task in awaited.items():
            if not task.done():
                self._fleet.drop(member, f"did not answer `applied` in {self._timeout:g} s")
        answers = await asyncio.gather(*awaited.values())
        if late:
            self._paces.forgive()
            self._grouped = []  # a member in the middle of a receipt leaves the group at the next Prepare
        return {member: answer for member, answer in zip(awaited, answers, strict=True) if answer}

    def _rendezvous(self, members: Sequence[Member], *, nonce: bytes, rank: int = 0) -> Rendezvous:
        """Return how a process joins the group of this epoch; rank 0 is the learner."""
        return Rendezvous(
            epoch=self._fleet.epoch,
            rank=rank,
            world_size=1 + sum(member.ranks for member in members),
            senders=self._senders.size,
            store_host=self._store.host,
            store_port=self._store.port,
            timeout_seconds=self._timeout,
            nonce=nonce,
        )

    def _send(
        self, group: WeightGroup, version: int, broadcast: Broadcast, pace: Pace, progress: Progress
    ) -> None:
        def bucket_sent() -> None:
            pace.step()
            progress()

        self._senders.send(group, version, broadcast, bucket_sent)

    async def _commit(self, version: int, members: Sequence[Member]) -> None:
        """Have the members serve the version, and wait for all but latecomers."""
        for member in members:
            self._fleet.commit(member, version, self._probe())
        async with task_group() as tasks:
            confirming = {member: tasks.create_task(self._confirm(version, member)) for member in members}
            for member in await self._latecomers.leave_out(confirming, version, "serving"):
                member.loading = version

    async def _confirm(self, version: int, member: Member) -> None:
        """Wait until a member serves the version, and record it at that moment."""
        answer = await self._answer(member, "serving", version, timeout_seconds=self._timeout)
        if answer is not None:
            member.pause_seconds = answer.pause_seconds
            self._fleet.confirm(member, version)
            member.failures = 0

    async def _answer(self, member: Member, kind: str, version: int, *, timeout_seconds: float | None) -> Any:
        """Return the member's answer; None if it failed.

        A lost member ends the group, and all waits in it.
        """
        epoch = self._fleet.epoch
        try:
            with self._metrics.waiting(f"worker_{kind}"):
                return await member.answer(
                    kind, epoch=epoch, version=version, timeout_seconds=timeout_seconds
                )
        except UpdateFailed as error:
            if not self._failing:  # the failure of one member makes the others fail
                member.failures += 1
            self._failing = True
            self._log.warning("update failed", rollout=member.worker_id, reason=str(error))
            if member.failures >= TRIES:
                self._fleet.drop(member, f"{TRIES} failed updates in a row")
        except MemberLost as error:
            self._fleet.drop(member, str(error))
        if kind == "applied" and self._grouped:  # the others may wait for what this member should pass on
            self._failing = True
            self._abort(self._grouped, f"{member.worker_id} failed")
        self._leave_group()
        return None

    def _fail(self, version: int, members: Sequence[Member], reason: str) -> None:
        self._metrics.count("publish_failures_total")
        self._log.warning("publication failed", version=version, epoch=self._fleet.epoch, reason=reason)
        self._abort(members, reason)

    def _abort(self, members: Sequence[Member], reason: str) -> None:
        self._leave_group()
        for member in members:
            if member.alive:
                member.tell(abort=pb.Abort(epoch=self._fleet.epoch, reason=reason))

    def _end_group(self) -> None:
        """Leave the group in the middle: its forming or its broadcast ends with an error."""
        self._failing = True  # what the others report now is no failure of theirs
        self._leave_group()

    def close(self) -> None:
        """End the rendezvous: no process can join a group any more. Other senders are not waited for."""
        self._senders.end()
        self._store.server.close()

    def _leave_group(self) -> None:
        self._store.server.end_epoch()
        if self._group is not None:
            self._group.close()
        self._group = None
        self._grouped = []


def _base_of(ready: pb.Ready) -> int:
    """Return the version that a rollout keeps beside its weights; NO_VERSION for none."""
    return ready.base_version if ready.HasField("base_version") else NO_VERSION


async def catch_up(publisher: Publisher, fleet: Fleet, weights: asyncio.Lock) -> None:
    """Send the current version to rollouts that join late, one update at a time, until cancelled.

    weights: held while the snapshot is read here, or changed elsewhere.
    """
    while True:
        await fleet.joined.wait()
        fleet.joined.clear()
        async with weights:
            await publisher.publish(fleet.version)
