"""Advantages: numbers worked by hand, and cases in which every advantage is exactly 0."""

import math
from typing import Any

import pytest
import torch
from slipstream.algorithms import group_advantages, resolve_advantage
from slipstream.algorithms.spec import ADVANTAGES

NAN = math.nan
BY_COMPLETION = tuple(kind for kind in ADVANTAGES if kind not in ("gae", "optimal_token"))
WITHIN_GROUPS = tuple(kind for kind in BY_COMPLETION if kind != "ema")
LENGTHS = torch.tensor([3, 1, 4, 2, 5])
BASELINES = torch.tensor([0.5, -1, 2, 0, 1], dtype=torch.float64)


def advantages(kind: str, rewards: list[Any], groups: list[int], **fields: Any) -> list[float]:
    size = len(rewards)
    result = group_advantages(
        {"kind": kind, **fields},
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(groups),
        lengths=LENGTHS[:size],
        baselines=BASELINES[:size],
    )
    return result.tolist()


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


def test_rloo_with_the_scale_group_divides_by_the_deviation_of_the_whole_group() -> None:
    # 0, 3, 6: std with ddof 1 is 3; -4.5 / 3, 0, 4.5 / 3
    assert advantages("rloo", [0, 3, 6], [0, 0, 0], scale="group") == pytest.approx(
        [-1.5, 0.0, 1.5], rel=1e-6
    )
    # 1, 0: std sqrt(1/2); R minus the other is +-1; +-sqrt(2)
    assert advantages("rloo", [1, 0], [0, 0], scale="group") == pytest.approx(
        [math.sqrt(2), -math.sqrt(2)], rel=1e-5
    )
    assert advantages("rloo", [0.3, 0.1 * 3], [0, 0], scale="group") == [0.0, 0.0]


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


def test_batch_scaled_by_batch_pushes_a_group_of_equals() -> None:
    # mean 4: -3, -3, 1, 5; squares 44; n - 1 = 3; std = 3.8297084
    assert advantages("batch_scaled", [1, 1, 5, 9], [0, 0, 1, 1], center="batch") == pytest.approx(
        [-0.7833495, -0.7833495, 0.2611165, 1.3055824], rel=1e-5
    )


def test_batch_scaled_can_divide_by_the_deviation_of_the_rewards_themselves() -> None:
    # 1, 3, 5, 7: mean 4, squares 9 + 1 + 1 + 9 = 20, std = sqrt(20/3) = 2.5819889; centred: -1, 1, -1, 1
    assert advantages("batch_scaled", [1, 3, 5, 7], [0, 0, 1, 1], std_of="raw") == pytest.approx(
        [-0.3872983, 0.3872983, -0.3872983, 0.3872983], rel=1e-5
    )


def test_maxrl_divides_by_the_mean_so_that_hard_prompts_weigh_most() -> None:
    # mean 1/4: (1 - 1/4) / (1/4) = 3, (0 - 1/4) / (1/4) = -1
    assert advantages("maxrl", [1, 0, 0, 0], [0, 0, 0, 0]) == pytest.approx([3, -1, -1, -1])


def test_maxrl_gives_zero_where_the_mean_is_not_positive() -> None:
    # means -2, and 5.6e-17: three times 0.1 is not 0.3
    assert advantages("maxrl", [-1, -3, 0.1 * 3, -0.3], [0, 0, 1, 1]) == [0.0] * 4


def test_opo_subtracts_the_length_weighted_mean() -> None:
    # lengths 3, 1: b = (3 * 0 + 1 * 1) / 4 = 1/4; lengths 4, 2: b = (4 * 6 + 2 * 0) / 6 = 4
    assert advantages("opo", [0, 1, 6, 0], [0, 0, 1, 1]) == pytest.approx([-0.25, 0.75, 2.0, -4.0])


def test_opo_gives_zero_to_a_group_without_tokens() -> None:
    rewards, lengths = torch.tensor([1.0, 0.0]), torch.tensor([0, 0])
    assert group_advantages({"kind": "opo"}, rewards, torch.tensor([0, 0]), lengths=lengths).tolist() == [
        0,
        0,
    ]


def test_gopo_spaces_ranks_evenly_between_plus_and_minus_two() -> None:
    # ranks 2, 4, 3, 1: 2 - (rank - 1) 4/3
    assert advantages("gopo", [5, 1, 3, 90], [0, 0, 0, 0]) == pytest.approx([2 / 3, -2, -2 / 3, 2])


def test_gopo_gives_ties_their_average_rank_though_they_differ_by_rounding() -> None:
    # ranks 1.5, 1.5, 3: 2 - 0.5 * 2 = 1, 2 - 2 * 2 = -2
    assert advantages("gopo", [0.1 * 3, 0.3, 0], [0, 0, 0]) == [1.0, 1.0, -2.0]


def test_gopo_by_quantile_spaces_ranks_as_a_normal_distribution_does() -> None:
    # G = 4: p = (4.625 - rank) / 4.25 = .8529, .6176, .3824, .1471; Phi^-1: 1.04913, .29931, ...
    # times 2 / 1.04913
    result = advantages("gopo", [5, 1, 3, 90], [0, 0, 0, 0], mapping="quantile")
    assert result == pytest.approx([0.57058, -2, -0.57058, 2], abs=1e-4)
    # G = 2 has its two ends only, and equal rewards have 0
    assert advantages("gopo", [0, 1], [0, 0], mapping="quantile") == pytest.approx([-2.0, 2.0])
    assert advantages("gopo", [7, 7, 7, 7], [0, 0, 0, 0], mapping="quantile") == [0.0, 0.0, 0.0, 0.0]


def test_gopo_by_quantile_gives_ties_the_mean_of_their_advantages() -> None:
    # ranks 1, 2, 3: p = 2.625/3.25 = .8077, .5, .1923; Phi^-1 .86942, 0, -.86942; ties (2 + 0) / 2 = 1
    assert advantages("gopo", [3, 3, 0], [0, 0, 0], mapping="quantile") == pytest.approx([1.0, 1.0, -2.0])


def test_gopo_with_ordinal_ties_ranks_equals_in_the_order_they_came_in() -> None:
    assert advantages("gopo", [7, 7, 7, 7], [0, 0, 0, 0], ties="ordinal") == pytest.approx(
        [2, 2 / 3, -2 / 3, -2]
    )


def test_reinforce_pp_centres_by_group_and_whitens_over_the_batch() -> None:
    # a: -1, 1, -2, 2; mean 0; squares 10; n - 1 = 3; std = 1.8257419
    assert advantages("reinforce_pp", [0, 2, 10, 14], [0, 0, 1, 1]) == pytest.approx(
        [-0.5477226, 0.5477226, -1.0954451, 1.0954451], rel=1e-5
    )


def test_reinforce_pp_without_group_mean_takes_groups_of_one() -> None:
    # mean 2, std 2
    assert advantages("reinforce_pp", [0, 2, 4], [0, 1, 2], group_mean=False) == pytest.approx(
        [-1, 0, 1], abs=1e-6
    )
    assert advantages("reinforce_pp", [0.3, 0.1 * 3, NAN], [0, 1, 2], group_mean=False) == [0.0] * 3


def test_reinforce_pp_by_tokens_counts_each_completion_as_often_as_it_has_tokens() -> None:
    # a: -1, 1, 0, 0; lengths 1, 3, 2, 2; mean 2/8 = 1/4; sum L (a - 1/4)^2 = 1.5625 + 1.6875 + 0.125 + 0.125
    # = 3.5; over 8 - 1: 1/2; std = 0.7071068; A = (a - 1/4) 1.4142136
    rewards = torch.tensor([0.0, 2, 5, 5])
    spec = {"kind": "reinforce_pp", "weighting": "token"}
    result = group_advantages(
        spec, rewards, torch.tensor([0, 0, 1, 1]), lengths=torch.tensor([1, 3, 2, 2])
    ).tolist()
    assert result == pytest.approx([-1.7677670, 1.0606602, -0.3535534, -0.3535534], rel=1e-5)


def test_gdpo_normalises_each_reward_by_group_then_their_sum_by_batch() -> None:
    # group 0: +-0.7071 and a constant; group 1: +-0.7071 twice. With weights 1, 2: S = +-0.7071, +-2.1213;
    # squares 0.5 * 2 + 4.5 * 2 = 10, std = 1.8257419
    rewards = torch.tensor([[1.0, 0], [0, 0], [1, 3], [0, 1]], dtype=torch.float64)
    spec = {"kind": "gdpo", "epsilon": 1e-9}
    result = group_advantages(spec, rewards, torch.tensor([0, 0, 1, 1]), weights=torch.tensor([1.0, 2.0]))
    assert result.tolist() == pytest.approx([0.3872983, -0.3872983, 1.1618950, -1.1618950], rel=1e-5)


def test_gdpo_leaves_out_only_the_component_that_a_completion_lacks() -> None:
    # first reward of three: 0, -1, 1; second of two (2, 4): -0.7071068, 0.7071068; the fourth has neither
    rewards = [[1, NAN], [0, 2], [2, 4], [NAN, NAN]]
    assert advantages("gdpo", rewards, [0] * 4, final_batch_norm=False, epsilon=1e-9) == pytest.approx(
        [0.0, -1.7071068, 1.7071068, 0.0], rel=1e-5
    )


def test_ema_subtracts_the_average_before_the_batch_also_from_a_group_of_one() -> None:
    # baselines 1/2, -1, 2
    assert advantages("ema", [1, 0, NAN], [0, 0, 1]) == [0.5, 1.0, 0.0]


def test_mixed_weighs_the_others_and_the_average() -> None:
    # R 4, 0: less the other 4, -4; less the averages 1/2, -1: 3.5, 1. lam 1/2: 3.75, -1.5
    assert advantages("mixed", [4, 0], [0, 0], lam=0.5) == pytest.approx([3.75, -1.5])
    # prior 3, G 2: lam = 1 / (1 + 3): 1 + 2.625, -1 + 0.75
    assert advantages("mixed", [4, 0], [0, 0], prior=3.0) == pytest.approx([3.625, -0.25])


def test_reward_components_are_summed_by_weight() -> None:
    rewards = torch.tensor([[1.0, 0.5], [0.0, 1.5]])
    result = group_advantages(
        {"kind": "dr_grpo"}, rewards, torch.tensor([0, 0]), weights=torch.tensor([2.0, 1.0])
    )
    assert result.tolist() == [0.5, -0.5]  # totals 2.5 and 1.5


def test_reward_components_are_summed() -> None:
    assert advantages("dr_grpo", [[1, 0.5], [0, 0.5]], [0, 0]) == [0.5, -0.5]


@pytest.mark.parametrize("kind", WITHIN_GROUPS)
def test_equal_rewards_give_exactly_zero_in_spite_of_rounding(kind: str) -> None:
    assert advantages(kind, [0.1 * 3, 0.3, 0.1 + 0.2, 5, 6], [0, 0, 0, 1, 1])[:3] == [0.0, 0.0, 0.0]
    assert advantages(kind, [0.1 * 3] * 3, [0, 0, 0]) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", BY_COMPLETION)
def test_a_withheld_completion_has_no_advantage_and_no_part_in_the_statistics(kind: str) -> None:
    rewards = torch.tensor([1, NAN, 0, 4, 2], dtype=torch.float64)
    groups, kept = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 2, 3, 4])
    withheld, without = (
        group_advantages(
            {"kind": kind}, rewards[rows], groups[rows], lengths=LENGTHS[rows], baselines=BASELINES[rows]
        ).tolist()
        for rows in (torch.arange(5), kept)
    )
    assert withheld == [without[0], 0.0, *without[1:]]


@pytest.mark.parametrize("kind", WITHIN_GROUPS)
def test_one_scored_completion_in_a_group_or_none_gives_zero(kind: str) -> None:
    assert advantages(kind, [1, NAN, NAN, NAN], [0, 0, 1, 1]) == [0.0] * 4


def test_a_completion_with_one_component_missing_is_withheld() -> None:
    assert advantages("dr_grpo", [[1, NAN], [0, 1], [2, 1]], [0, 0, 0]) == [0.0, -1.0, 1.0]


@pytest.mark.parametrize(
    "advantage", [*({"kind": kind} for kind in BY_COMPLETION), {"kind": "rloo", "scale": "group"}]
)
def test_the_coefficient_of_a_penalty_cancels_where_the_estimator_takes_out_the_scale_of_groups(
    advantage: dict[str, str],
) -> None:
    # one group of rewards 0, one of 0, 1; penalties 3, 1, -6 and 2, 0, times .1 and .001
    reward_B, penalty_B = torch.tensor([0.0, 0, 0, 0, 1]), torch.tensor([3.0, 1, -6, 2, 0])
    result = [
        group_advantages(
            advantage,
            torch.stack([reward_B, -penalty_B], dim=1).double(),
            torch.tensor([0, 0, 0, 1, 1]),
            weights=torch.tensor([1.0, coefficient]),
            lengths=LENGTHS,
            baselines=torch.zeros(5),
        )[:3]
        for coefficient in (0.1, 0.001)
    ]
    largest = [float(advantage_B.abs().max()) for advantage_B in result]
    if resolve_advantage(advantage).scale_of_groups is not None:
        assert result[0].tolist() == pytest.approx(result[1].tolist(), rel=2e-3)
    else:
        assert largest[1] < largest[0] / 10
