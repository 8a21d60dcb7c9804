"""The learner pod: `python -m slipstream.learner --config FILE`.

It resumes from the run's last checkpoint.
"""

import asyncio
import os
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch

from slipstream.config import LearnerConfig, RunConfig, apply_environment, load_config
from slipstream.hub.model import with_local_model
from slipstream.learner import clients, memory_guard, run_gauges, saving
from slipstream.learner.broadcast.publisher import Publisher, catch_up
from slipstream.learner.broadcast.sender_commands import commands_to_senders, every_rank_sends, sending
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.checkpoints.checkpoint import CheckpointWriter, latest_checkpoint, read_state
from slipstream.learner.lockstep import Lockstep, follow
from slipstream.learner.loop import Loop
from slipstream.learner.policy import loading, lora
from slipstream.learner.policy.reference import load_reference
from slipstream.learner.publishing import Publishing, overlaps
from slipstream.learner.ranks.ranks import Alone, TorchRanks, local_rank, own_rank, started_by_torchrun
from slipstream.learner.ranks.sharding import checkpoint_activations
from slipstream.learner.service import LearnerService, open_learner_service, run_directory
from slipstream.learner.teacher import TeacherClient, open_teacher_client
from slipstream.learner.training.critic import load_critic
from slipstream.learner.training.state import restore
from slipstream.learner.training.step import TrainingStep
from slipstream.processes.lifetime.parent_death import die_with_parent
from slipstream.records import START, Cursor
from slipstream.rpc.errors import SlipstreamError
from slipstream.rpc.pod import Pod, parse_arguments, run_pod
from slipstream.samples.writer import SampleWriter, open_sample_writer
from slipstream.telemetry import logs, page
from slipstream.telemetry.health import Health
from slipstream.telemetry.metrics import Metrics
from slipstream.weights.manifest import model_fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The models and files of one rank, with the state of `version`."""

    training: TrainingStep
    snapshot: Snapshot
    writer: CheckpointWriter
    version: int
    cursor: Cursor
    unvaried_share: float | None


async def main(pod: Pod) -> None:
    """Load, attach to replay, serve the fleet, and train to the end or until the pod is stopped."""
    config = pod.config
    run_gauges.show_run(config, pod.metrics)
    device = loading.pick_device(config.learner.device, local_rank())
    async with (
        open_teacher_client(config, log=pod.log) as teacher,
        open_learner_service(
            pod, served=config.model.directory(), device=device, goodbye="the learner stopped"
        ) as service,
    ):
        ranks = await asyncio.to_thread(form_ranks, config.learner, device)
        service.ending.callback(ranks.close)
        run_gauges.show_peak(config, device, pod.metrics, ranks=ranks.size)
        loaded = await asyncio.to_thread(load, config, service.run_dir, service.fingerprint, device, ranks)
        lockstep = Lockstep(ranks, loaded.training, loaded.snapshot, loaded.writer)
        await lockstep.take_snapshot()
        service.fleet.version = loaded.version
        others = commands_to_senders(ranks, loaded.snapshot, config.weights)
        publisher = await service.publisher(loaded.snapshot, others)
        version, run_dir = loaded.version, service.run_dir
        async with open_sample_writer(
            config, run_dir, version=version, decode=clients.decode_group, log=pod.log
        ) as samples:
            service.evaluator.store_in(samples)
            loop = make_loop(service, loaded, lockstep, publisher, samples=samples, teacher=teacher)
            service.fleet.saves.serve(loop.save)
            await service.begin(version, loaded.cursor)
            background = (catch_up(publisher, service.fleet, service.weights), lockstep.beat())
            try:
                await train(loop, background, pod.stop, stay=config.learner.stay)
            finally:
                await service.fleet.saves.end()
        await lockstep.finish()


def make_loop(
    service: LearnerService,
    loaded: Loaded,
    lockstep: Lockstep,
    publisher: Publisher,
    *,
    samples: SampleWriter | None = None,
    teacher: TeacherClient | None = None,
) -> Loop:
    """Build the loop, which continues from the loaded version."""
    config, metrics, log = service.pod.config, service.pod.metrics, service.pod.log
    publishing = Publishing(
        lockstep=lockstep,
        publisher=publisher,
        replay=service.replay,
        weights=service.weights,
        overlap=overlaps(config, service.device),
        timeline=service.timeline,
        log=log,
    )
    saver = saving.Saver(
        root=service.run_dir / "checkpoints",
        config=config.learner.checkpoint,
        lockstep=lockstep,
        replay=service.replay,
        model_fingerprint=service.fingerprint,
        durable=loaded.version or None,
        timeline=service.timeline,
        metrics=metrics,
        log=log,
    )
    saver.warn_of_size()
    return Loop(
        config=config,
        run_dir=service.run_dir,
        lockstep=lockstep,
        publishing=publishing,
        saver=saver,
        evaluator=service.evaluator,
        replay=service.replay,
        teacher=teacher,
        report=service.report,
        samples=samples,
        timeline=service.timeline,
        version=loaded.version,
        cursor=loaded.cursor,
        unvaried_share=loaded.unvaried_share,
        metrics=metrics,
        log=log,
    )


def form_ranks(config: LearnerConfig, device: torch.device) -> Alone | TorchRanks:
    """Join the ranks of the learner. Blocks until all ranks have joined. Errors: RankLost."""
    if not started_by_torchrun():
        return Alone()
    return TorchRanks(device, timeout_seconds=config.collective_timeout_seconds)


def load(
    config: RunConfig, run_dir: Path, fingerprint: str, device: torch.device, ranks: Alone | TorchRanks
) -> Loaded:
    """Load this rank's part of model and optimizer, from the last checkpoint or from the start of the run.

    Blocks. Errors: CheckpointError; ValueError for a model that cannot be trained, or does not fit in memory.
    """
    loading.without_progress_bars()
    memory_guard.check_memory(config, device, ranks=ranks.size)
    torch.set_num_threads(config.learner.threads)
    torch.manual_seed(config.seed)
    mesh = ranks.mesh if isinstance(ranks, TorchRanks) else None
    policy = lora.load_trained(config, device=device, mesh=mesh)
    reference = load_reference(config, device=device, dtype=policy.dtype, policy=policy, mesh=mesh)
    for each in (policy, reference.policy) if reference else (policy,):
        loading.choose_attention(each, share_prompts=config.learner.share_prompts)
    if config.learner.activation_checkpointing:
        checkpoint_activations(policy.model)
    critic = load_critic(config, policy, mesh)
    training = TrainingStep(policy, config, reference=reference, critic=critic, ranks=ranks)
    root = run_dir / "checkpoints"
    checkpoint, version, cursor, unvaried_share = latest_checkpoint(root), 0, START, None
    if checkpoint is not None:
        state = read_state(checkpoint, model_fingerprint=fingerprint)
        restore(training, checkpoint)
        training.memory = training.memory.restored(state.memory)
        version, unvaried_share = state.version, state.unvaried_share
        cursor = Cursor(dispatched=state.cursor["dispatched"], open=tuple(state.cursor["open"]))
    snapshot = Snapshot(
        policy,
        ranks,
        deltas=config.weights.deltas,
        parity_tokens=config.weights.parity_tokens,
        shared=every_rank_sends(policy, config.weights, ranks=ranks.size),
        background=overlaps(config, device) and device.type == "cpu",  # a GPU leaves the cores to the copy
    )
    writer = CheckpointWriter(root, ranks)
    return Loaded(
        training=training,
        snapshot=snapshot,
        writer=writer,
        version=version,
        cursor=cursor,
        unvaried_share=unvaried_share,
    )


def follow_main(argv: Sequence[str] | None = None) -> int:
    """Run a rank other than the first; return the exit status."""
    arguments = parse_arguments("learner", argv)
    log = logs.Log(pod=f"learner/{own_rank()}", level="info")
    try:
        config = apply_environment(load_config(arguments.config, arguments.set))
        config = with_local_model(config, weights=True)
        health = Health(stall_seconds=inf)  # collective_timeout_seconds ends a rank that hangs
        if local_rank() == 0:  # the first rank of another machine answers the probes of its pod
            page.serve_page(Metrics(), health, host=config.telemetry.host, port=config.telemetry.port)
        device = loading.pick_device(config.learner.device, local_rank())
        ranks = TorchRanks(device, timeout_seconds=config.learner.collective_timeout_seconds)
        fingerprint = model_fingerprint(config.model.directory())
        loaded = load(config, run_directory(config), fingerprint, device, ranks)
        health.start()
        with sending(ranks, loaded.snapshot, config.weights, model_fingerprint=fingerprint, log=log):
            follow(ranks, loaded.training, loaded.snapshot, loaded.writer)
        ranks.close()
    except (SlipstreamError, OSError, ValueError) as error:
        log.error("stopped", error=f"{type(error).__name__}: {error}")
        return 1
    return 0


async def train(
    loop: Loop, background: Sequence[Coroutine[Any, Any, None]], stop: asyncio.Event, *, stay: bool
) -> None:
    """Run the loop to its end, and with `stay` on until `stop`; run background coroutines meanwhile.

    Errors: those of the loop and of the background coroutines.
    """
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(other) for other in background]
        await loop.run(stop)
        if stay:
            await stop.wait()
        for task in running:
            task.cancel()


if __name__ == "__main__":
    if started_by_torchrun():
        die_with_parent(os.getppid())
    sys.exit(follow_main() if own_rank() else run_pod("learner", main))
