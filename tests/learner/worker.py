"""A small rollout for tests: real gRPC, a real gloo group, and faults where a test asks for them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import grpc
import torch
from learner.fakes import Events, silent_log
from slipstream.config import RpcConfig, WeightsConfig
from slipstream.learner.broadcast.fleet import Fleet
from slipstream.learner.broadcast.own_weights import OwnWeights
from slipstream.learner.broadcast.publisher import Published, Publisher
from slipstream.learner.broadcast.senders import Others, Senders
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.policy.model import Policy
from slipstream.learner.ranks.ranks import Alone
from slipstream.records import NO_VERSION
from slipstream.rollout.fleet_stream import FleetStream
from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import start_server
from slipstream.samples.timeline.writer import NO_TIMELINE, Timeline
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import learner_pb2 as pb
from slipstream.v1.learner_pb2_grpc import FleetStub, add_FleetServicer_to_server
from slipstream.weights.base_copy import BaseCopy
from slipstream.weights.group import TransferError, WeightGroup, form_group
from slipstream.weights.manifest import manifest_from_proto
from slipstream.weights.rendezvous_message import rendezvous_from_proto
from slipstream.weights.transfer import receive

CPU = torch.device("cpu")
TIMEOUT = 2.0
FINGERPRINT = "the-model"


class Died(Exception):
    """The worker's process is gone."""


class MuteStream(FleetStream):
    """The stream of a rollout that answers no ping before `answers` is set."""

    def __init__(self, call: Any, answers: asyncio.Event) -> None:
        super().__init__(call)
        self._answers = answers

    async def write(self, message: pb.WorkerMessage) -> None:
        """Send a message; answers to pings are late."""
        if message.HasField("pong"):
            await self._answers.wait()
        await super().write(message)


class Worker:
    """`faults` are places, each used up once: die_at_prepare, silent_at_prepare, die_at_begin,
    silent_at_begin, slow_to_pause, die_in_the_middle, damaged, die_at_applied, die_at_commit. After
    late_at_prepare, late_after_forming, late_at_begin or late_at_commit it answers only when `go` is set;
    after late_in_receipt at the next message, for which it leaves its group. At stuck_in_forming_N (after N
    steps), stuck_in_the_middle and stuck_in_epoch_N (in the middle of a broadcast of this epoch) it stops
    until `released` is set."""

    def __init__(
        self, name: str, *, faults: tuple[str, ...] = (), base: BaseCopy | None = None, **join: Any
    ) -> None:
        """`base`: a copy which deltas change."""
        self.name = name
        self.version = -1
        self.weights: dict[str, torch.Tensor] = {}
        self.epochs: list[int] = []
        self.events = Events()
        self.faults = list(faults)
        self._join: dict[str, Any] = {
            "answers_pings": True,
            "model_fingerprint": FINGERPRINT,
            "backend": "gloo",
            "ranks": 1,
            "serving_version": -1,
        }
        self._join |= join
        self.prepare = pb.Prepare()
        self.released = threading.Event()
        self.go = asyncio.Event()
        self._group: WeightGroup | None = None
        self._stream: FleetStream
        self._received: dict[str, torch.Tensor] = {}
        self.base = base
        self.deaf = False
        """Whether it hears nothing of the learner during a receipt, as an engine that receives in a pause."""
        self.mute = False
        """Whether it answers no ping before `go` is set, as a process that is stopped."""
        self.bases: list[int] = []
        """Base of each version that was sent to it; -1 for a full one."""
        self.keys: list[bytes] = []
        self.probed: list[int] = []
        """Versions that came with a parity probe."""
        self._base_sender = b""

    async def run(self, address: str) -> None:
        """Stay in the fleet until the stream ends or a fault ends the worker. Errors: AioRpcError."""
        async with open_channel(address, RpcConfig()) as channel:
            call = FleetStub(channel).Join()
            self._stream = stream = MuteStream(call, self.go) if self.mute else FleetStream(call)
            try:
                await stream.write(pb.WorkerMessage(join=pb.JoinFleet(worker_id=self.name, **self._join)))
                while (message := await stream.take()) is not None:
                    for answer in await self._answers(message):
                        await stream.write(answer)
                    if self._fault("die_at_applied", at=message.WhichOneof("message") == "begin"):
                        raise Died
            except Died:
                self.events.note("died")
            finally:
                await stream.close()
                self._leave_group()

    async def _answers(self, message: pb.LearnerMessage) -> list[pb.WorkerMessage]:
        kind = message.WhichOneof("message")
        self.events.note(str(kind))
        if self._fault(f"late_at_{kind}", at=kind != "begin"):
            await self.go.wait()
        if kind == "prepare":
            self._die("die_at_prepare")
            self.prepare = message.prepare
            if self._fault("silent_at_prepare"):
                return []
            return [await self._form()]
        if kind == "begin":
            self._die("die_at_begin")
            silent = self._fault("silent_at_begin")
            applied = await self._receive(message.begin)
            return [] if silent else [applied]
        if kind == "commit":
            self._die("die_at_commit")
            self.version, self.weights = message.commit.version, self._received
            if message.commit.HasField("probe"):
                self.probed.append(self.version)
            self.events.note(f"serving {self.version}")
            return [pb.WorkerMessage(serving=pb.Serving(version=self.version, pause_seconds=0.5))]
        return []

    async def _form(self) -> pb.WorkerMessage:
        update = {"epoch": self.prepare.epoch, "version": self.prepare.version}
        if not self.epochs or self.epochs[-1] != self.prepare.epoch:
            self._leave_group()
            try:
                self._group = await asyncio.to_thread(
                    form_group,
                    rendezvous_from_proto(self.prepare),
                    device=CPU,
                    progress=self._formed_a_step(count()),
                )
            except TransferError as error:
                return pb.WorkerMessage(failed=pb.Failed(**update, reason=str(error)))
            if self._fault("late_after_forming"):
                await self.go.wait()
            self.epochs.append(self.prepare.epoch)
        return pb.WorkerMessage(ready=pb.Ready(**update, base_version=self._base_version()))

    def _formed_a_step(self, steps: Iterator[int]) -> Callable[[], None]:
        def progress() -> None:
            if self._fault(f"stuck_in_forming_{next(steps)}"):
                self.released.wait(120)

        return progress

    async def _receive(self, begin: pb.Begin) -> pb.WorkerMessage:
        update = {"epoch": self.prepare.epoch, "version": self.prepare.version}
        if self._fault("slow_to_pause"):
            await asyncio.sleep(0.3)
        try:
            receiving = asyncio.create_task(asyncio.to_thread(self._receive_blocking, begin))
            if not self.deaf:
                await asyncio.wait({receiving, self._stream.reading()}, return_when=asyncio.FIRST_COMPLETED)
            if not (self.deaf or receiving.done()):
                self._leave_group()
            await receiving
            if self._fault("late_at_begin"):
                await self.go.wait()
            if self._fault("late_in_receipt"):
                await asyncio.wait({self._stream.reading()})
                self._leave_group()
                self._group = None
            if self._fault("damaged"):
                raise TransferError("bucket 0 arrived damaged")
        except TransferError as error:
            self._leave_group()
            self.epochs = [*self.epochs, -1]
            return pb.WorkerMessage(failed=pb.Failed(**update, reason=str(error)))
        return pb.WorkerMessage(applied=pb.Applied(**update, receive_seconds=0.1))

    def _receive_blocking(self, begin: pb.Begin) -> None:
        manifest = manifest_from_proto(begin.manifest)
        prepare = self.prepare
        assert self._group is not None
        self.bases.append(begin.base_version)
        self.keys.append(begin.key)
        if self.base is not None:
            self._base_sender = prepare.sender
            self.base.receive(
                self._group,
                manifest,
                version=begin.version,
                base=begin.base_version,
                device=CPU,
                key=begin.key,
            )
            self._received = {name: tensor.clone() for name, tensor in self.base.tensors.items()}
            return
        assert len(manifest.bucket_bytes) > 2, "a middle needs several buckets"
        received: dict[str, torch.Tensor] = {}
        for bucket in receive(self._group, manifest, version=prepare.version, device=CPU):
            received |= {name: tensor.clone() for name, tensor in bucket}
            if self._fault("die_in_the_middle"):
                self._group.close()
                raise Died
            if self._fault("stuck_in_the_middle") or self._fault(f"stuck_in_epoch_{prepare.epoch}"):
                self.released.wait(120)
        self._received = received

    def _base_version(self) -> int:
        if self.base is None or self._base_sender != self.prepare.sender:
            return NO_VERSION
        return self.base.version

    def _leave_group(self) -> None:
        if self._group is not None:
            self._group.close()

    def _die(self, fault: str) -> None:
        if self._fault(fault):
            raise Died

    def _fault(self, name: str, *, at: bool = True) -> bool:
        if at and name in self.faults:
            self.faults.remove(name)
            return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """The learner's end: a served fleet and what publishes to it."""

    fleet: Fleet
    publisher: Publisher
    snapshot: Snapshot
    policy: Policy
    address: str
    metrics: Metrics
    log: Log
    weights: asyncio.Lock
    tasks: list[asyncio.Task[None]]

    async def join(self, *workers: Worker) -> list[asyncio.Task[None]]:
        """Start workers, and return once the fleet has them."""
        started = [asyncio.create_task(worker.run(self.address)) for worker in workers]
        self.tasks.extend(started)
        wanted = {worker.name for worker in workers}
        await until(lambda: wanted <= {member.worker_id for member in self.fleet.members()})
        return started

    async def train(self, version: int, share: float) -> Published:
        """Change this share of the elements, and publish the weights as `version`."""
        generator = torch.Generator().manual_seed(version)
        async with self.weights:
            with torch.no_grad():
                for _, tensor in self.policy.named_tensors():
                    tensor.add_(1.0 * (torch.rand(tensor.shape, generator=generator) < share))
            self.snapshot.take(probe=self.publisher.wants_probe(version))
            return await asyncio.wait_for(self.publisher.publish(version), 10 * TIMEOUT)

    async def publish(self, version: int, *, seconds: float = 10 * TIMEOUT) -> Published:
        """Change the weights, and publish them as `version` within a bound."""
        async with self.weights:
            with torch.no_grad():
                for _, tensor in self.policy.named_tensors():
                    tensor.add_(1.0)
            self.snapshot.take(probe=self.publisher.wants_probe(version))
            return await asyncio.wait_for(self.publisher.publish(version), seconds)

    def has(self, worker: Worker) -> bool:
        """Whether a worker has exactly the learner's weights."""
        mine = dict(self.policy.named_tensors())
        return worker.weights.keys() == mine.keys() and all(
            torch.equal(worker.weights[name], tensor) for name, tensor in mine.items()
        )


@asynccontextmanager
async def learner_of(
    policy: Policy,
    timeout_seconds: float = TIMEOUT,
    *,
    fingerprint: str = FINGERPRINT,
    timeline: Timeline = NO_TIMELINE,
    staging_mib: float = 1024.0,
    encrypt: bool = False,
    max_lag: int = 0,
    patience_seconds: float = 0.5,
    host: str = "127.0.0.1",
    snapshot: Snapshot | None = None,
    others: Others | None = None,
) -> AsyncIterator[Learner]:
    """A fleet on port 0 of a host. `snapshot`: of several ranks, with the `others` that send."""
    log, metrics = silent_log(), Metrics()
    fleet = Fleet(model_fingerprint=fingerprint, backend="gloo", timeline=timeline, metrics=metrics, log=log)
    server = await start_server(
        f"{host}:0", lambda s: add_FleetServicer_to_server(fleet, s), config=RpcConfig(plaintext=True)
    )
    if snapshot is None:
        snapshot = Snapshot(policy, Alone(), parity_tokens=8)
        snapshot.take()
    taken = snapshot
    config = WeightsConfig(
        host=host,
        bucket_mib=0.03,
        timeout_seconds=timeout_seconds,
        staging_mib=staging_mib,
        encrypt=encrypt,
        max_lag=max_lag,
        patience_seconds=patience_seconds,
    )
    own = OwnWeights(snapshot, config=config, model_fingerprint=fingerprint)
    publisher = Publisher(
        senders=await asyncio.to_thread(Senders, own, others),
        probe=lambda: taken.probe,
        fleet=fleet,
        config=config,
        metrics=metrics,
        log=log,
    )
    tasks: list[asyncio.Task[None]] = []
    try:
        yield Learner(
            fleet=fleet,
            publisher=publisher,
            snapshot=snapshot,
            policy=policy,
            address=server.address,
            metrics=metrics,
            log=log,
            weights=asyncio.Lock(),
            tasks=tasks,
        )
    finally:
        fleet.finish("the test is over")
        publisher.close()
        for task in tasks:
            with suppress(grpc.aio.AioRpcError, asyncio.CancelledError, TimeoutError):
                await asyncio.wait_for(task, 5)
        await server.stop(grace=0)


async def until(true: Callable[[], bool]) -> None:
    """Return once something is true, within a bound."""
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 (what is waited for is beyond a socket)
            await asyncio.sleep(0.005)


def play(
    policy: Policy,
    scene: Callable[[Learner], Awaitable[None]],
    *,
    timeout_seconds: float = TIMEOUT,
    **settings: Any,
) -> None:
    """Run a scene against a learner whose every wait for a worker has that bound.

    settings: of `learner_of`.
    """

    async def run() -> None:
        threads = ThreadPoolExecutor(64)  # each worker that forms a group blocks one
        asyncio.get_running_loop().set_default_executor(threads)
        async with learner_of(policy, timeout_seconds, **settings) as learner:
            await scene(learner)

    asyncio.run(run())
