"""The learner of a stage that samples first: `python -m slipstream.learner.stage --config FILE`.

The rollouts join the fleet, receive weights and fill the buffer as in reinforcement learning. In a
distillation they serve the teacher, and the policy trains in this process.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from slipstream import parallel, prompts, records
from slipstream.config import RunConfig, stages
from slipstream.learner.broadcast.publisher import catch_up
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.policy import loading, model
from slipstream.learner.ranks.ranks import Alone
from slipstream.learner.service import open_learner_service
from slipstream.learner.stages import preference, step_labels, verified
from slipstream.learner.stages.delivery import MeasuredLocally, NothingTrained, ServedByRollouts
from slipstream.learner.stages.demonstrations import DemonstrationSampler
from slipstream.learner.stages.rounds import Delivery, Rounds, Training, number_of, rounds_of
from slipstream.rpc.pod import Pod, run_pod
from slipstream.tokens import Tokens, load_tokens


async def main(pod: Pod) -> None:
    """Load, attach to replay, serve the fleet, and run the rounds to their end or until the pod stops."""
    config, stage = pod.config, sampled_stage(pod.config.stages)
    teacher = stage.teacher if isinstance(stage, stages.DistillationStage) else None
    device = loading.pick_device(config.learner.device)
    async with open_learner_service(
        pod, served=teacher or config.model.directory(), device=device, goodbye="the stage is over"
    ) as service:
        policy, version = await asyncio.to_thread(load, config, service.run_dir, device)
        served = policy
        if teacher is None:
            service.fleet.version = version
        else:
            served = await asyncio.to_thread(_load_served, teacher, device, policy.dtype)
        snapshot = Snapshot(
            served, Alone(), deltas=config.weights.deltas, parity_tokens=config.weights.parity_tokens
        )
        await asyncio.to_thread(snapshot.take)
        publisher = await service.publisher(snapshot)
        delivery: Delivery
        if isinstance(stage, stages.StepLabelsStage):
            delivery = NothingTrained(service.fleet)
        elif teacher is None:
            delivery = ServedByRollouts(snapshot, publisher, service.evaluator)
        else:
            delivery = MeasuredLocally(policy, config, fleet=service.fleet, report=service.report)
        rounds = Rounds(
            config=config,
            run_dir=service.run_dir,
            policy=policy,
            training=training_of(policy, config, stage),
            delivery=delivery,
            replay=service.replay,
            report=service.report,
            weights=service.weights,
            version=version,
            log=pod.log,
        )
        await service.begin(version, records.START)
        async with parallel.beside(catch_up(publisher, service.fleet, service.weights)):
            await rounds.run(pod.stop)


def sampled_stage(configured: Sequence[stages.Stage]) -> stages.SampledStage:
    """Return the stage that this program runs. Errors: ValueError if it is not one stage that samples."""
    if len(configured) != 1 or not isinstance(configured[0], stages.SampledStage):
        raise ValueError("this program runs one stage that samples; `slipstream run` starts it for each")
    return configured[0]


def load(config: RunConfig, run_dir: Path, device: torch.device) -> tuple[model.Policy, int]:
    """Load the model of the last round, or of the start; return it with the number of rounds. Blocks."""
    loading.without_progress_bars()
    torch.set_num_threads(config.learner.threads)
    torch.manual_seed(config.seed)
    source, rounds = config.model.directory(), rounds_of(run_dir)
    weights = rounds[-1] if rounds else source
    policy = loading.load_policy(
        weights, source=source, device=device, dtype=getattr(torch, config.model.dtype)
    )
    policy.saved_dtype = getattr(torch, config.learner.checkpoint.model_dtype or config.model.dtype)
    return policy, number_of(weights) if rounds else 0


def training_of(policy: model.Policy, config: RunConfig, stage: stages.SampledStage) -> Training:
    """Return the training of a round for this kind of stage."""
    budget = config.rollout.max_new_tokens
    tokens = load_tokens(config.model.directory(), max_new_tokens=budget)
    if isinstance(stage, stages.PreferenceStage):
        source = prompts.make_source(config.data, seed=config.seed)
        return preference.PreferenceTraining(policy, config, stage, tokens=tokens, source=source)
    if isinstance(stage, stages.StepLabelsStage):
        return step_labels.StepLabelling(stage, reward=config.evaluation.reward)
    demonstrations = _demonstrations(config, stage, tokens)
    if isinstance(stage, stages.DistillationStage):
        teacher = load_tokens(stage.teacher, max_new_tokens=budget)
        same = same_tokens((config.model.directory(), tokens), (stage.teacher, teacher))
        translate = verified.translation(tokens, same_tokens=same)
        return verified.VerifiedTraining(
            policy, config, stage, translate=translate, demonstrations=demonstrations
        )
    return verified.VerifiedTraining(policy, config, stage, demonstrations=demonstrations)


def _demonstrations(
    config: RunConfig, stage: stages.VerifiedStage, tokens: Tokens
) -> DemonstrationSampler | None:
    """Return the sampler of demonstrations; None for a stage without a mix."""
    if stage.mix is None:
        return None
    return DemonstrationSampler(
        stage.mix,
        source=prompts.make_source(stage.mix.data, seed=config.seed),
        tokens=tokens,
        most_answers=stage.groups * config.rollout.group_size,
    )


def same_tokens(one: tuple[Path, Tokens], other: tuple[Path, Tokens]) -> bool:
    """Return whether two models have the same token ids, and the same end of an answer."""
    files = [directory / "tokenizer.json" for directory, _ in (one, other)]
    if not all(file.is_file() for file in files):
        return False
    same_file = files[0].read_bytes() == files[1].read_bytes()
    return same_file and one[1].encode_answer("") == other[1].encode_answer("")


def _load_served(directory: Path, device: torch.device, dtype: torch.dtype) -> model.Policy:
    return loading.load_policy(directory, source=directory, device=device, dtype=dtype)


if __name__ == "__main__":
    sys.exit(run_pod("learner", main))
