"""Step scores as one reward and as token rewards, against numbers worked by hand and a loop."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.algorithms import group_advantages
from slipstream.algorithms.process_rewards import process_reward, step_rewards_to_go, token_rewards

NAN = math.nan
IDS = torch.tensor([0, 0, 0, 1, 1])


@pytest.mark.parametrize(
    ("how", "expected"),
    [("last", [0.5, 2.0]), ("mean", [1.0, 1.0]), ("min", [0.5, 0.0]), ("product", [0.75, 0.0])],
)
def test_steps_become_one_reward(how: Any, expected: list[float]) -> None:
    # steps 1, 1.5, 0.5 and 0, 2: means 3/3 and 2/2, products 1 * 1.5 * 0.5 and 0
    scores = torch.tensor([1.0, 1.5, 0.5, 0.0, 2.0], dtype=torch.float64)
    assert process_reward(scores, IDS, how).tolist() == expected


@pytest.mark.parametrize("how", ["last", "mean", "min", "product"])
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-2, 2) | st.just(NAN)), max_size=12))
def test_process_reward_is_a_loop_over_the_steps_of_each_sequence(how: Any, steps: list[Any]) -> None:
    scores = torch.tensor([score for _, score in steps], dtype=torch.float64)
    ids = torch.tensor([index for index, _ in steps], dtype=torch.long)
    for index, reward in enumerate(process_reward(scores, ids, how, 6).tolist()):
        own = [score for step, score in steps if step == index]
        is_known = how == "last" or not any(map(math.isnan, own))
        combine = {
            "last": lambda x: x[-1],
            "mean": lambda x: sum(x) / len(x),
            "min": min,
            "product": math.prod,
        }[how]
        expected = combine(own) if own and is_known else NAN
        assert reward == pytest.approx(expected, nan_ok=True)


def test_a_sequence_without_steps_is_withheld_from_its_group() -> None:
    rewards = process_reward(torch.tensor([0.0, 3.0]), torch.tensor([0, 2]), "min", sequences=3)
    assert group_advantages({"kind": "dr_grpo"}, rewards, torch.zeros(3).long()).tolist() == [-1.5, 0.0, 1.5]


def test_outcome_and_process_combine_as_weighted_components() -> None:
    # 1 + 0.5 * 0.5 against 0 + 0.5 * 1.5: totals 1.25, 0.75
    process = process_reward(torch.tensor([0.0, 1.0, 1.5]), torch.tensor([0, 0, 1]), "mean")
    rewards = torch.stack((torch.tensor([1.0, 0.0]), process), dim=1)
    weights = torch.tensor([1.0, 0.5])
    result = group_advantages({"kind": "dr_grpo"}, rewards, torch.tensor([4, 4]), weights=weights)
    assert result.tolist() == [0.25, -0.25]


def test_token_rewards_sit_on_the_last_token_of_each_step() -> None:
    ends = torch.tensor([4, 1, 4])  # two steps that end on one token add up
    assert token_rewards(torch.tensor([1.0, 2.0, 0.5]), ends, IDS).tolist() == [0, 2, 0, 0, 1.5]


def test_each_token_has_the_discounted_scores_from_it_to_its_end() -> None:
    # steps end on tokens 1 (score 2) and 3 (score 4); token 2 is the environment's and is no step of the
    # discount 1/2: token 1: 2 + 4/2 = 4, token 0: 4/2 = 2; the other sequence has 1 on its last of two
    mask, ids = torch.tensor([1, 1, 0, 1, 1, 1]), torch.tensor([0, 0, 0, 0, 1, 1])
    result = step_rewards_to_go(torch.tensor([2.0, 4.0, 1.0]), torch.tensor([1, 3, 5]), mask, ids, gamma=0.5)
    assert result.tolist() == [2.0, 4.0, 0.0, 4.0, 0.5, 1.0]


def test_no_steps_are_no_reward() -> None:
    nothing = torch.zeros(0)
    assert process_reward(nothing, nothing.int(), "product").tolist() == []
    assert step_rewards_to_go(nothing, nothing.int(), torch.ones(5), IDS).tolist() == [0.0] * 5


@pytest.mark.parametrize("how", ["last", "mean", "min", "product"])
def test_no_steps_of_known_sequences_withhold_them(how: Any) -> None:
    assert process_reward(torch.zeros(0), torch.zeros(0).long(), how, 2).isnan().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: process_reward(torch.zeros(5), IDS, "max"), "how: got 'max'"),  # type: ignore[arg-type]
        (lambda: process_reward(torch.zeros(4), IDS, "min"), "step_sequence_ids: got shape"),
        (lambda: process_reward(torch.zeros(5), IDS, "min", 1), "step_sequence_ids: got ids from 0 to 1"),
        (lambda: process_reward(torch.zeros(5), IDS - 1, "min"), "step_sequence_ids: got ids from -1"),
        (lambda: process_reward(torch.full((5,), math.inf), IDS, "min"), "step_scores: got an infinite"),
        (lambda: token_rewards(torch.zeros(1), torch.tensor([5]), IDS), "step_ends: got .5.*0 to 4"),
        (lambda: token_rewards(torch.zeros(1), torch.tensor([-1]), IDS), "step_ends: got .-1"),
        (lambda: token_rewards(torch.tensor([NAN]), torch.tensor([0]), IDS), "step_scores: got a number"),
        (lambda: token_rewards(torch.zeros(1, 1), torch.tensor([0]), IDS), "step_scores: got shape"),
        (
            lambda: step_rewards_to_go(torch.zeros(1), torch.tensor([1]), torch.tensor([1, 0, 1, 1, 1]), IDS),
            "step_ends: got a token where mask is 0",
        ),
    ],
)
def test_malformed_input_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
