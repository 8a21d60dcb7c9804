"""The learner's side of the fleet stream: the members, each with one queue of messages per direction."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from slipstream.learner.broadcast.liveness import Liveness
from slipstream.learner.broadcast.parity_probe import ParityProbe
from slipstream.learner.save_requests import SaveRequests
from slipstream.records import NO_VERSION
from slipstream.samples.timeline.writer import NO_TIMELINE, Timeline
from slipstream.telemetry.background import BackgroundTask
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import learner_pb2 as pb
from slipstream.v1.learner_pb2_grpc import FleetServicer

JOIN_SECONDS = 10.0
SAME_NCCL = (
    "two versions of NCCL do not form a group: build both images on one base, as docker/README.md says"
)


class MemberLost(RuntimeError):
    """A rollout left, or did not answer in time."""


class UpdateFailed(RuntimeError):
    """A rollout did not get the whole update. It stays paused until it gets a whole one."""


class Member:
    """One rollout, from the begin of its stream to the end.

    Answers are matched by kind, epoch and version.
    """

    def __init__(self, join: pb.JoinFleet) -> None:
        self.worker_id: str = join.worker_id
        self.ranks: int = max(1, join.ranks)
        self.version = NO_VERSION
        self.alive = True
        self.failures = 0
        self.missed_since: int | None = None
        """First of the versions in a row that it was left out of; None if it was not left out of the last."""
        self.loading: int | None = None
        """Version that it was told to serve, and that no publication waits for any more."""
        self.compared = False
        """Whether it has got a parity probe since it joined."""
        self.pause_seconds = 0.0
        self.receive_seconds = 0.0
        self.paused_at: float | None = None
        """Moment of `time.monotonic` since which it samples nothing; None while it serves."""
        self.outbox: asyncio.Queue[pb.LearnerMessage | None] = asyncio.Queue()
        self._inbox: asyncio.Queue[pb.WorkerMessage | None] = asyncio.Queue()
        self.liveness = Liveness(self._ping if join.answers_pings else None)

    def tell(self, **message: Any) -> None:
        """Send one message, such as `commit=pb.Commit(version=3)`."""
        self.outbox.put_nowait(pb.LearnerMessage(**message))

    def _ping(self, number: int) -> None:
        self.tell(ping=pb.Ping(number=number))

    def pause(self) -> None:
        """Note that it samples nothing from now on, until it serves a version."""
        self.paused_at = time.monotonic() if self.paused_at is None else self.paused_at

    def receive(self, message: pb.WorkerMessage) -> None:
        """Queue a message from the rollout."""
        self._inbox.put_nowait(message)

    async def answer(self, kind: str, *, epoch: int, version: int, timeout_seconds: float | None) -> Any:
        """Return the rollout's next message of `kind` about this update; skip messages about earlier ones.

        Without a timeout, the wait ends when the member is dropped.
        Errors: UpdateFailed if the rollout reports a failure; MemberLost if it leaves or does not answer.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    message = await self._inbox.get()
                    if message is None:
                        raise MemberLost(f"{self.worker_id} left")
                    name = message.WhichOneof("message")
                    content: Any = getattr(message, name) if name else None
                    about = (getattr(content, "epoch", epoch), getattr(content, "version", None))
                    if about != (epoch, version):
                        continue
                    if name == kind:
                        return content
                    if name == "failed":
                        raise UpdateFailed(f"{self.worker_id}: {content.reason}")
        except TimeoutError as error:
            raise MemberLost(f"{self.worker_id} did not answer `{kind}` in {timeout_seconds} s") from error

    def drop(self) -> None:
        """End the stream; the rollout may join again."""
        self.alive = False
        self.outbox.put_nowait(None)
        self._inbox.put_nowait(None)


class Fleet(FleetServicer):
    """The members. A rollout that joins under the name of a member replaces it."""

    def __init__(
        self,
        *,
        model_fingerprint: str,
        backend: str,
        nccl_version: str = "",
        timeline: Timeline = NO_TIMELINE,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._fingerprint = model_fingerprint
        self._backend = backend
        self._nccl_version = nccl_version
        self._timeline = timeline
        self._metrics = metrics
        self._log = log
        self._members: dict[str, Member] = {}
        self._confirmed: dict[str, int] = {}
        self.saves = SaveRequests(log)
        self.joined = asyncio.Event()
        self.version = 0
        self.epoch = 0

    def members(self) -> list[Member]:
        """Return the members with an open stream, by name."""
        return [self._members[name] for name in sorted(self._members) if self._members[name].alive]

    def begin(
        self,
        member: Member,
        version: int,
        manifest: pb.Manifest,
        *,
        base: int,
        key: bytes = b"",
        pauses: bool,
    ) -> None:
        """Tell a rollout to receive `version`.

        base: oldest version that a delta can change; NO_VERSION for a full version. key: for encryption.
        pauses: whether it samples nothing from now on.
        """
        member.tell(
            begin=pb.Begin(
                epoch=self.epoch,
                version=version,
                manifest=manifest,
                base_version=base,
                key=key,
            )
        )
        if pauses:
            member.pause()

    def commit(self, member: Member, version: int, probe: ParityProbe | None = None) -> None:
        """Tell a rollout to load and serve `version`, for which it pauses, if it has not paused before.

        With a probe, the rollout compares its logprobs afterwards.
        """
        member.loading = None
        message = pb.Commit(version=version)
        if probe is not None:
            message.probe.token_ids.extend(probe.token_ids)
            message.probe.logprobs.extend(probe.logprobs)
            member.compared = True
        member.tell(commit=message)
        member.pause()

    def confirm(self, member: Member, version: int) -> None:
        """Record that the rollout serves `version`, which this learner sent."""
        self._end_pause(member, version)
        member.version, member.missed_since, member.loading = version, None, None
        self._confirmed[member.worker_id] = version

    def drop(self, member: Member, reason: str) -> None:
        """Drop a rollout from the fleet; it may join again."""
        if member.alive:
            self._log.warning("rollout dropped", rollout=member.worker_id, reason=reason)
            member.drop()

    def finish(self, reason: str) -> None:
        """Tell all members that the run is over, and close the streams."""
        for member in self.members():
            member.tell(finish=pb.Finish(reason=reason))
            member.drop()

    async def Join(
        self, request_iterator: AsyncIterator[pb.WorkerMessage], context: Any
    ) -> AsyncIterator[pb.LearnerMessage]:
        """Serve one rollout's stream, from its first message to its end."""
        first = await _first_message(request_iterator)
        if first is None or first.WhichOneof("message") != "join":
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the first message of a stream must be Join"
            )
            return
        await self._refuse_other_models(first.join, context)
        member = self._enter(first.join)
        reader = BackgroundTask.begin(
            self._read(request_iterator, member),
            "reading of a rollout's stream",
            self._log,
            rollout=member.worker_id,
        )
        try:
            while (message := await member.outbox.get()) is not None:
                yield message
        finally:
            reader.cancel()
            self._leave(member)

    async def GetPolicy(self, request: pb.GetPolicyRequest, context: Any) -> pb.GetPolicyResponse:
        """Return the version, the epoch and the members."""
        members = [pb.FleetMember(worker_id=m.worker_id, version=m.version) for m in self.members()]
        return pb.GetPolicyResponse(version=self.version, epoch=self.epoch, members=members)

    async def SaveCheckpoint(
        self, request: pb.SaveCheckpointRequest, context: Any
    ) -> pb.SaveCheckpointResponse:
        """Have a checkpoint written, and return its version once it is durable."""
        return pb.SaveCheckpointResponse(version=await self.saves.save())

    async def _read(self, messages: AsyncIterator[pb.WorkerMessage], member: Member) -> None:
        """Queue the messages of a rollout until its stream ends."""
        try:
            async for message in messages:
                kind = message.WhichOneof("message")
                if kind == "leave":
                    break
                if kind == "pong":
                    member.liveness.answered(message.pong.number)
                elif kind == "serving" and message.serving.version == member.loading:
                    self.confirm(member, message.serving.version)
                else:
                    member.receive(message)
        finally:
            member.drop()

    async def _refuse_other_models(self, join: pb.JoinFleet, context: Any) -> None:
        for what, theirs, ours, remedy in (
            ("model", join.model_fingerprint, self._fingerprint, "give both the same model directory"),
            ("backend", join.backend, self._backend, "give both the same kind of device"),
            ("NCCL", join.nccl_version, self._nccl_version, SAME_NCCL),
        ):
            if theirs != ours:
                await context.abort(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"rollout {join.worker_id} has {what} {theirs or '(none)'}, the learner "
                    f"{ours or '(none)'}; {remedy}",
                )

    def _enter(self, join: pb.JoinFleet) -> Member:
        old = self._members.get(join.worker_id)
        if old is not None:
            old.drop()
            self._show_leave(old)
        member = Member(join)
        self._timeline.event("join", lane=member.worker_id)
        if self._confirmed.get(join.worker_id) == join.serving_version:
            # any other version may be one that the learner lost in a crash, and trained anew
            member.version = join.serving_version
        self._members[join.worker_id] = member
        self._log.info("rollout joined", rollout=join.worker_id, members=len(self.members()))
        self._metrics.set("fleet_workers", len(self.members()))
        self.joined.set()
        return member

    def _leave(self, member: Member) -> None:
        member.drop()
        if self._members.get(member.worker_id) is member:
            del self._members[member.worker_id]
            self._show_leave(member)
        self._log.info("rollout left", rollout=member.worker_id, members=len(self.members()))
        self._metrics.set("fleet_workers", len(self.members()))

    def _show_leave(self, member: Member) -> None:
        self._end_pause(member, self.version, failed=True)
        self._timeline.event("leave", lane=member.worker_id)

    def _end_pause(self, member: Member, version: int, *, failed: bool = False) -> None:
        """Add the pause of a rollout to the timeline, if it is paused; it ends by serving `version`."""
        began, member.paused_at = member.paused_at, None
        if began is not None:
            self._timeline.add(
                "pause", began, time.monotonic(), lane=member.worker_id, step=version, failed=failed
            )


async def _first_message(messages: AsyncIterator[pb.WorkerMessage]) -> pb.WorkerMessage | None:
    """Return the first message of a stream; None if there is none within JOIN_SECONDS."""
    try:
        async with asyncio.timeout(JOIN_SECONDS):
            return await anext(aiter(messages), None)
    except TimeoutError:
        return None
