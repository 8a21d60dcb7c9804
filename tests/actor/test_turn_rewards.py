"""Rewards by turn: a reward that an environment gives after a turn counts for that turn in the learner."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from actor.test_episodes import CUSTOM, Verifier, failure, played_by
from rollout.fakes import prompt, scenario, small_config, turn
from slipstream.actor.environment import Episode
from slipstream.actor.environment_rewards import EnvironmentRewards
from slipstream.actor.steps import with_token_ends
from slipstream.algorithms import gae
from slipstream.algorithms.spec import Grpo, Shaping
from slipstream.config.sources import BySource
from slipstream.learner.batches.batch import make_sequences, sampled_tokens
from slipstream.learner.batches.rows import make_row
from slipstream.learner.training.rewards import batch_rewards
from slipstream.learner.training.step_rewards import advantages_by_step, step_rewards, token_rewards_of_row
from slipstream.records import Completion, FinishReason, Group, Outcome, Reward, StepReward, Turn
from slipstream.rpc import codec
from slipstream.rpc.group_checks import check_group
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import types_pb2
from slipstream.v1.packed_pb2 import PackedGroup

REWARDS = [{"name": "progress", "kind": "environment", "weight": 2.0}, {"name": "exact_match"}]
CPU = torch.device("cpu")


def turns(*sizes: int) -> list[Turn]:
    """Return turns of these sizes, with tokens numbered from 10, sampled by version 0."""
    first, made = 10, []
    for size in sizes:
        made.append(turn(range(first, first + size), (0, size)))
        first += size
    return made


async def scored(*completions: Completion) -> Group:
    """Return the group as the actor sends it to replay and the learner decodes it."""
    config = small_config(data={"kind": "addition", "environment": CUSTOM}, rewards=REWARDS)
    scorer = EnvironmentRewards(
        Verifier(), config.rewards, metrics=Metrics(), keeps_steps=BySource({"": False})
    )
    group = Group(
        group_id="g",
        lease_epoch=1,
        dispatch_index=0,
        prompt=prompt(),
        prompt_token_ids=(1, 2),
        completions=tuple(
            with_token_ends(each, lambda ids: " ".join(map(str, ids)))
            for each in await scorer.score(prompt(), completions)
        ),
        worker_id="w",
    )
    payload = codec.group_to_proto(group).SerializeToString()
    check_group(PackedGroup.FromString(payload), 100)
    return codec.group_from_proto(types_pb2.Group.FromString(payload))


@scenario
async def test_rewards_by_turn_reach_the_tokens_of_their_turn_and_of_earlier_turns() -> None:
    async def good(episode: Episode) -> None:
        await episode.sample()
        episode.observe("90 91")
        episode.reward("progress", 0.5)
        await episode.sample()
        episode.observe("92")
        episode.reward("progress", 1.0)

    async def bad(episode: Episode) -> None:
        await episode.sample()
        episode.observe("93")
        await episode.sample()
        episode.rewards["progress"] = 0.0

    first = await played_by(good, turns=turns(2, 1))
    second = await played_by(bad, turns=turns(1, 2))
    group = await scored(first.completion, second.completion)
    progress, exact = group.completions[0].rewards
    assert (progress.value, exact.value) == (1.5, 1.0)
    assert progress.steps == (
        StepReward(value=0.5, text_end=0, token_end=2),
        StepReward(value=1.0, text_end=0, token_end=5),
    )
    # Steps, with weight 2, and exact_match 1 at the end: 1, 2 + 1 | 0 + 1. Mean 5/3; deviations -2/3, 4/3,
    # -2/3; std (ddof 0) sqrt(8/9). Sums over a step and the later ones: 2/3, 4/3 | -2/3.
    std = math.sqrt(8 / 9)
    advantages = by_token([group], Grpo(ddof=0, epsilon=1e-6))
    expected = [[2 / 3] * 2 + [4 / 3], [-2 / 3] * 3]
    assert [len(each) for each in advantages] == [3, 3], "observations have no advantage"
    for each, wanted in zip(advantages, expected, strict=True):
        assert each == pytest.approx([a / std for a in wanted], rel=1e-4)


def by_token(groups: list[Group], spec: Any) -> list[list[float]]:
    """Return the advantages of the sampled tokens of each segment, as the loss reads them."""
    weights = {"progress": 2.0, "exact_match": 1.0}
    rewards = batch_rewards(groups, weights, Shaping())
    steps = step_rewards(groups, rewards, weights)
    sequences = make_sequences(groups, Shaping())
    rows = [make_row([each], sampled_tokens(sequences), CPU) for each in sequences]
    return [each.tolist() for each in advantages_by_step(spec, steps, rewards.group_ids_B, rows)]


def returns(groups: list[Group]) -> list[list[float]]:
    """Return the sums of rewards from each token on: the advantages of a critic whose values are 0."""
    weights = {"progress": 2.0, "exact_match": 1.0}
    steps = step_rewards(groups, batch_rewards(groups, weights, Shaping()), weights)
    sequences = make_sequences(groups, Shaping())
    of_sequences = []
    for each in sequences:
        row = make_row([each], sampled_tokens(sequences), CPU)
        reward_T = token_rewards_of_row(steps, row)
        of_sequences.append(
            gae(reward_T, torch.zeros_like(reward_T), row.mask_T, row.sequence_ids_T)[0].tolist()
        )
    return of_sequences


async def sub_agents(episode: Episode) -> None:
    """Run the main conversation, a sub-agent, and the main conversation again, with a reward after each."""
    await episode.sample()
    episode.reward("progress", 0.25)
    agent = episode.begin_segment((7, 7))
    await episode.sample_in(agent)
    episode.reward("progress", 0.5)
    episode.observe("90")
    await episode.sample()
    episode.reward("progress", 1.0)


@scenario
async def test_a_turn_has_the_rewards_after_it_in_any_segment() -> None:
    played = await played_by(sub_agents, turns=turns(2, 1, 1))
    completion = played.completion
    assert [each.token_ids for each in completion.segments] == [(10, 11, 90, 13), (12,)]
    assert [[end.number for end in each.turn_ends] for each in completion.segments] == [[0, 2], [1]]
    (progress,) = completion.rewards
    assert [(s.value, s.segment, s.token_end) for s in progress.steps] == [
        (0.25, 0, 2),
        (0.5, 1, 1),
        (1.0, 0, 4),
    ]
    group = await scored(completion)
    # 2 × (.25 + .5 + 1) + 1 for the first turn; 2 × (.5 + 1) + 1 for the sub-agent; 2 × 1 + 1 for the last.
    assert returns([group]) == [[4.5, 4.5, 3.0], [4.0]]


@scenario
async def test_a_completion_of_one_segment_has_no_ends_of_turns() -> None:
    async def play(episode: Episode) -> None:
        await episode.sample()
        await episode.sample()

    played = await played_by(play, turns=turns(1, 2))
    assert (played.turns, played.completion.turn_ends) == (2, ())


@scenario
async def test_steps_of_the_verifier_are_ignored_in_a_run_with_an_environment() -> None:
    class Stepping(Verifier):
        async def score(self, prompt: Any, completions: Sequence[Completion]) -> list[Completion]:
            steps = (StepReward(value=1.0, text_end=1),)
            reward = Reward(name="exact_match", value=1.0, outcome=Outcome.SCORE, steps=steps)
            return [replace(completion, rewards=(reward,)) for completion in completions]

    async def play(episode: Episode) -> None:
        await episode.sample()
        episode.rewards["progress"] = 1.0

    for environment, kept in ((CUSTOM, 0), ({"kind": "single_turn"}, 1)):
        rewards = REWARDS if environment is CUSTOM else REWARDS[1:]
        config = small_config(data={"kind": "addition", "environment": environment}, rewards=rewards)
        scorer = EnvironmentRewards(
            Stepping(), config.rewards, metrics=Metrics(), keeps_steps=BySource({"": bool(kept)})
        )
        (completion,) = await scorer.score(prompt(), [(await played_by(play)).completion])
        assert len(completion.rewards[-1].steps) == kept


@scenario
async def test_invalid_rewards_by_turn_withhold_the_episode() -> None:
    async def early(episode: Episode) -> None:
        episode.reward("progress", 1.0)

    async def twice(episode: Episode) -> None:
        await episode.sample()
        episode.reward("progress", 1.0)
        episode.reward("other", 1.0)
        episode.reward("progress", 1.0)

    async def not_finite(episode: Episode) -> None:
        await episode.sample()
        episode.reward("progress", math.inf)

    async def both(episode: Episode) -> None:
        await episode.sample()
        episode.reward("progress", 1.0)
        episode.rewards["progress"] = 2.0

    for play, reason in (
        (early, "'progress' needs a turn before it"),
        (twice, "no turn was sampled since the previous reward 'progress'"),
        (not_finite, "got inf for 'progress', which must be a finite number"),
        (both, "set episode.rewards['progress'] after episode.reward('progress', ...)"),
    ):
        assert reason in failure(await played_by(play)), play.__name__


@scenario
async def test_a_completion_of_several_segments_is_cut_if_its_last_turn_is() -> None:
    def play(later: bool) -> Callable[[Episode], Any]:
        async def run(episode: Episode) -> None:
            first = episode.segments[0]
            second = episode.begin_segment((7,))
            for segment in (second, first) if later else (first, second):
                await episode.sample_in(segment)

        return run

    for later, reason in ((False, FinishReason.STOP), (True, FinishReason.STOP)):
        truncated, complete = (
            turn([5], (0, 1), finish=finish) for finish in (FinishReason.LENGTH, FinishReason.STOP)
        )
        assert (
            await played_by(play(later), turns=[truncated, complete], max_tokens=1)
        ).completion.finish_reason is reason
        cut_last = (await played_by(play(later), turns=[complete, truncated], max_tokens=1)).completion
        assert cut_last.finish_reason is FinishReason.LENGTH
