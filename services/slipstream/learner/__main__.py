"""The learner pod: `python -m slipstream.learner --config FILE`. Goes on from the run's last checkpoint."""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import torch

from slipstream.config import RunConfig
from slipstream.learner.checkpoint import latest_checkpoint, load_optimizer, read_state, restore_critic
from slipstream.learner.clients import ReplayClient
from slipstream.learner.critic import load_critic
from slipstream.learner.evaluation import Evaluator
from slipstream.learner.fleet import Fleet
from slipstream.learner.loop import Loop
from slipstream.learner.model import load_policy, pick_device, without_progress_bars
from slipstream.learner.publisher import Publisher, catch_up
from slipstream.learner.reference import load_reference
from slipstream.learner.report import Report
from slipstream.learner.step import TrainingStep
from slipstream.rpc.channel import open_channel
from slipstream.rpc.pod import Pod, run_pod
from slipstream.rpc.server import start_server
from slipstream.v1.learner_pb2_grpc import add_FleetServicer_to_server
from slipstream.weights.group import backend_of
from slipstream.weights.manifest import model_fingerprint


async def main(pod: Pod) -> None:
    """Load, attach to replay, serve the fleet, and train to the end or until the pod is stopped."""
    config = pod.config
    run_dir = run_directory(config)
    fingerprint = model_fingerprint(config.model.directory())
    device = pick_device(config.learner.device)
    fleet = Fleet(model_fingerprint=fingerprint, backend=backend_of(device), metrics=pod.metrics, log=pod.log)
    server = await start_server(
        config.learner.address, lambda s: add_FleetServicer_to_server(fleet, s), config=config.rpc
    )
    training, version = await asyncio.to_thread(load, config, run_dir, fingerprint, device)
    fleet.version = version
    channel = open_channel(config.replay.address, config.rpc)
    replay = ReplayClient(channel, config)
    report = Report(run_dir, pod.metrics)
    publisher = Publisher(
        policy=training.policy,
        fleet=fleet,
        config=config.weights,
        model_fingerprint=fingerprint,
        metrics=pod.metrics,
        log=pod.log,
    )
    weights = asyncio.Lock()
    loop = Loop(
        config=config,
        run_dir=run_dir,
        training=training,
        publisher=publisher,
        evaluator=Evaluator(
            config=config.evaluation, replay=replay, report=report, metrics=pod.metrics, log=pod.log
        ),
        replay=replay,
        report=report,
        weights=weights,
        version=version,
        model_fingerprint=fingerprint,
        metrics=pod.metrics,
        log=pod.log,
    )
    try:
        attached = await replay.attach(version)
        pod.log.info("attached", version=version, released=attached.released, restored=attached.restored)
        if report.continues:
            report.event("resumed", step=version)
        pod.announce(server.address)
        await server.set_serving(True)
        await train(loop, catch_up(publisher, fleet, weights), pod.stop)
    finally:
        fleet.finish("the learner stopped")
        report.close()
        await channel.close(None)
        await server.stop(grace=1)


def load(
    config: RunConfig, run_dir: Path, fingerprint: str, device: torch.device
) -> tuple[TrainingStep, int]:
    """Model and optimizer of the last checkpoint, or of the start; and the version that they are at.

    Blocks. Errors: CheckpointError, and ValueError for a model that cannot be trained.
    """
    without_progress_bars()
    torch.set_num_threads(config.learner.threads)
    torch.manual_seed(config.seed)
    source = config.model.directory()
    checkpoint = latest_checkpoint(run_dir / "checkpoints")
    weights = source if checkpoint is None else checkpoint / "model"
    dtype = getattr(torch, config.model.dtype)
    policy = load_policy(weights, source=source, device=device, dtype=dtype)
    reference = load_reference(config, checkpoint=checkpoint, device=device, dtype=dtype)
    critic = load_critic(config, policy)
    training = TrainingStep(policy, config, reference=reference, critic=critic)
    if checkpoint is None:
        return training, 0
    state = read_state(checkpoint, model_fingerprint=fingerprint)
    load_optimizer(checkpoint, policy, training.optimizer)
    if critic is not None:
        restore_critic(checkpoint, critic)
    training.memory = training.memory.restored(state.memory)
    return training, state.version


async def train(loop: Loop, catching_up: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Run the loop to its end, with late joiners served beside it. Errors: those of either."""
    async with asyncio.TaskGroup() as tasks:
        beside = tasks.create_task(catching_up)
        await loop.run(stop)
        beside.cancel()


def run_directory(config: RunConfig) -> Path:
    """Where this run writes. Errors: ValueError when the configuration names none."""
    if config.run_dir is None:
        raise ValueError("run_dir is not set: give --set run_dir=DIR or SLIPSTREAM_RUN_DIR")
    return config.run_dir


if __name__ == "__main__":
    sys.exit(run_pod("learner", main))
