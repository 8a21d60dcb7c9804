"""The rollout's side of the fleet stream: join the learner, receive versions and serve them.

    Prepare ─▶ form the process group if the epoch is new ─▶ Ready | Failed      the engine still samples
    Begin   ─▶ receive and verify into memory beside the weights ─▶ Applied | Failed     it still samples
               (all weights, or a delta on the version that is there; Abort ends it)
    Commit  ─▶ pause, load, label new tokens with the version, resume ─▶ Serving
               compare logprobs with the learner's, beside the requests ─▶ pause and join again if they differ

A version larger than weights.staging_mib is received into the model itself: the pause is from Begin until
Commit then. After a failure in a pause the weights may be part old and part new, so the engine stays paused
until a later update succeeds as a whole (invariant 7). When the stream breaks, the rollout joins again with a
new stream, and the state of an unfinished update is discarded: the next update forms a new process group.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import grpc

from slipstream.parallel import task_group
from slipstream.records import NO_VERSION
from slipstream.rollout.engine import Engine, EngineDied
from slipstream.rollout.fleet_stream import FleetStream
from slipstream.rollout.parity import mean_difference
from slipstream.rpc.errors import SlipstreamError
from slipstream.served_version import ServedVersion
from slipstream.telemetry.background import BackgroundTask
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import learner_pb2 as pb
from slipstream.v1.learner_pb2_grpc import FleetStub
from slipstream.weights.group import Rendezvous, TransferError
from slipstream.weights.manifest import manifest_from_proto
from slipstream.weights.rendezvous_message import rendezvous_from_proto

T = TypeVar("T")
REJOIN_SECONDS = 1.0
LEAVE_SECONDS = 0.5
LOST_AGAIN_SECONDS = 60.0
ENGINE_SECONDS = 120.0
"""The longest time that an engine may take for a call that waits for its running step, and little more."""
MOST_MISMATCHES = 3
"""Versions in a row with other logprobs than the learner's, after which the engine is started anew."""
NO_EPOCH = 0


class Refused(SlipstreamError):
    """The learner refuses this rollout for good; joining again would not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The facts about a rollout that the learner checks when it joins."""

    worker_id: str
    model_fingerprint: str
    backend: str
    ranks: int
    nccl_version: str = ""
    """Version of the NCCL library that this rollout loaded; empty for gloo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """An update that the learner has announced by Prepare."""

    rendezvous: Rendezvous
    version: int
    sender: bytes
    """Name of the learner's process."""
    staged: bool = False
    """Whether it was received into memory beside the weights."""


class FleetMember:
    """Keeps the engine at the learner's version while `run` runs."""

    def __init__(
        self,
        *,
        engine: Engine,
        identity: Identity,
        served: ServedVersion,
        metrics: Metrics,
        log: Log,
        staging_bytes: float = 0.0,
        parity_bound: float = math.inf,
        rejoin_seconds: float = REJOIN_SECONDS,
    ) -> None:
        """`staging_bytes`: size of the largest version that is received while the engine samples.

        `parity_bound`: largest mean difference from the learner's logprobs with which a version is served.
        """
        self._engine = engine
        self._identity = identity
        self._served = served
        self._metrics = metrics
        self._log = log
        self._staging_bytes = staging_bytes
        self._parity_bound = parity_bound
        self._parity: BackgroundTask[None] | None = None
        self._refusal: BackgroundTask[None] | None = None
        self._mismatches = 0
        self._stream: FleetStream | None = None
        self._left = False
        """Whether it has told the learner that it leaves; it answers nothing more on this stream."""
        metrics.count("parity_refusals_total", 0)
        self._rejoin_seconds = rejoin_seconds
        self._update: Update | None = None
        self._received: Update | None = None
        self._base_sender = b""
        self._joined_epoch: int | None = None
        self._paused_at = 0.0
        self._lost: tuple[str, str] | None = None
        self._lost_again = 0.0

    async def run(self, channel: grpc.aio.Channel) -> None:
        """Stay in the fleet until cancelled. Errors: Refused, EngineDied."""
        try:
            await self._warm_up()
            await self._stay_or_rejoin(FleetStub(channel))
        finally:
            await self._end_comparison()
            if self._refusal is not None:
                await self._refusal.drop()

    async def _warm_up(self) -> None:
        """Errors: EngineDied."""
        try:
            await _answered(self._engine.warm_up())
        except TransferError as error:
            self._log.warning("the engine may be unable to apply deltas", reason=str(error))

    async def _stay_or_rejoin(self, stub: FleetStub) -> None:
        while True:
            try:
                await self._stay(stub)
                self._log.info("the learner closed the stream")
            except grpc.aio.AioRpcError as error:
                if error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT):
                    raise Refused(error.details()) from error
                self._log_lost(error)
            if self._mismatches >= MOST_MISMATCHES:
                raise EngineDied(
                    f"the logprobs of {self._mismatches} versions in a row differ from the learner's by more "
                    f"than weights.parity_bound ({self._parity_bound:g} nats)"
                )
            self._update = self._received = self._joined_epoch = None
            await asyncio.sleep(self._rejoin_seconds)

    def _log_lost(self, error: grpc.aio.AioRpcError) -> None:
        """Log a lost stream once for each reason, and again after LOST_AGAIN_SECONDS."""
        lost = (error.code().name, error.details() or "")
        if lost != self._lost or time.monotonic() > self._lost_again:
            self._lost, self._lost_again = lost, time.monotonic() + LOST_AGAIN_SECONDS
            self._log.warning("lost the learner", code=lost[0], detail=lost[1])

    async def _stay(self, stub: FleetStub) -> None:
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            await refusal.settle()
        self._stream = stream = FleetStream(stub.Join())
        self._left = False
        try:
            await stream.write(pb.WorkerMessage(join=self._join_message()))
            while (message := await stream.take()) is not None:
                self._lost = None
                answer = None if self._left else await self._answer(message)
                if answer is not None and not self._left:
                    await stream.write(answer)
        except asyncio.CancelledError:
            await self._leave("terminated")
            raise
        finally:
            await stream.close()

    def _join_message(self) -> pb.JoinFleet:
        return pb.JoinFleet(
            worker_id=self._identity.worker_id,
            model_fingerprint=self._identity.model_fingerprint,
            backend=self._identity.backend,
            ranks=self._identity.ranks,
            nccl_version=self._identity.nccl_version,
            serving_version=self._served.version if self._served.serving else NO_VERSION,
            answers_pings=True,
        )

    async def _answer(self, message: pb.LearnerMessage) -> pb.WorkerMessage | None:
        kind = message.WhichOneof("message")
        if kind == "prepare":
            return await self._prepare(_update_from_proto(message.prepare))
        if kind == "begin":
            return await self._receive(message.begin)
        if kind == "commit":
            return await self._commit(message.commit)
        if kind == "abort":
            self._update = self._joined_epoch = None
            self._log.warning("update aborted", reason=message.abort.reason)
        elif kind == "finish":
            self._log.info("the run is over", reason=message.finish.reason)
        return None

    async def _prepare(self, update: Update) -> pb.WorkerMessage:
        """Form the process group if the epoch is new, while the engine goes on sampling."""
        epoch = update.rendezvous.epoch
        self._update = None
        try:
            if epoch != self._joined_epoch:
                longest = 2 * (1 + update.rendezvous.senders) * update.rendezvous.timeout_seconds
                await _answered(self._engine.form_group(update.rendezvous), seconds=longest)
            base = NO_VERSION
            if update.sender == self._base_sender:
                base = await _answered(self._engine.base_version())
        except TransferError as error:
            return self._fail(update, error)
        self._joined_epoch, self._update = epoch, update
        return pb.WorkerMessage(ready=pb.Ready(epoch=epoch, version=update.version, base_version=base))

    async def _receive(self, begin: pb.Begin) -> pb.WorkerMessage:
        """Receive; the answer says whether all buckets passed their checksum."""
        update = self._update
        if update is None or (update.rendezvous.epoch, update.version) != (begin.epoch, begin.version):
            return _failed(begin.epoch, begin.version, "Begin without its Prepare")
        self._received = None
        receiving = time.monotonic()
        manifest = manifest_from_proto(begin.manifest)
        base = begin.base_version if begin.HasField("base_version") else NO_VERSION
        staged = base != NO_VERSION or manifest.in_parts or manifest.nbytes <= self._staging_bytes
        try:
            if staged:
                self._base_sender = update.sender
                await self._until_aborted(
                    self._engine.stage(manifest, update.version, base_version=base, key=begin.key),
                    seconds=2 * update.rendezvous.timeout_seconds,
                )
            else:
                await self._pause()
                receiving = time.monotonic()
                await self._engine.receive(manifest, update.version, key=begin.key)
        except TransferError as error:
            return self._fail(update, error)
        self._received = replace(update, staged=staged)
        seconds = time.monotonic() - receiving
        return pb.WorkerMessage(
            applied=pb.Applied(epoch=begin.epoch, version=begin.version, receive_seconds=seconds)
        )

    async def _until_aborted(self, receipt: Coroutine[Any, Any, None], *, seconds: float) -> None:
        """Await a receipt. Whatever the learner sends during it, or the end of the stream, ends it.

        seconds: the longest time until the end that it has then. Errors: TransferError, EngineDied.
        """
        assert self._stream is not None
        async with task_group() as tasks:
            receiving = tasks.create_task(receipt)
            await asyncio.wait({receiving, self._stream.reading()}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                self._joined_epoch = None
                await _answered(self._engine.leave_group())
                await _answered(asyncio.wait({receiving}), seconds=seconds)

    async def _commit(self, commit: pb.Commit) -> pb.WorkerMessage:
        """Serve the received version, and no other."""
        version = commit.version
        await self._end_comparison()
        update, self._received = self._received, None
        if update is None or update.version != version:
            return _failed(NO_EPOCH, version, "Commit of a version that did not arrive as a whole")
        if update.staged:
            await self._pause()
        try:
            await _answered(self._engine.commit(version), seconds=2 * update.rendezvous.timeout_seconds)
        except TransferError as error:
            return self._fail(update, error)
        await _answered(self._engine.resume())
        self._served.serve(version)
        pause = time.monotonic() - self._paused_at
        self._metrics.observe("update_pause_seconds", pause)
        self._metrics.set("version_served", version)
        self._log.debug("serving", version=version, pause_seconds=pause)
        if commit.HasField("probe"):
            self._parity = BackgroundTask.begin(
                self._compare(commit.probe, version), "parity probe", self._log, version=version
            )
        return pb.WorkerMessage(serving=pb.Serving(version=version, pause_seconds=pause))

    async def _end_comparison(self) -> None:
        """Give up the comparison of the last version, if it is still running."""
        comparison, self._parity = self._parity, None
        if comparison is not None:
            if not comparison.done:
                self._log.info("parity probe given up before its result")
            await comparison.drop()

    async def _compare(self, probe: pb.ParityProbe, version: int) -> None:
        """Compare the engine's logprobs with the learner's; beyond the bound, serve nothing and join again.

        The learner then sends the whole version, and the engine loads all of each later one.
        """
        difference = await mean_difference(self._engine, probe, version)
        if difference is None:
            return
        self._metrics.set("parity_difference", difference)
        if difference <= self._parity_bound:
            self._mismatches = 0
            return
        self._metrics.count("parity_refusals_total")
        self._log.error(
            "the engine computes other logprobs than the learner: it serves nothing until it is loaded anew",
            version=version,
            mean_difference=difference,
            bound=self._parity_bound,
        )
        if self._served.serving and self._served.version == version:
            # No await before all of this: a Commit in between would serve another version.
            self._mismatches += 1
            self._base_sender = b""
            self._left = True
            self._suspend()
            self._refusal = BackgroundTask.begin(
                self._refuse(), "refusal of other logprobs", self._log, version=version
            )

    async def _pause(self) -> None:
        """Pause the engine, which may be paused already."""
        self._suspend()
        await _answered(self._engine.pause())

    def _suspend(self) -> None:
        """Serve no version, and note since when."""
        if self._served.serving or self._served.version == NO_VERSION:
            self._paused_at = time.monotonic()
        self._served.suspend()

    async def _refuse(self) -> None:
        """Have the engine load all of later versions, and leave. Errors: EngineDied."""
        try:
            await _answered(self._engine.pause())
            await _answered(self._engine.load_in_full())
        finally:
            await self._leave("other logprobs than the learner's")

    async def _leave(self, reason: str) -> None:
        """Tell the learner that this rollout leaves, so that no update waits for it."""
        assert self._stream is not None
        self._left = True
        with suppress(TimeoutError, asyncio.InvalidStateError, grpc.aio.AioRpcError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._stream.leave(reason)

    def _fail(self, update: Update, error: TransferError) -> pb.WorkerMessage:
        """Report a failed update. A paused engine stays paused; the next update forms a new group."""
        self._joined_epoch = None
        self._log.warning("update failed", version=update.version, error=str(error))
        return _failed(update.rendezvous.epoch, update.version, str(error))


async def _answered(call: Awaitable[T], *, seconds: float = 0.0) -> T:
    """Await a call into the engine. Errors: those of the call; EngineDied after ENGINE_SECONDS, or `seconds`
    if that is more."""
    longest = max(ENGINE_SECONDS, seconds)
    try:
        async with asyncio.timeout(longest):
            return await call
    except TimeoutError as error:
        raise EngineDied(f"the engine did not answer in {longest:g} s") from error


def _update_from_proto(message: pb.Prepare) -> Update:
    rendezvous = rendezvous_from_proto(message)
    return Update(rendezvous=rendezvous, version=message.version, sender=message.sender)


def _failed(epoch: int, version: int, reason: str) -> pb.WorkerMessage:
    return pb.WorkerMessage(failed=pb.Failed(epoch=epoch, version=version, reason=reason))
