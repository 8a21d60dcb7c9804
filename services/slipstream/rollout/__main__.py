"""The rollout pod: `python -m slipstream.rollout --config FILE --name WORKER`.

As the head of an engine over several nodes it takes `--node-rank 0 --master-addr HOST` too.
"""

import asyncio
import sys
from dataclasses import replace
from functools import partial
from random import Random

from slipstream.actor.environment import ENVIRONMENTS
from slipstream.actor.group_sampler import GroupSampler
from slipstream.actor.loop import Actor
from slipstream.actor.replay_client import ReplayClient
from slipstream.actor.reward_log import RewardLog
from slipstream.actor.sampling_modes import (
    CandidateSampling,
    PlainSampling,
    SamplingMode,
    VerbalizedSampling,
)
from slipstream.actor.self_judge import with_self_judges
from slipstream.actor.step_labels import label_stage, with_step_labels
from slipstream.actor.verifier_client import VerifierClient
from slipstream.config import RunConfig
from slipstream.config.stages import SampledStage
from slipstream.rollout.emulated_engine import EmulatedEngine
from slipstream.rollout.engine import Engine, Sampling
from slipstream.rollout.fleet import FleetMember, Identity
from slipstream.rollout.node_rank import NodeRank, parse_node_rank
from slipstream.rollout.state import show_state, state_of
from slipstream.rpc.channel import open_channel
from slipstream.rpc.pod import Pod, run_pod
from slipstream.rpc.server import Server, start_server
from slipstream.served_version import ServedVersion
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import Tokens, load_engine_tokens
from slipstream.weights.group import backend_of, nccl_version
from slipstream.weights.manifest import model_fingerprint

LEARNER_GONE_SECONDS = 5.0
"""Longer than for calls that can be retried: a lost stream costs a new process group."""


async def main(pod: Pod, *, node: NodeRank | None = None) -> None:
    """Start the engine, join the fleet, and work until the pod is stopped."""
    config = pod.config
    show_state(pod.metrics, lambda: "starting")
    with pod.unstoppable():
        engine = start_engine(config, pod.metrics, node=node)
    served = ServedVersion()
    server = await start_server(config.rollout.address, lambda _: None, config=config.rpc, log=pod.log)
    replay, verifier = (
        open_channel(address, config.rpc, log=pod.log)
        for address in (config.replay.address, config.verifier.address)
    )
    learner = open_channel(config.learner.address, config.rpc, log=pod.log, gone_seconds=LEARNER_GONE_SECONDS)
    channels = [replay, verifier, learner]
    member = FleetMember(
        engine=engine,
        identity=make_identity(pod),
        served=served,
        metrics=pod.metrics,
        log=pod.log,
    )
    tokens = load_engine_tokens(config, config.model.directory())
    scorer = with_self_judges(
        VerifierClient(verifier, config), config, engine=engine, tokens=tokens, metrics=pod.metrics
    )
    sampling = Sampling(
        temperature=config.rollout.temperature,
        max_tokens=config.rollout.max_new_tokens,
        top_logprobs=config.algorithm.resolved_top_logprobs(),
    )
    scorer = with_step_labels(
        scorer,
        config,
        engine=engine,
        tokens=tokens,
        sampling=replace(sampling, top_logprobs=0),
        metrics=pod.metrics,
    )
    sampler = GroupSampler(
        worker_id=pod.name,
        engine=engine,
        environment=ENVIRONMENTS[config.rollout.environment](),
        tokens=tokens,
        scorer=RewardLog(scorer, {reward.name: reward.weight for reward in config.rewards}, log=pod.log),
        sampling=sampling,
        metrics=pod.metrics,
        log=pod.log,
        training=training_mode(config, tokens, worker=pod.name),
        evaluating=evaluation_mode(config, worker=pod.name),
        seed=None if label_stage(config) is None else config.seed,
    )
    actor = Actor(
        sampler=sampler,
        replay=ReplayClient(replay, config, worker_id=pod.name),
        served=served,
        max_groups=config.rollout.max_groups,
        group_timeout_seconds=config.rollout.group_timeout_seconds,
        heartbeat_seconds=config.replay.heartbeat_seconds,
        metrics=pod.metrics,
        log=pod.log,
    )
    show_state(
        pod.metrics,
        lambda: state_of(served, groups_running=actor.groups_running, stopping=pod.stop.is_set()),
    )
    pod.health.ready_while(lambda: served.serving)
    pod.announce(server.address)
    try:
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(member.run(learner)),
                tasks.create_task(_serve_health(server, served)),
            ]
            await actor.run(pod.stop, drain_seconds=config.rollout.drain_seconds)
            for task in background:
                task.cancel()
    finally:
        await server.stop(grace=1)
        for channel in channels:
            await channel.close(None)
        await engine.close()


def start_engine(config: RunConfig, metrics: Metrics, *, node: NodeRank | None = None) -> Engine:
    """Start the configured engine. Blocks while vLLM loads the model."""
    if config.rollout.engine == "emulated":
        return EmulatedEngine(config)
    from slipstream.rollout.vllm_engine import start_vllm

    return start_vllm(config, config.model.directory(), metrics, node=node)


def training_mode(config: RunConfig, tokens: Tokens, *, worker: str) -> SamplingMode:
    """Return the sampling mode of training prompts: stages without rollout logprobs take every candidate."""
    rollout = config.rollout
    if rollout.sampling == "plain":
        return PlainSampling()
    if any(isinstance(stage, SampledStage) for stage in config.stages):
        return CandidateSampling(candidates=rollout.candidates, tokens=tokens)
    draw = Random(f"{config.seed}/{worker}/verbalized training").random
    return VerbalizedSampling(candidates=rollout.candidates, draw=draw)


def evaluation_mode(config: RunConfig, *, worker: str) -> SamplingMode:
    """Return the sampling mode of held-out prompts."""
    evaluation = config.evaluation
    if evaluation.sampling == "plain":
        return PlainSampling()
    draw = Random(f"{config.seed}/{worker}/verbalized").random
    return VerbalizedSampling(candidates=evaluation.candidates, draw=draw)


def make_identity(pod: Pod) -> Identity:
    """Return the facts with which this worker joins the fleet of the learner."""
    import torch

    on_gpu = pod.config.rollout.engine == "vllm" and torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    return Identity(
        worker_id=pod.name,
        model_fingerprint=model_fingerprint(pod.config.model.directory()),
        backend=backend_of(device),
        ranks=pod.config.rollout.tensor_parallel,
        nccl_version=nccl_version(device),
    )


async def _serve_health(server: Server, served: ServedVersion) -> None:
    """Report this rollout as healthy over gRPC once it serves a verified version."""
    await served.wait()
    await server.set_serving(True)


if __name__ == "__main__":
    own_node, arguments = parse_node_rank("rollout", sys.argv[1:])
    sys.exit(run_pod("rollout", partial(main, node=own_node), arguments))
