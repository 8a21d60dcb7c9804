"""Advantages against numbers worked by hand, and the identities of ALGORITHMS.md, section 3.11."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.algorithms import group_advantages
from slipstream.algorithms.spec import ADVANTAGES, Grpo
from torch import Tensor

NAN = math.nan
GROUPS = st.lists(
    st.lists(st.integers(-20, 20).map(lambda reward: reward / 4), min_size=2, max_size=5),
    min_size=1,
    max_size=4,
)


def advantages(kind: str, rewards: list[Any], groups: list[int], **fields: Any) -> list[float]:
    spec = {"kind": kind, **fields}
    return group_advantages(spec, torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups)).tolist()


def batch(groups: list[list[float]]) -> tuple[Tensor, Tensor]:
    rewards = [reward for group in groups for reward in group]
    ids = [index for index, group in enumerate(groups) for _ in group]
    return torch.tensor(rewards, dtype=torch.float64), torch.tensor(ids)


def test_grpo_divides_by_the_sample_deviation_of_the_group() -> None:
    # 1, 0, 0, 1: mean 1/2, squares 4 * 1/4 = 1, ddof 1: std = sqrt(1/3), A = (1/2) sqrt(3) = 0.8660254
    assert advantages("grpo", [1, 0, 0, 1], [7, 7, 7, 7]) == pytest.approx(
        [0.8660254, -0.8660254, -0.8660254, 0.8660254], rel=1e-5
    )


def test_grpo_of_two_is_one_over_root_two_with_ddof_one_and_one_with_ddof_zero() -> None:
    assert advantages("grpo", [3, 1], [0, 0]) == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)], rel=1e-5)
    assert advantages("grpo", [3, 1], [0, 0], ddof=0) == pytest.approx([1.0, -1.0], rel=1e-5)


def test_dr_grpo_is_the_reward_minus_the_group_mean_in_any_order() -> None:
    # group 5: 1, 4 -> mean 2.5; group 2: 0, 3, 6 -> mean 3
    assert advantages("dr_grpo", [1, 0, 4, 3, 6], [5, 2, 5, 2, 2]) == [-1.5, -3.0, 1.5, 0.0, 3.0]


def test_rloo_subtracts_the_mean_of_the_others() -> None:
    # 0 - (3 + 6)/2, 3 - (0 + 6)/2, 6 - (0 + 3)/2
    assert advantages("rloo", [0, 3, 6], [0, 0, 0]) == pytest.approx([-4.5, 0.0, 4.5])


def test_batch_scaled_centres_by_group_and_divides_by_the_deviation_of_the_batch() -> None:
    # centred: -1, 1, -2, 2; squares 10; n - 1 = 3; std = sqrt(10/3) = 1.8257419; 1/std = 0.5477226
    assert advantages("batch_scaled", [0, 2, 10, 14], [0, 0, 1, 1]) == pytest.approx(
        [-0.5477226, 0.5477226, -1.0954451, 1.0954451], rel=1e-5
    )


def test_batch_scaled_leaves_a_group_with_one_score_out_of_the_deviation() -> None:
    # centred: -1, 1 of group 0; group 1 has no baseline; std = sqrt(2 / 1), 1 / std = 0.7071068
    assert advantages("batch_scaled", [0, 2, 5, NAN], [0, 0, 1, 1]) == pytest.approx(
        [-0.7071068, 0.7071068, 0.0, 0.0], rel=1e-5
    )


def test_reward_components_are_summed() -> None:
    assert advantages("dr_grpo", [[1, 0.5], [0, 0.5]], [0, 0]) == [0.5, -0.5]


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_equal_rewards_give_exactly_zero_in_spite_of_rounding(kind: str) -> None:
    assert advantages(kind, [0.1 * 3, 0.3, 0.1 + 0.2, 5, 6], [0, 0, 0, 1, 1])[:3] == [0.0, 0.0, 0.0]
    assert advantages(kind, [0.1 * 3] * 3, [0, 0, 0]) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_a_withheld_completion_has_no_advantage_and_no_part_in_the_statistics(kind: str) -> None:
    withheld = advantages(kind, [1, NAN, 0, 4, 2], [0, 0, 0, 1, 1])
    without = advantages(kind, [1, 0, 4, 2], [0, 0, 1, 1])
    assert withheld == [without[0], 0.0, *without[1:]]


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_one_scored_completion_in_a_group_or_none_gives_zero(kind: str) -> None:
    assert advantages(kind, [1, NAN, NAN, NAN], [0, 0, 1, 1]) == [0.0] * 4


def test_a_completion_with_one_component_missing_is_withheld() -> None:
    assert advantages("dr_grpo", [[1, NAN], [0, 1], [2, 1]], [0, 0, 0]) == [0.0, -1.0, 1.0]


def test_a_group_without_a_second_member_is_refused() -> None:
    with pytest.raises(ValueError, match="group_ids: got a single completion in group 9"):
        advantages("grpo", [1, 0, 1], [3, 3, 9])


@pytest.mark.parametrize(
    ("rewards", "groups", "message"),
    [
        (torch.zeros(3), torch.zeros(2, dtype=torch.long), "group_ids: got shape"),
        (torch.zeros(2), torch.zeros(2), "group_ids: got torch.float32"),
        (torch.zeros(1, 1, 1), torch.zeros(1, dtype=torch.long), "rewards: got shape"),
        (torch.tensor([0.0, math.inf]), torch.zeros(2, dtype=torch.long), "infinite"),
    ],
)
def test_malformed_input_is_refused(rewards: Tensor, groups: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_advantages(Grpo(), rewards, groups)


def test_an_empty_batch_has_no_advantages_and_the_result_is_float32() -> None:
    result = group_advantages(Grpo(), torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.long))
    assert result.shape == (0,)
    assert result.dtype == torch.float32


@settings(max_examples=30, deadline=None)
@given(GROUPS)
def test_rloo_is_dr_grpo_times_g_over_g_minus_one(groups: list[list[float]]) -> None:
    rewards, ids = batch(groups)
    factor = torch.tensor([len(g) / (len(g) - 1) for g in groups for _ in g])
    torch.testing.assert_close(
        group_advantages({"kind": "rloo"}, rewards, ids),
        group_advantages({"kind": "dr_grpo"}, rewards, ids) * factor,
    )


@settings(max_examples=30, deadline=None)
@given(GROUPS, st.sampled_from(sorted(ADVANTAGES)), st.integers(-8, 8), st.randoms())
def test_every_estimator_ignores_a_shift_follows_a_permutation_and_sums_to_zero(
    groups: list[list[float]], kind: str, shift: int, random: Any
) -> None:
    rewards, ids = batch(groups)
    order = torch.tensor(random.sample(range(len(ids)), len(ids)))
    result = group_advantages({"kind": kind}, rewards, ids)
    torch.testing.assert_close(group_advantages({"kind": kind}, rewards + shift * ids, ids), result)
    torch.testing.assert_close(group_advantages({"kind": kind}, rewards[order], ids[order]), result[order])
    for index in range(len(groups)):
        assert float(result[ids == index].double().sum()) == pytest.approx(0.0, abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(GROUPS, st.sampled_from([0.5, 2.0, 16.0]))
def test_dr_grpo_and_rloo_scale_with_the_reward_and_grpo_does_not(
    groups: list[list[float]], scale: float
) -> None:
    rewards, ids = batch(groups)
    for kind, factor in (("dr_grpo", scale), ("rloo", scale), ("grpo", 1.0), ("batch_scaled", 1.0)):
        result, scaled = (group_advantages({"kind": kind}, r, ids) for r in (rewards, rewards * scale))
        torch.testing.assert_close(scaled, result * factor, rtol=1e-4, atol=1e-5)
