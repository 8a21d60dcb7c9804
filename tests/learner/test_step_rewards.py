"""Rewards by step in a training step: each token gets the advantage of its step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from learner.fakes import completion, config_with, group
from learner.test_critic import configured as with_critic
from learner.test_critic import loss_of, training_of
from slipstream.algorithms.spec import Shaping
from slipstream.config import RunConfig
from slipstream.learner.batches.batch import make_sequences, sampled_tokens
from slipstream.learner.batches.rows import empty_row, make_row
from slipstream.learner.policy.model import Policy
from slipstream.learner.training.rewards import batch_rewards
from slipstream.learner.training.step import TrainingStep
from slipstream.learner.training.step_rewards import advantages_by_step, step_rewards, token_rewards_of_row
from slipstream.records import Completion, Group, Outcome, Reward, StepReward

PROCESS: dict[str, Any] = {"preset": "grpo", "objective": {"kind": "is"}, "aggregation": "token_mean"}
GRPO = {"kind": "grpo", "ddof": 0}


def by_step(
    tokens: Sequence[int], *steps: tuple[int, float], outcome: float | None = None, mask: Sequence[int] = ()
) -> Completion:
    """An answer whose steps are given as (tokens up to the end, score), with an outcome beside them."""
    scored = tuple(StepReward(value=v, text_end=end, token_end=end) for end, v in steps)
    rewards = [Reward(name="steps", value=0.5, outcome=Outcome.SCORE, steps=scored)]
    if outcome is not None:
        rewards.append(Reward(name="exact_match", value=outcome, outcome=Outcome.SCORE))
    return replace(completion(tokens, mask=mask), rewards=tuple(rewards))


def configured(*overrides: str, weight: float = 1.0, **algorithm: Any) -> RunConfig:
    rewards = [
        {"name": "steps", "kind": "custom", "function": "a:b", "weight": weight},
        {"name": "exact_match", "weight": 2.0},
    ]
    chosen = PROCESS | {"supervision": "process"} | algorithm
    return config_with("learner.max_grad_norm=1e9", *overrides, rewards=rewards, algorithm=chosen)


def test_each_token_trains_with_the_advantage_of_its_step(new_policy: Callable[[], Policy]) -> None:
    # Rewards 1, 0 | 2, 1, 1: mean 1, std sqrt(.4); the sums of what is left are -z, -z | z, 0, 0.
    groups = [
        group(by_step((5, 6, 7, 8), (2, 1.0), (4, 0.0)), by_step((9, 10, 11), (1, 2.0), (2, 1.0), (3, 1.0)))
    ]
    z = 1 / math.sqrt(0.4)
    training = TrainingStep(new_policy(), configured(advantage=GRPO))
    expected = expected_loss(training, groups, [-z, -z, -z, -z, z, 0, 0])
    result = training.train(groups, version=0)
    assert result.loss == pytest.approx(expected, rel=1e-4)
    assert result.gradient_norm > 0


@pytest.mark.parametrize("row", [16, 64])
def test_equal_answers_share_the_advantages_of_their_steps(
    new_policy: Callable[[], Policy], row: int
) -> None:
    # Rewards 1, 0 | 1, 0 | 3: mean 1, std sqrt(6 / 5); the sums of what is left are -z, -z | -z, -z | 2z, and
    # an answer that is there twice trains with half of them.
    twin = by_step((5, 6, 7), (2, 1.0), (3, 0.0))
    groups = [group(twin, twin, by_step((8, 9), (2, 3.0)))]
    z = 1 / math.sqrt(6 / 5)
    shaping = {"duplicates": "share"}
    config = configured(f"learner.max_tokens_per_row={row}", advantage=GRPO, shaping=shaping)
    training = TrainingStep(new_policy(), config)
    advantages = [-z / 2, -z / 2, -z / 2, -z / 2, -z / 2, -z / 2, 2 * z, 2 * z]
    expected = expected_loss(training, groups, advantages)
    assert abs(expected) > 0.01
    assert training.train(groups, version=0).loss == pytest.approx(expected, rel=1e-4)


def expected_loss(training: TrainingStep, groups: list[Group], advantages: list[float]) -> float:
    """Return the loss of the importance-weighted objective over the mean of all tokens, answer by answer."""
    lengths = iter(advantages)
    nested = [[next(lengths) for bit in answer.mask if bit] for each in groups for answer in each.completions]
    return loss_of(training, nested, groups)


@pytest.mark.parametrize("row", [16, 64])
def test_advantages_do_not_depend_on_the_rows(new_policy: Callable[[], Policy], row: int) -> None:
    groups = [
        group(by_step((5, 6, 7), (1, 0.2), (3, 0.9)), by_step((8, 9), (2, 0.4)), name="a"),
        group(by_step((4, 4), (1, 1.0), (2, 0.0)), by_step((10, 3, 2), (3, 0.1)), name="b"),
    ]
    config = configured(f"learner.max_tokens_per_row={row}", advantage=GRPO)
    result = TrainingStep(new_policy(), config).train(groups, version=0)
    unsplit = TrainingStep(new_policy(), configured(advantage=GRPO)).train(groups, version=0)
    assert result.loss == pytest.approx(unsplit.loss, rel=1e-4)
    assert result.gradient_norm == pytest.approx(unsplit.gradient_norm, rel=1e-4)


def test_one_step_at_the_end_trains_as_the_outcome_does(new_policy: Callable[[], Policy]) -> None:
    def scored(value: float, tokens: Sequence[int]) -> Completion:
        answer = by_step(tokens, (len(tokens), value), outcome=value / 2)
        steps, outcome = answer.rewards
        return replace(answer, rewards=(replace(steps, value=value), outcome))

    groups = [group(scored(1.0, (5, 6, 7)), scored(0.3, (8, 9)))]
    for advantage in (
        GRPO,
        {"kind": "rloo"},
        {"kind": "reinforce_pp", "group_mean": False, "weighting": "token"},
    ):
        results = [
            TrainingStep(new_policy(), configured(advantage=advantage, supervision=how)).train(
                groups, version=0
            )
            for how in ("process", "outcome")
        ]
        assert results[0].loss == pytest.approx(results[1].loss, rel=1e-5)
        assert results[0].gradient_norm == pytest.approx(results[1].gradient_norm, rel=1e-5)
        assert results[0].gradient_norm > 0


def test_with_a_critic_the_rewards_to_go_are_those_of_the_steps_that_are_left(policy: Policy) -> None:
    algorithm = {"preset": "ppo", "advantage": {"kind": "gae", "whiten": False}, "objective": {"kind": "is"}}
    groups = [group(by_step((5, 6, 7), (1, 0.25), (3, 0.5)), by_step((8, 9), (2, 1.0)))]
    config = with_critic(policy, algorithm=algorithm | {"supervision": "process"})
    rewards = configured().rewards
    training = training_of(policy, config.model_copy(update={"rewards": rewards[:1]}))
    expected = expected_loss(training, groups, [0.75, 0.5, 0.5, 1, 1])
    result = training.train(groups, version=0)
    assert result.loss == pytest.approx(expected, rel=1e-4)


WEIGHTS = {"steps": 0.5, "exact_match": 2.0}


def read(groups: list[Group]) -> tuple[list[float], list[int], list[float]]:
    steps = step_rewards(groups, batch_rewards(groups, WEIGHTS, Shaping()), WEIGHTS)
    return steps.values_K.tolist(), steps.ends_K.tolist(), steps.outcomes_B.tolist()


def test_scores_are_weighted_and_other_rewards_are_those_of_the_completion() -> None:
    values, ends, outcomes = read([group(by_step((5, 6, 7), (2, 1.0), (3, 0.2), outcome=0.25))])
    assert (values, ends, outcomes) == (pytest.approx([0.5, 0.1]), [1, 2], [0.5])


def test_a_step_that_ends_in_an_environment_s_tokens_ends_with_the_sampled_ones_before() -> None:
    answer = by_step((5, 6, 7, 8, 9), (3, 1.0), (5, 0.4), mask=(1, 1, 0, 1, 1), outcome=0.0)
    assert read([group(answer)])[:2] == (pytest.approx([0.5, 0.2]), [1, 3])
    early = by_step((5, 6, 7), (1, 1.0), (2, 1.0), (3, 0.4), mask=(0, 1, 1), outcome=0.0)
    assert read([group(early)])[:2] == (pytest.approx([1.0, 0.2]), [0, 1])  # two steps on one token add up


def test_an_answer_whose_steps_were_not_scored_counts_as_one_step_and_a_withheld_one_not_at_all() -> None:
    other = by_step((5, 6), (1, 1.0), (2, 0.0), outcome=1.0)
    steps, outcome = by_step((8, 9), outcome=1.0).rewards
    invalid = replace(completion((8, 9)), rewards=(replace(steps, outcome=Outcome.INVALID_ANSWER), outcome))
    withheld = completion((4, 4, 4), reward=None)
    values, ends, outcomes = read([group(other, invalid, withheld)])
    assert values[:3] == [0.5, 0.0, 0.25]
    assert ends == [0, 1, 1, 2]
    assert math.isnan(values[3])
    assert outcomes[:2] == [2.0, 2.0]
    assert math.isnan(outcomes[2])


def test_a_row_that_only_keeps_a_rank_in_step_has_nothing() -> None:
    nothing = by_step((3,), (1, 0.5), outcome=0.0, mask=(0,))
    groups = [group(nothing, by_step((5, 6), (2, 1.0), outcome=0.0))]
    steps = step_rewards(groups, batch_rewards(groups, WEIGHTS, Shaping()), WEIGHTS)
    row = empty_row(torch.device("cpu"))
    (advantage_T,) = advantages_by_step(
        configured(advantage=GRPO).algorithm.resolved_advantage(), steps, torch.tensor([0, 0]), [row]
    )
    assert advantage_T.tolist() == [0]
    assert token_rewards_of_row(steps, row).tolist() == [0]


def test_the_rewards_of_a_row_are_at_the_last_tokens_of_its_own_steps() -> None:
    groups = [
        group(by_step((5, 6), (1, 2.0), (2, 4.0), outcome=1.0), by_step((7,), (1, 6.0), outcome=0.0)),
        group(by_step((8, 9, 3), (3, 8.0), outcome=0.5), name="b"),
    ]
    steps = step_rewards(groups, batch_rewards(groups, WEIGHTS, Shaping()), WEIGHTS)
    sequences = make_sequences(groups, Shaping())
    row = make_row([sequences[2], sequences[0]], sampled_tokens(sequences), torch.device("cpu"))
    assert token_rewards_of_row(steps, row).tolist() == [0, 0, 4 + 1, 1, 2 + 2]
