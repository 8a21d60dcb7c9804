"""The actor pod: `python -m slipstream.actor --config FILE --name ACTOR`."""

import asyncio
import sys
from dataclasses import replace
from functools import partial
from random import Random

import grpc

from slipstream.actor.directory import keep_looking
from slipstream.actor.environment import BoundEnvironment
from slipstream.actor.environment_rewards import EnvironmentRewards
from slipstream.actor.environments import EnvironmentResources, open_environments
from slipstream.actor.group_sampler import GroupSampler
from slipstream.actor.loop import Actor
from slipstream.actor.replay_client import ReplayClient
from slipstream.actor.reward_log import RewardLog
from slipstream.actor.rollouts import Rollouts
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
from slipstream.config.sections.run import EvaluationConfig
from slipstream.config.sources import BySource, by_source
from slipstream.config.stages import SampledStage
from slipstream.records import Sampling
from slipstream.rpc.channel import open_channel
from slipstream.rpc.pod import Pod, run_pod
from slipstream.served_version import ServedVersion
from slipstream.tokens import Tokens, load_engine_tokens


async def main(pod: Pod) -> None:
    """Lease, sample, score and insert until the pod is stopped."""
    config = pod.config
    replay, verifier = (
        open_channel(address, config.rpc, log=pod.log)
        for address in (config.replay.address, config.verifier.address)
    )
    served = ServedVersion()
    rollouts = Rollouts(
        connect=partial(_open_rollout, pod),
        silence_seconds=config.actor.silence_seconds,
        most_engines=config.actor.most_engines,
        staleness=config.staleness,
        served=served,
        metrics=pod.metrics,
        log=pod.log,
    )
    client = ReplayClient(replay, config.rpc, worker_id=pod.name)
    tokens = load_engine_tokens(config, config.model.directory())
    resources = EnvironmentResources(
        config=config, tokens=tokens, verifier=verifier, metrics=pod.metrics, log=pod.log
    )
    try:
        async with open_environments(resources) as environments:
            actor = Actor(
                sampler=make_group_sampler(pod, rollouts, verifier, environments, tokens),
                places=rollouts,
                replay=client,
                served=served,
                max_groups=config.actor.max_groups,
                group_timeout_seconds=config.rollout.group_timeout_seconds,
                heartbeat_seconds=config.replay.heartbeat_seconds,
                metrics=pod.metrics,
                log=pod.log,
            )
            pod.announce("")  # an actor serves nothing
            async with asyncio.TaskGroup() as tasks:
                looking = tasks.create_task(keep_looking(client, rollouts, pod.log))
                await actor.run(pod.stop, drain_seconds=config.actor.drain_seconds)
                looking.cancel()
    finally:
        await rollouts.close()
        for channel in (replay, verifier):
            await channel.close(None)


def make_group_sampler(
    pod: Pod,
    rollouts: Rollouts,
    verifier: grpc.aio.Channel,
    environments: BySource[BoundEnvironment],
    tokens: Tokens,
) -> GroupSampler:
    """Wire what turns a lease into a scored group."""
    config = pod.config
    sampling = Sampling(
        temperature=config.rollout.temperature,
        max_tokens=config.rollout.max_new_tokens,
        top_logprobs=config.algorithm.resolved_top_logprobs(),
        to_own_end=config.learner.replay_experts,
    )
    scorer = with_self_judges(
        VerifierClient(verifier, config.verifier, rewards=config.rewards),
        config.rewards,
        samplers=rollouts,
        tokens=tokens,
        metrics=pod.metrics,
    )
    scorer = with_step_labels(
        scorer,
        config,
        samplers=rollouts,
        tokens=tokens,
        sampling=replace(sampling, top_logprobs=0),
    )
    scorer = EnvironmentRewards(
        scorer,
        config.rewards,
        metrics=pod.metrics,
        keeps_steps=by_source(config, lambda source: not source.environment.has_turns),
    )
    return GroupSampler(
        worker_id=pod.name,
        environments=environments,
        tokens=tokens,
        scorer=RewardLog(scorer, {reward.name: reward.weight for reward in config.rewards}, log=pod.log),
        sampling=sampling,
        metrics=pod.metrics,
        log=pod.log,
        training=training_mode(config, tokens, worker=pod.name),
        evaluating=evaluation_mode(config.evaluation, seed=config.seed, worker=pod.name),
        seed=None if label_stage(config.stages) is None else config.seed,
    )


def training_mode(config: RunConfig, tokens: Tokens, *, worker: str) -> SamplingMode:
    """Return the sampling mode of training prompts: stages without rollout logprobs take every candidate."""
    rollout = config.rollout
    if rollout.sampling == "plain":
        return PlainSampling()
    if any(isinstance(stage, SampledStage) for stage in config.stages):
        return CandidateSampling(candidates=rollout.candidates, tokens=tokens)
    draw = Random(f"{config.seed}/{worker}/verbalized training").random
    return VerbalizedSampling(candidates=rollout.candidates, draw=draw)


def evaluation_mode(evaluation: EvaluationConfig, *, seed: int, worker: str) -> SamplingMode:
    """Return the sampling mode of held-out prompts."""
    if evaluation.sampling == "plain":
        return PlainSampling()
    draw = Random(f"{seed}/{worker}/verbalized").random
    return VerbalizedSampling(candidates=evaluation.candidates, draw=draw)


def _open_rollout(pod: Pod, address: str) -> grpc.aio.Channel:
    return open_channel(address, pod.config.rpc, log=pod.log, server_name=pod.config.rollout.server_name)


if __name__ == "__main__":
    sys.exit(run_pod("actor", main))
