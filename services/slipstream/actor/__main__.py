"""The actor pod: `python -m slipstream.actor --config FILE --name ACTOR`."""

import asyncio
import sys
from dataclasses import replace
from functools import partial
from random import Random

import grpc

from slipstream import records, served_version
from slipstream.actor import (
    directory,
    environment,
    environment_rewards,
    group_sampler,
    loop,
    own_code,
    replay_client,
    reward_log,
    sampling_modes,
    self_judge,
    step_labels,
    verifier_client,
)
from slipstream.actor.environments import EnvironmentResources, open_environments
from slipstream.actor.rollouts import Rollouts
from slipstream.config import EvaluationConfig, RunConfig, sources, stages
from slipstream.rpc.channel import open_channel
from slipstream.rpc.pod import Pod, run_pod
from slipstream.tokens import Tokens, load_engine_tokens


async def main(pod: Pod) -> None:
    """Lease, sample, score and insert until the pod is stopped."""
    config = pod.config
    replay, verifier = (
        open_channel(address, config.rpc, log=pod.log)
        for address in (config.replay.address, config.verifier.address)
    )
    served = served_version.ServedVersion()
    rollouts = Rollouts(
        connect=partial(_open_rollout, pod),
        silence_seconds=config.actor.silence_seconds,
        most_engines=config.actor.most_engines,
        staleness=config.staleness,
        served=served,
        metrics=pod.metrics,
        log=pod.log,
    )
    client = replay_client.ReplayClient(replay, config.rpc, worker_id=pod.name)
    tokens = load_engine_tokens(config, config.model.directory())
    resources = EnvironmentResources(
        config=config, tokens=tokens, verifier=verifier, metrics=pod.metrics, log=pod.log
    )
    try:
        async with open_environments(resources) as environments:
            actor = loop.Actor(
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
                looking = tasks.create_task(directory.keep_looking(client, rollouts, pod.log))
                await actor.run(pod.stop, drain_seconds=config.actor.drain_seconds)
                looking.cancel()
    finally:
        if dropped := await own_code.end_left_tasks(own_code.END_SECONDS):
            pod.log.warning("tasks of environments did not end and were dropped", tasks=dropped)
        await rollouts.close()
        for channel in (replay, verifier):
            await channel.close(None)


def make_group_sampler(
    pod: Pod,
    rollouts: Rollouts,
    verifier: grpc.aio.Channel,
    environments: sources.BySource[environment.BoundEnvironment],
    tokens: Tokens,
) -> group_sampler.GroupSampler:
    """Wire what turns a lease into a scored group."""
    config = pod.config
    sampling = records.Sampling(
        temperature=config.rollout.temperature,
        max_tokens=config.rollout.max_new_tokens,
        top_logprobs=config.algorithm.resolved_top_logprobs(),
        to_own_end=config.learner.replay_experts,
    )
    scorer = self_judge.with_self_judges(
        verifier_client.VerifierClient(verifier, config.verifier, rewards=config.rewards),
        config.rewards,
        samplers=rollouts,
        tokens=tokens,
        metrics=pod.metrics,
    )
    scorer = step_labels.with_step_labels(
        scorer,
        config,
        samplers=rollouts,
        tokens=tokens,
        sampling=replace(sampling, top_logprobs=0),
    )
    scorer = environment_rewards.EnvironmentRewards(
        scorer,
        config.rewards,
        metrics=pod.metrics,
        keeps_steps=sources.by_source(config, lambda source: not source.environment.has_turns),
    )
    return group_sampler.GroupSampler(
        worker_id=pod.name,
        environments=environments,
        tokens=tokens,
        scorer=reward_log.RewardLog(
            scorer, {reward.name: reward.weight for reward in config.rewards}, log=pod.log
        ),
        sampling=sampling,
        metrics=pod.metrics,
        log=pod.log,
        training=training_mode(config, tokens, worker=pod.name),
        evaluating=evaluation_mode(config.evaluation, seed=config.seed, worker=pod.name),
        seed=None if step_labels.label_stage(config.stages) is None else config.seed,
    )


def training_mode(config: RunConfig, tokens: Tokens, *, worker: str) -> sampling_modes.SamplingMode:
    """Return the sampling mode of training prompts: stages without rollout logprobs take every candidate."""
    rollout = config.rollout
    if rollout.sampling == "plain":
        return sampling_modes.PlainSampling()
    if any(isinstance(stage, stages.SampledStage) for stage in config.stages):
        return sampling_modes.CandidateSampling(candidates=rollout.candidates, tokens=tokens)
    draw = Random(f"{config.seed}/{worker}/verbalized training").random
    return sampling_modes.VerbalizedSampling(candidates=rollout.candidates, draw=draw)


def evaluation_mode(evaluation: EvaluationConfig, *, seed: int, worker: str) -> sampling_modes.SamplingMode:
    """Return the sampling mode of held-out prompts."""
    if evaluation.sampling == "plain":
        return sampling_modes.PlainSampling()
    draw = Random(f"{seed}/{worker}/verbalized").random
    return sampling_modes.VerbalizedSampling(candidates=evaluation.candidates, draw=draw)


def _open_rollout(pod: Pod, address: str) -> grpc.aio.Channel:
    return open_channel(address, pod.config.rpc, log=pod.log, server_name=pod.config.rollout.server_name)


if __name__ == "__main__":
    sys.exit(run_pod("actor", main))
