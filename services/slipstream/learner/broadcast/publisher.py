"""Broadcast of one version to all or some members of the fleet, with a deadline on every wait.

    Prepare ─▶ form the group (new members: new epoch) ─▶ all Ready ─▶ Begin ─▶ broadcast
            ─▶ Applied ─▶ Commit ─▶ Serving, each member as soon as it can

If anything fails, the epoch ends, and the members that do not serve the version yet get all of it again in a
new epoch. A member that does not answer, or fails three times in a row, is dropped. It may join again, and
gets the version then. Publishing to an empty fleet succeeds: a rollout that joins later gets the version
then.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from slipstream.config import WeightsConfig
from slipstream.learner.broadcast.fleet import Fleet, Member, MemberLost, UpdateFailed
from slipstream.parallel import both, task_group
from slipstream.rpc.errors import SlipstreamError, Stuck
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import learner_pb2 as pb
from slipstream.weights.group import Rendezvous, RendezvousStore, TransferError, WeightGroup, form_group
from slipstream.weights.last_deadline import CallStuck, Progress, watched
from slipstream.weights.manifest import manifest_to_proto, plan
from slipstream.weights.transfer import send

T = TypeVar("T")

MIB = 1024 * 1024
TRIES = 3
FORMING = 1.25
"""The wait for Ready when a group is formed, in timeouts. A member that waits for a missing member reports
this after one timeout; the rest is for the report to arrive."""


class TornSnapshot(SlipstreamError):
    """The weights to send are of no single version, because copying them failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The result of a publication: rollouts that serve the version, and the longest times of any of them."""

    rollouts: int
    seconds: float
    pause_seconds: float
    transfer_seconds: float


class Publisher:
    """Sends a snapshot of the weights. Invariant: a group is used only by the members it was formed with.

    weights: by name. Their values may change between two publications, but not during one.
    dtype: of the broadcast. device: on which tensors are broadcast.
    """

    def __init__(
        self,
        *,
        weights: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        device: torch.device,
        fleet: Fleet,
        config: WeightsConfig,
        model_fingerprint: str,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._weights = weights
        self._device = device
        self._fleet = fleet
        self._timeout = config.timeout_seconds
        self._metrics = metrics
        self._log = log
        self._store = RendezvousStore(
            config.host, config.port, timeout_seconds=config.timeout_seconds, log=log
        )
        self._manifest = plan(
            [(name, tuple(tensor.shape)) for name, tensor in weights.items()],
            dtype=dtype,
            bucket_bytes=int(config.bucket_mib * MIB),
            model_fingerprint=model_fingerprint,
        )
        self._bytes = sum(tensor.nbytes for tensor in self._manifest.tensors)
        self._manifest_message = manifest_to_proto(self._manifest)
        self._group: WeightGroup | None = None
        self._grouped: list[Member] = []
        self._failing = False
        self._refusal = ""
        for name in ("publish_failures_total", "publish_bytes_total"):
            metrics.count(name, 0)  # so that a rate sees the first one

    async def publish(self, version: int) -> Published:
        """Bring each member of the fleet to `version`; return once all remaining members serve it.

        Errors: Stuck when a collective outlasts its last deadline, which only a new process ends;
        TornSnapshot after `refuse`.
        """
        if self._refusal:
            raise TornSnapshot(self._refusal)
        started = time.monotonic()
        self._fleet.version = version
        updated: set[Member] = set()
        with self._shown_as_running():
            while members := [m for m in self._fleet.members() if m.version != version]:
                await self._attempt(version, members)
                updated.update(members)
        self._metrics.set("policy_version", version)
        return Published(
            rollouts=len(self._fleet.members()),
            seconds=time.monotonic() - started,
            pause_seconds=max((m.pause_seconds for m in updated), default=0.0),
            transfer_seconds=max((m.receive_seconds for m in updated), default=0.0),
        )

    def refuse(self, reason: str) -> None:
        """Send no weights from now on, for this reason."""
        self._refusal = reason

    @contextmanager
    def _shown_as_running(self) -> Iterator[None]:
        self._metrics.set("publish_started_timestamp_seconds", time.time())
        self._metrics.set("publish_running", 1)
        try:
            yield
        finally:
            self._metrics.set("publish_running", 0)

    async def _attempt(self, version: int, members: Sequence[Member]) -> None:
        """Try once. Each failure drops a member or counts as one of its TRIES, so tries come to an end."""
        self._failing = False
        with self._metrics.timing("publish_seconds", phase="prepare"):
            members = await self._prepare(version, members)
        if not members:
            return
        for member in members:
            self._fleet.begin(member, version)
        async with task_group() as tasks:
            applying = [
                tasks.create_task(self._answer(member, "applied", version, timeout_seconds=None))
                for member in members
            ]
            try:
                with self._metrics.timing("publish_seconds", phase="transfer"):
                    await self._transfer(version, applying)
            except TransferError as error:
                self._fail(version, members, str(error))
            with self._metrics.timing("publish_seconds", phase="commit"):
                applied = await self._settle(members, applying)
                for member, answer in zip(members, applied, strict=True):
                    member.receive_seconds = answer.receive_seconds if answer else 0.0
                await self._commit(version, [m for m, ok in zip(members, applied, strict=True) if ok])

    async def _prepare(self, version: int, members: Sequence[Member]) -> list[Member]:
        """Prepare the members, and form a group with them; return them if all are ready, else none.

        Errors: Stuck.
        """
        forming = self._grouped != list(members)
        if forming:
            self._leave_group()
            self._fleet.epoch += 1
            self._metrics.set("fleet_epoch", self._fleet.epoch)
        rank = 1
        world_size = 1 + sum(member.ranks for member in members)
        for member in members:
            nonce = self._store.server.issue_nonce(connections=member.ranks) if forming else b""
            member.tell(prepare=self._prepare_message(version, rank, world_size, nonce))
            rank += member.ranks
        seconds = self._timeout * (FORMING if forming else 1)
        asking = self._ask(members, "ready", version, timeout_seconds=seconds)
        fault, answers = await both(self._form(members), asking) if forming else (None, await asking)
        if fault is None and all(answers):
            return list(members)
        self._fail(version, members, fault or "another member was not ready")
        return []

    async def _form(self, members: Sequence[Member]) -> str | None:
        """Form the group of a new epoch; return why it could not be formed. Errors: Stuck."""
        rendezvous = self._rendezvous(members)
        try:
            self._group = await self._watched(
                lambda progress: form_group(rendezvous, device=self._device, progress=progress),
                f"the forming of the weight group of epoch {rendezvous.epoch}",
            )
        except TransferError as error:
            return str(error)
        self._grouped = list(members)
        return None

    def _prepare_message(self, version: int, rank: int, world_size: int, nonce: bytes) -> pb.Prepare:
        return pb.Prepare(
            epoch=self._fleet.epoch,
            version=version,
            rank=rank,
            world_size=world_size,
            store_host=self._store.host,
            store_port=self._store.port,
            timeout_seconds=self._timeout,
            manifest=self._manifest_message,
            rendezvous_nonce=nonce,
        )

    async def _transfer(self, version: int, applying: Sequence[asyncio.Task[Any]]) -> None:
        """Broadcast the weights. Errors: TransferError, Stuck."""
        group = self._group
        if group is None or any(task.done() for task in applying):
            raise TransferError("a member failed before the broadcast")
        await self._watched(partial(self._send, group, version), f"the broadcast of version {version}")
        self._metrics.count("publish_bytes_total", self._bytes)

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

    async def _settle(self, members: Sequence[Member], applying: Sequence[asyncio.Task[Any]]) -> list[Any]:
        """Return the answers to a transfer.

        Their deadline begins at its end: the transfer had deadlines of its own.
        """
        await asyncio.wait(applying, timeout=self._timeout)
        for member, task in zip(members, applying, strict=True):
            if not task.done():
                self._fleet.drop(member, f"did not answer `applied` in {self._timeout:g} s")
        return await asyncio.gather(*applying)

    def _rendezvous(self, members: Sequence[Member]) -> Rendezvous:
        """Return the learner's own rendezvous, with a nonce that is valid in this epoch."""
        return Rendezvous(
            epoch=self._fleet.epoch,
            rank=0,
            world_size=1 + sum(member.ranks for member in members),
            store_host=self._store.host,
            store_port=self._store.port,
            timeout_seconds=self._timeout,
            nonce=self._store.server.issue_nonce(connections=1),
        )

    def _send(self, group: WeightGroup, version: int, progress: Progress) -> None:
        send(
            group,
            self._manifest,
            self._weights,
            version=version,
            device=self._device,
            progress=progress,
        )

    async def _commit(self, version: int, members: Sequence[Member]) -> None:
        for member in members:
            member.tell(commit=pb.Commit(version=version))
        await asyncio.gather(*(self._confirm(version, member) for member in members))

    async def _confirm(self, version: int, member: Member) -> None:
        """Wait until a member serves the version, and record it at that moment."""
        answer = await self._answer(member, "serving", version, timeout_seconds=self._timeout)
        if answer is not None:
            member.pause_seconds = answer.pause_seconds
            self._fleet.confirm(member, version)
            member.failures = 0

    async def _ask(
        self, members: Sequence[Member], kind: str, version: int, *, timeout_seconds: float
    ) -> list[Any]:
        return await asyncio.gather(
            *(self._answer(member, kind, version, timeout_seconds=timeout_seconds) for member in members)
        )

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
        self._leave_group()
        return None

    def _fail(self, version: int, members: Sequence[Member], reason: str) -> None:
        self._metrics.count("publish_failures_total")
        self._log.warning("publication failed", version=version, epoch=self._fleet.epoch, reason=reason)
        self._leave_group()
        for member in members:
            if member.alive:
                member.tell(abort=pb.Abort(epoch=self._fleet.epoch, reason=reason))

    def close(self) -> None:
        """End the rendezvous: no process can join a group any more."""
        self._store.server.close()

    def _leave_group(self) -> None:
        self._store.server.end_epoch()
        if self._group is not None:
            self._group.close()
        self._group = None
        self._grouped = []


async def catch_up(publisher: Publisher, fleet: Fleet, weights: asyncio.Lock) -> None:
    """Send the current version to rollouts that join late, one update at a time, until cancelled.

    weights: held while the snapshot is read here, or changed elsewhere.
    """
    while True:
        await fleet.joined.wait()
        fleet.joined.clear()
        async with weights:
            await publisher.publish(fleet.version)
