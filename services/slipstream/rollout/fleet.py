"""The rollout's side of the fleet stream: join the learner, receive versions and serve them.

    Prepare ─▶ form the process group if the epoch is new ─▶ Ready | Failed      the engine still samples
    Begin   ─▶ pause the engine, receive, verify ─▶ Applied | Failed
    Commit  ─▶ label new tokens with the version, resume ─▶ Serving

From Begin until Commit the engine samples nothing. After a failure its weights may be part old and part new,
so it stays paused until a later update succeeds as a whole (invariant 7). When the stream breaks, the rollout
joins again with a new stream, and the state of an unfinished update is discarded: the next update forms a new
process group.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from slipstream.records import NO_VERSION
from slipstream.rollout.engine import Engine
from slipstream.rpc.errors import SlipstreamError
from slipstream.served_version import ServedVersion
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import learner_pb2 as pb
from slipstream.v1.learner_pb2_grpc import FleetStub
from slipstream.weights.group import Rendezvous, TransferError
from slipstream.weights.manifest import Manifest, manifest_from_proto

REJOIN_SECONDS = 1.0
LEAVE_SECONDS = 0.5
LOST_AGAIN_SECONDS = 60.0
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
    manifest: Manifest


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
        rejoin_seconds: float = REJOIN_SECONDS,
    ) -> None:
        self._engine = engine
        self._identity = identity
        self._served = served
        self._metrics = metrics
        self._log = log
        self._rejoin_seconds = rejoin_seconds
        self._update: Update | None = None
        self._received: Update | None = None
        self._joined_epoch: int | None = None
        self._paused_at = 0.0
        self._lost: tuple[str, str] | None = None
        self._lost_again = 0.0

    async def run(self, channel: grpc.aio.Channel) -> None:
        """Stay in the fleet until cancelled. Errors: Refused, EngineDied."""
        stub = FleetStub(channel)
        while True:
            try:
                await self._stay(stub)
                self._log.info("the learner closed the stream")
            except grpc.aio.AioRpcError as error:
                if error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT):
                    raise Refused(error.details()) from error
                self._log_lost(error)
            self._update = self._received = self._joined_epoch = None
            await asyncio.sleep(self._rejoin_seconds)

    def _log_lost(self, error: grpc.aio.AioRpcError) -> None:
        """Log a lost stream once for each reason, and again after LOST_AGAIN_SECONDS."""
        lost = (error.code().name, error.details() or "")
        if lost != self._lost or time.monotonic() > self._lost_again:
            self._lost, self._lost_again = lost, time.monotonic() + LOST_AGAIN_SECONDS
            self._log.warning("lost the learner", code=lost[0], detail=lost[1])

    async def _stay(self, stub: FleetStub) -> None:
        call = stub.Join()
        try:
            await call.write(pb.WorkerMessage(join=self._join_message()))
            async for message in call:
                self._lost = None
                answer = await self._answer(message)
                if answer is not None and not call.done():  # the next read raises why a stream ended
                    await call.write(answer)
        except asyncio.CancelledError:
            await _leave(call)
            raise
        finally:
            call.cancel()

    def _join_message(self) -> pb.JoinFleet:
        return pb.JoinFleet(
            worker_id=self._identity.worker_id,
            model_fingerprint=self._identity.model_fingerprint,
            backend=self._identity.backend,
            ranks=self._identity.ranks,
            nccl_version=self._identity.nccl_version,
            serving_version=self._served.version if self._served.serving else NO_VERSION,
        )

    async def _answer(self, message: pb.LearnerMessage) -> pb.WorkerMessage | None:
        kind = message.WhichOneof("message")
        if kind == "prepare":
            return await self._prepare(_update_from_proto(message.prepare))
        if kind == "begin":
            return await self._receive(message.begin)
        if kind == "commit":
            return await self._commit(message.commit.version)
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
        if epoch != self._joined_epoch:
            try:
                await self._engine.form_group(update.rendezvous)
            except TransferError as error:
                return self._fail(update, error)
            self._joined_epoch = epoch
        self._update = update
        return pb.WorkerMessage(ready=pb.Ready(epoch=epoch, version=update.version))

    async def _receive(self, begin: pb.Begin) -> pb.WorkerMessage:
        """Pause the engine and receive; the answer says whether all buckets passed their checksum."""
        update = self._update
        if update is None or (update.rendezvous.epoch, update.version) != (begin.epoch, begin.version):
            return _failed(begin.epoch, begin.version, "Begin without its Prepare")
        started = time.monotonic()
        if self._served.serving or self._served.version == NO_VERSION:
            self._paused_at = started
        self._served.suspend()
        self._received = None
        try:
            await self._engine.pause()
            receiving = time.monotonic()
            await self._engine.receive(update.manifest, update.version)
        except TransferError as error:
            return self._fail(update, error)
        self._received = update
        seconds = time.monotonic() - receiving
        return pb.WorkerMessage(
            applied=pb.Applied(epoch=begin.epoch, version=begin.version, receive_seconds=seconds)
        )

    async def _commit(self, version: int) -> pb.WorkerMessage:
        """Serve the received version, and no other."""
        update, self._received = self._received, None
        if update is None or update.version != version:
            return _failed(NO_EPOCH, version, "Commit of a version that did not arrive as a whole")
        try:
            await self._engine.commit(version)
        except TransferError as error:
            return self._fail(update, error)
        await self._engine.resume()
        self._served.serve(version)
        pause = time.monotonic() - self._paused_at
        self._metrics.observe("update_pause_seconds", pause)
        self._metrics.set("version_served", version)
        self._log.debug("serving", version=version, pause_seconds=pause)
        return pb.WorkerMessage(serving=pb.Serving(version=version, pause_seconds=pause))

    def _fail(self, update: Update, error: TransferError) -> pb.WorkerMessage:
        """Report a failed update. A paused engine stays paused; the next update forms a new group."""
        self._joined_epoch = None
        self._log.warning("update failed", version=update.version, error=str(error))
        return _failed(update.rendezvous.epoch, update.version, str(error))


async def _leave(call: Any) -> None:
    """Tell the learner that this rollout leaves, so that no update waits for it."""
    with suppress(TimeoutError, asyncio.InvalidStateError, grpc.aio.AioRpcError):
        async with asyncio.timeout(LEAVE_SECONDS):
            await call.write(pb.WorkerMessage(leave=pb.Leave(reason="terminated")))
            await call.done_writing()


def _update_from_proto(message: pb.Prepare) -> Update:
    rendezvous = Rendezvous(
        epoch=message.epoch,
        rank=message.rank,
        world_size=message.world_size,
        store_host=message.store_host,
        store_port=message.store_port,
        timeout_seconds=message.timeout_seconds,
        nonce=message.rendezvous_nonce,
    )
    return Update(
        rendezvous=rendezvous, version=message.version, manifest=manifest_from_proto(message.manifest)
    )


def _failed(epoch: int, version: int, reason: str) -> pb.WorkerMessage:
    return pb.WorkerMessage(failed=pb.Failed(epoch=epoch, version=version, reason=reason))
