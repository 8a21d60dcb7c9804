"""The learner as a service: the fleet stream that it serves, and its clients and files."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from slipstream.config import RunConfig
from slipstream.learner import clients, evaluation
from slipstream.learner.broadcast.fleet import Fleet
from slipstream.learner.broadcast.own_weights import OwnWeights
from slipstream.learner.broadcast.publisher import Publisher
from slipstream.learner.broadcast.senders import Others, Senders
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.report import Report
from slipstream.records import Cursor
from slipstream.rpc.channel import open_channel
from slipstream.rpc.pod import Pod
from slipstream.rpc.server import Server, start_server
from slipstream.samples.timeline.writer import Timeline, open_timeline
from slipstream.v1.learner_pb2_grpc import add_FleetServicer_to_server
from slipstream.weights import group, manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerService:
    """The server, clients and files of a program that trains, from its start to its end."""

    pod: Pod
    run_dir: Path
    fingerprint: str
    device: torch.device
    fleet: Fleet
    server: Server
    replay: clients.ReplayClient
    report: Report
    evaluator: evaluation.Evaluator
    timeline: Timeline
    weights: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the snapshot of the weights is changed or sent."""
    ending: ExitStack = field(default_factory=ExitStack)
    """Closed at the end, after the fleet was told that the run is over."""

    async def publisher(self, snapshot: Snapshot, others: Others | None = None) -> Publisher:
        """Make the publisher of these weights, which have been copied once; `others` send their parts."""
        config = self.pod.config.weights
        own = OwnWeights(snapshot, config=config, model_fingerprint=self.fingerprint)
        publisher = Publisher(
            senders=await asyncio.to_thread(Senders, own, others),
            probe=lambda: snapshot.probe,
            fleet=self.fleet,
            config=config,
            metrics=self.pod.metrics,
            log=self.pod.log,
        )
        self.ending.callback(publisher.close)
        return publisher

    async def begin(self, version: int, cursor: Cursor) -> None:
        """Attach to replay at a version and a position in the data, then let rollouts join."""
        attached = await self.replay.attach(version, cursor)
        self.pod.log.info("attached", version=version, released=attached.released, restored=attached.restored)
        if self.report.continues:
            self.report.event("resumed", step=version)
        self.pod.announce(self.server.address)
        await self.server.set_serving(True)


@asynccontextmanager
async def open_learner_service(
    pod: Pod, *, served: Path, device: torch.device, goodbye: str
) -> AsyncIterator[LearnerService]:
    """Serve the fleet of a model directory until the context ends; rollouts may join after `begin`.

    goodbye: the reason that the rollouts get at the end. Errors: ValueError without a run directory;
    ConfigError if spans shall be sent and OpenTelemetry is not installed.
    """
    async with (
        open_timeline(run_directory(pod.config), pod.log) as timeline,
        _service(pod, timeline, served=served, device=device, goodbye=goodbye) as service,
    ):
        yield service


@asynccontextmanager
async def _service(
    pod: Pod, timeline: Timeline, *, served: Path, device: torch.device, goodbye: str
) -> AsyncIterator[LearnerService]:
    config, run_dir = pod.config, run_directory(pod.config)
    fingerprint = manifest.model_fingerprint(served)
    fleet = Fleet(
        model_fingerprint=fingerprint,
        backend=group.backend_of(device),
        nccl_version=group.nccl_version(device),
        timeline=timeline,
        metrics=pod.metrics,
        log=pod.log,
    )
    server = await start_server(
        config.learner.address,
        lambda s: add_FleetServicer_to_server(fleet, s),
        config=config.rpc,
        log=pod.log,
    )
    channel = open_channel(config.replay.address, config.rpc, log=pod.log)
    replay, report = clients.ReplayClient(channel, config, log=pod.log), Report(run_dir, pod.metrics)
    evaluator = evaluation.Evaluator(
        config=config.evaluation,
        replay=replay,
        report=report,
        timeline=timeline,
        metrics=pod.metrics,
        log=pod.log,
        start_seconds=config.rollout.start_timeout_seconds,
    )
    service = LearnerService(
        pod=pod,
        run_dir=run_dir,
        fingerprint=fingerprint,
        device=device,
        fleet=fleet,
        server=server,
        replay=replay,
        report=report,
        evaluator=evaluator,
        timeline=timeline,
    )
    try:
        yield service
    finally:
        fleet.finish(goodbye)
        service.ending.close()
        report.close()
        await channel.close(None)
        await server.stop(grace=1)


def run_directory(config: RunConfig) -> Path:
    """Return the folder of the run. Errors: ValueError if the configuration has none."""
    if config.run_dir is None:
        raise ValueError("run_dir is not set: give --set run_dir=DIR or SLIPSTREAM_RUN_DIR")
    return config.run_dir
