"""Advantages from rewards by step: numbers worked by hand, and equality with rewards by outcome."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from slipstream.algorithms import StepRewards, group_advantages, process_advantages
from slipstream.algorithms.spec import ADVANTAGES

NAN = math.nan
GRPO = {"kind": "grpo", "ddof": 0, "epsilon": 1e-12}
RLOO = {"kind": "rloo"}
REINFORCE_PP = {"kind": "reinforce_pp", "group_mean": False, "weighting": "token", "epsilon": 1e-12}
BY_STEP = (GRPO, RLOO, REINFORCE_PP)


def steps(*completions: list[tuple[int, float]], outcomes: list[float] | None = None) -> StepRewards:
    """Completions as lists of (last token, reward)."""
    flat = [(place, *step) for place, each in enumerate(completions) for step in each]
    return StepRewards(
        completions_K=torch.tensor([place for place, _, _ in flat]),
        ends_K=torch.tensor([end for _, end, _ in flat]),
        values_K=torch.tensor([value for _, _, value in flat], dtype=torch.float64),
        outcomes_B=torch.tensor(outcomes or [0.0] * len(completions), dtype=torch.float64),
    )


def test_grpo_normalises_the_steps_of_the_group_together_and_sums_those_from_a_step_on() -> None:
    # Rewards 1, 0 | 2, 1, 1: mean 1, variance (0 + 1 + 1 + 0 + 0) / 5 = .4 (DeepSeekMath 4.1.3).
    rewards = steps([(1, 1.0), (3, 0.0)], [(0, 2.0), (1, 1.0), (4, 1.0)])
    advantages = process_advantages(GRPO, rewards, torch.tensor([7, 7]))
    z = 1 / math.sqrt(0.4)
    assert advantages.tolist() == pytest.approx([-z, -z, z, 0, 0])


def test_grpo_keeps_groups_apart_and_has_the_deviation_of_ddof_1_by_default() -> None:
    rewards = steps([(0, 1.0)], [(0, 5.0), (1, 7.0)], [(0, 0.0)], [(0, 9.0)])
    advantages = process_advantages({"kind": "grpo"}, rewards, torch.tensor([0, 1, 0, 1]))
    # Group 0: 1, 0: +-.5 / sqrt(.5). Group 1: 5, 7 | 9: mean 7, sum of squares 8, std 2: -1, 0 | 1.
    half = 0.5 / math.sqrt(0.5)
    assert advantages.tolist() == pytest.approx([half, -1, 0, -half, 1], rel=1e-5)


def test_the_reward_of_a_completion_is_part_of_its_last_step() -> None:
    apart = steps([(1, 1.0), (3, 0.0)], [(0, 2.0), (4, 1.0)], outcomes=[0.5, -1.0])
    together = steps([(1, 1.0), (3, 0.5)], [(0, 2.0), (4, 0.0)])
    for spec in (GRPO, REINFORCE_PP):
        advantages, expected = (process_advantages(spec, r, torch.tensor([0, 0])) for r in (apart, together))
        torch.testing.assert_close(advantages, expected)


def test_rloo_takes_the_mean_step_of_the_others_off_each_step_and_outcomes_have_their_own_baseline() -> None:
    rewards = steps([(0, 1.0), (2, 3.0)], [(1, 0.0)], [(0, 2.0), (1, 2.0)], outcomes=[1.0, 0.0, 0.0])
    advantages = process_advantages(RLOO, rewards, torch.tensor([0, 0, 0]))
    # Means of steps 2, 0, 2; baselines 1, 2, 1. Outcomes over the mean of the others: 1, -.5, -.5.
    # (1 - 1) + (3 - 1) + 1 = 3, (3 - 1) + 1 = 3 | (0 - 2) - .5 | (2 - 1) + (2 - 1) - .5, (2 - 1) - .5.
    assert advantages.tolist() == pytest.approx([3, 3, -2.5, 1.5, 0.5])


def test_reinforce_pp_normalises_the_rewards_to_go_over_the_tokens_of_the_batch() -> None:
    rewards = steps([(0, 1.0), (2, 1.0)], [(0, 0.0)])
    advantages = process_advantages(REINFORCE_PP, rewards, torch.tensor([0, 1]))
    # To go: 2 (one token), 1 (two tokens), 0 (one token): mean 1, variance (1 + 1) / 3.
    z = 1 / math.sqrt(2 / 3)
    assert advantages.tolist() == pytest.approx([z, 0, -z])


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[float], list[float], list[int], list[int]]:
    """Rewards of steps and of completions, lengths and groups."""
    size = draw(st.integers(2, 4)) * 2
    reward = st.floats(-2, 2).map(lambda x: round(x, 3))
    known_reward = st.one_of(reward, st.just(NAN))
    rewards, outcomes = (
        draw(st.lists(known_reward if which else reward, min_size=size, max_size=size)) for which in (1, 0)
    )
    lengths = draw(st.lists(st.integers(1, 9), min_size=size, max_size=size))
    return rewards, outcomes, lengths, [index // 2 for index in range(size)]


@given(batches())
def test_one_step_at_the_end_is_supervision_by_outcome(batch: Any) -> None:
    rewards, outcomes, lengths, groups = batch
    by_step = steps(
        *([(length - 1, reward)] for length, reward in zip(lengths, rewards, strict=True)), outcomes=outcomes
    )
    total = torch.tensor(rewards, dtype=torch.float64) + torch.tensor(outcomes, dtype=torch.float64)
    for spec in ({"kind": "grpo"}, RLOO, {**REINFORCE_PP, "epsilon": 1e-6}):
        advantages = process_advantages(spec, by_step, torch.tensor(groups))
        expected = group_advantages(spec, total, torch.tensor(groups), lengths=torch.tensor(lengths))
        torch.testing.assert_close(advantages, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("spec", BY_STEP, ids=lambda spec: spec["kind"])
def test_equal_steps_have_no_advantage(spec: dict[str, Any]) -> None:
    advantages = process_advantages(spec, steps([(0, 0.3)], [(4, 0.1 * 3)]), torch.tensor([0, 0]))
    assert advantages.tolist() == [0, 0]


@pytest.mark.parametrize("spec", BY_STEP, ids=lambda spec: spec["kind"])
@pytest.mark.parametrize("where", ["step", "outcome"])
def test_a_withheld_completion_has_no_say_and_no_advantage(spec: dict[str, Any], where: str) -> None:
    others = ([(0, 1.0), (2, 0.5)], [(1, 0.0)])
    bad = [(0, NAN if where == "step" else 4.0), (3, 5.0)]
    outcomes = [0.0, 0.0, NAN if where == "outcome" else 0.0]
    advantages = process_advantages(spec, steps(*others, bad, outcomes=outcomes), torch.zeros(3).long())
    expected = process_advantages(spec, steps(*others), torch.zeros(2).long())
    torch.testing.assert_close(advantages, torch.cat([expected, torch.zeros(2)]))


@pytest.mark.parametrize("spec", [GRPO, RLOO], ids=lambda spec: spec["kind"])
def test_a_completion_alone_is_not_compared_with_its_own_steps(spec: dict[str, Any]) -> None:
    advantages = process_advantages(spec, steps([(0, 1.0), (1, 2.0)], [(0, NAN)]), torch.tensor([0, 0]))
    assert advantages.tolist() == [0, 0, 0]


def test_tokens_belong_to_the_step_that_ends_at_or_behind_them() -> None:
    rewards = steps([(1, 0.0), (3, 0.0)], [(-1, 0.0)], [(0, 0.0), (5, 0.0)])
    completions, positions = torch.tensor([0, 0, 0, 0, 2, 2, 2]), torch.tensor([0, 1, 2, 3, 0, 1, 5])
    assert rewards.step_of(completions, positions).tolist() == [0, 0, 1, 1, 3, 4, 4]
    assert rewards.tokens_K.tolist() == [2, 2, 0, 1, 5]
    with pytest.raises(ValueError, match="got token 4 of completion 0, whose last step ends before it"):
        rewards.step_of(torch.tensor([0]), torch.tensor([4]))


@pytest.mark.parametrize("kind", [k for k in ADVANTAGES if k not in ("grpo", "rloo", "reinforce_pp", "gae")])
def test_an_estimator_that_no_source_defines_by_step_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=f"{kind}: no source defines it for rewards by step; use grpo"):
        process_advantages({"kind": kind}, steps([(0, 1.0)], [(0, 0.0)]), torch.tensor([0, 0]))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "rloo", "scale": "group"}, "set scale: none"),
        ({"kind": "reinforce_pp"}, "set group_mean: false and weighting: token"),
        ({"kind": "gae"}, "use slipstream.algorithms.gae"),
    ],
)
def test_what_an_estimator_needs_by_step_is_said(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        process_advantages(spec, steps([(0, 1.0)], [(0, 0.0)]), torch.tensor([0, 0]))


@pytest.mark.parametrize(
    ("given_steps", "message"),
    [
        (([(1, 0.0), (1, 0.0)],), "ends_K: got .1, 1., needs tokens .* that rise"),
        (([(-2, 0.0)],), "ends_K"),
        (([(0, math.inf)],), "step rewards: got an infinite one"),
        (([(0, 0.0)], []), "completions_K: got .0., needs every completion from 0 to 1"),
        (([], [(0, 0.0)]), "completions_K: got .1., needs every completion from 0 to 1"),
    ],
)
def test_steps_that_cannot_be_read_are_refused(given_steps: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        steps(*given_steps)
