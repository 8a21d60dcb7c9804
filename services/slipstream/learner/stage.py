"""The learner's place in a stage that samples first: `python -m slipstream.learner.stage --config FILE`.

The workers join the same fleet, are sent the same weights, and fill the same buffer as in reinforcement
learning. In a distillation they serve the teacher, and the policy is trained beside it.
"""

import asyncio
import sys
from pathlib import Path

import torch

from slipstream.config import RunConfig
from slipstream.config.stages import DistillationStage, PreferenceStage, SampledStage
from slipstream.learner.__main__ import run_directory
from slipstream.learner.broadcast.fleet import Fleet
from slipstream.learner.broadcast.publisher import Publisher, catch_up
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.clients import ReplayClient
from slipstream.learner.evaluation import Evaluator
from slipstream.learner.policy.loading import load_policy, pick_device, without_progress_bars
from slipstream.learner.policy.model import Policy
from slipstream.learner.ranks.ranks import Alone
from slipstream.learner.report import Report
from slipstream.learner.stages.delivery import Apart, Served
from slipstream.learner.stages.preference import PreferenceTraining
from slipstream.learner.stages.rounds import Delivery, Rounds, Training, number_of, rounds_of
from slipstream.learner.stages.verified import VerifiedTraining, translation
from slipstream.rpc.channel import open_channel
from slipstream.rpc.pod import Pod, run_pod
from slipstream.rpc.server import start_server
from slipstream.tasks import make_source
from slipstream.tokens import Tokens, load_tokens
from slipstream.types import START
from slipstream.v1.learner_pb2_grpc import add_FleetServicer_to_server
from slipstream.weights.group import backend_of
from slipstream.weights.manifest import model_fingerprint


async def main(pod: Pod) -> None:
    """Load, attach to replay, serve the fleet, and do the rounds, or as many as come before the stop."""
    config, stage = pod.config, sampled_stage(pod.config)
    run_dir = run_directory(config)
    served_dir = stage.teacher if isinstance(stage, DistillationStage) else config.model.directory()
    fingerprint, device = model_fingerprint(served_dir), pick_device(config.learner.device)
    fleet = Fleet(model_fingerprint=fingerprint, backend=backend_of(device), metrics=pod.metrics, log=pod.log)
    server = await start_server(
        config.learner.address,
        lambda s: add_FleetServicer_to_server(fleet, s),
        config=config.rpc,
        log=pod.log,
    )
    policy, version = await asyncio.to_thread(load, config, run_dir, device)
    served = policy
    if isinstance(stage, DistillationStage):
        served = await asyncio.to_thread(_load_served, served_dir, device, policy.dtype)
    else:
        fleet.version = version
    channel = open_channel(config.replay.address, config.rpc, log=pod.log)
    report = Report(run_dir, pod.metrics)
    replay, weights = ReplayClient(channel, config), asyncio.Lock()
    snapshot = Snapshot(served, Alone())
    await asyncio.to_thread(snapshot.take)
    publisher = Publisher(
        weights=snapshot.tensors,
        dtype=served.dtype,
        device=device,
        fleet=fleet,
        config=config.weights,
        model_fingerprint=fingerprint,
        metrics=pod.metrics,
        log=pod.log,
    )
    evaluator = Evaluator(
        config=config.evaluation, replay=replay, report=report, metrics=pod.metrics, log=pod.log
    )
    delivery: Delivery = (
        Apart(policy, config, fleet=fleet, report=report)
        if isinstance(stage, DistillationStage)
        else Served(snapshot, publisher, evaluator)
    )
    rounds = Rounds(
        config=config,
        run_dir=run_dir,
        policy=policy,
        training=training_of(policy, config, stage),
        delivery=delivery,
        replay=replay,
        report=report,
        weights=weights,
        version=version,
        log=pod.log,
    )
    try:
        attached = await replay.attach(version, START)
        pod.log.info("attached", version=version, released=attached.released, restored=attached.restored)
        if report.continues:
            report.event("resumed", step=version)
        pod.announce(server.address)
        await server.set_serving(True)
        async with asyncio.TaskGroup() as tasks:
            beside = tasks.create_task(catch_up(publisher, fleet, weights))
            await rounds.run(pod.stop)
            beside.cancel()
    finally:
        fleet.finish("the stage is over")
        publisher.close()
        report.close()
        await channel.close(None)
        await server.stop(grace=1)


def sampled_stage(config: RunConfig) -> SampledStage:
    """The stage that the configuration is of. Errors: ValueError when it is of none that samples."""
    if len(config.stages) != 1 or not isinstance(config.stages[0], SampledStage):
        raise ValueError("this program runs one stage that samples; `slipstream run` starts it for each")
    return config.stages[0]


def load(config: RunConfig, run_dir: Path, device: torch.device) -> tuple[Policy, int]:
    """The model of the last round, or of the start; and how many rounds have made it. Blocks."""
    without_progress_bars()
    torch.set_num_threads(config.learner.threads)
    torch.manual_seed(config.seed)
    source, rounds = config.model.directory(), rounds_of(run_dir)
    weights = rounds[-1] if rounds else source
    policy = load_policy(weights, source=source, device=device, dtype=getattr(torch, config.model.dtype))
    return policy, number_of(weights) if rounds else 0


def training_of(policy: Policy, config: RunConfig, stage: SampledStage) -> Training:
    """What the stage does with the groups of a round."""
    budget = config.rollout.max_new_tokens
    tokens = load_tokens(config.model.directory(), max_new_tokens=budget)
    if isinstance(stage, PreferenceStage):
        source = make_source(config.data, seed=config.seed)
        return PreferenceTraining(policy, config, stage, tokens=tokens, source=source)
    if isinstance(stage, DistillationStage):
        teacher = load_tokens(stage.teacher, max_new_tokens=budget)
        same = same_tokens((config.model.directory(), tokens), (stage.teacher, teacher))
        return VerifiedTraining(policy, config, stage, translate=translation(tokens, same_tokens=same))
    return VerifiedTraining(policy, config, stage)


def same_tokens(one: tuple[Path, Tokens], other: tuple[Path, Tokens]) -> bool:
    """Whether token ids, and what ends an answer, mean the same to both models."""
    files = [directory / "tokenizer.json" for directory, _ in (one, other)]
    if not all(file.is_file() for file in files):
        return False
    same_file = files[0].read_bytes() == files[1].read_bytes()
    return same_file and one[1].encode_answer("") == other[1].encode_answer("")


def _load_served(directory: Path, device: torch.device, dtype: torch.dtype) -> Policy:
    return load_policy(directory, source=directory, device=device, dtype=dtype)


if __name__ == "__main__":
    sys.exit(run_pod("learner", main))
