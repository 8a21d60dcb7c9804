"""Advantages against a slow reference on random ragged groups, and identities between advantages."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from algorithms.advantage_cases import (
    ALL,
    EXACT,
    GROUP_CENTRED,
    PERMUTABLE,
    WITH_GROUPS,
    cases,
    estimate,
    rewards_of,
)
from algorithms.advantage_reference import Case, reference
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.algorithms.spec import (
    ADVANTAGES,
    Advantage,
    BatchScaled,
    DrGrpo,
    Ema,
    Gdpo,
    Gopo,
    Grpo,
    Mixed,
    Opo,
    ReinforcePp,
    Rloo,
)
from torch import Tensor

FAST = settings(max_examples=15, deadline=None)


def close(actual: Tensor, expected: Tensor | list[float], tolerance: float = 2e-6) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def whitened(values: Tensor, epsilon: float) -> Tensor:
    return (values - values.mean()) / (values.std(correction=1) + epsilon)


def group_sums(values: Tensor, case: Case) -> Tensor:
    names, index = torch.unique(torch.tensor(case.groups), return_inverse=True)
    return torch.zeros(len(names), dtype=torch.float64).index_add(0, index, values)


def test_every_estimator_is_among_the_cases() -> None:
    assert {spec.kind for spec in ALL} == set(ADVANTAGES) - {"gae", "optimal_token"}  # of tokens
    assert all(spec.needs_groups for spec in WITH_GROUPS)


@pytest.mark.parametrize("spec", ALL, ids=repr)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), components=st.integers(1, 3))
def test_every_estimator_is_its_slow_reference(spec: Advantage, data: Any, components: int) -> None:
    case = data.draw(cases(components=components))
    close(estimate(spec, case), reference(spec, case))


@pytest.mark.parametrize("spec", PERMUTABLE, ids=repr)
@FAST
@given(case=cases(components=2), random=st.randoms())
def test_the_order_of_completions_does_not_matter(spec: Advantage, case: Case, random: Any) -> None:
    size = len(case.groups)
    order = torch.tensor(random.sample(range(size), size))
    close(estimate(spec, case, order=order), estimate(spec, case)[order])


@pytest.mark.parametrize("spec", ALL, ids=repr)
@FAST
@given(case=cases())
def test_a_withheld_completion_has_zero_and_is_absent_from_every_statistic(
    spec: Advantage, case: Case
) -> None:
    scored = torch.nonzero(~rewards_of(case).isnan().any(dim=1)).squeeze(1)
    alone = {group for group in case.groups if sum(case.groups[int(i)] == group for i in scored) == 1}
    result = estimate(spec, case)
    assert bool((result[~torch.isin(torch.arange(len(result)), scored)] == 0).all())
    if spec.needs_groups:  # one that is alone when the withheld are gone would be refused
        scored = torch.tensor([int(i) for i in scored if case.groups[int(i)] not in alone], dtype=torch.long)
        assert all(result[i] == 0 for i, group in enumerate(case.groups) if group in alone)
    close(estimate(spec, case, order=scored), result[scored])


@pytest.mark.parametrize("spec", [*GROUP_CENTRED, Opo(), ReinforcePp(weighting="token")], ids=repr)
@FAST
@given(case=cases(), shift=st.integers(-8, 8))
def test_a_shift_of_a_group_changes_nothing(spec: Advantage, case: Case, shift: int) -> None:
    shifted = rewards_of(case) + shift * torch.tensor(case.groups).unsqueeze(1)
    close(estimate(spec, case, shifted), estimate(spec, case))


@pytest.mark.parametrize("spec", [BatchScaled(center="batch"), ReinforcePp(group_mean=False)], ids=repr)
@FAST
@given(case=cases(), shift=st.integers(-8, 8))
def test_a_shift_of_the_whole_batch_changes_nothing(spec: Advantage, case: Case, shift: int) -> None:
    close(estimate(spec, case, rewards_of(case) + shift), estimate(spec, case))


@pytest.mark.parametrize("spec", GROUP_CENTRED, ids=repr)
@FAST
@given(case=cases(components=2))
def test_each_group_sums_to_zero(spec: Advantage, case: Case) -> None:
    sums = group_sums(estimate(spec, case), case)
    assert sums.tolist() == pytest.approx([0.0] * len(sums), abs=1e-5)


@FAST
@given(case=cases())
def test_opo_sums_to_zero_over_the_tokens_of_each_group(case: Case) -> None:
    weighted = estimate(Opo(), case) * torch.tensor(case.lengths)
    assert group_sums(weighted, case).tolist() == pytest.approx([0.0] * len(set(case.groups)), abs=1e-4)


@pytest.mark.parametrize("spec", EXACT, ids=repr)
@FAST
@given(case=cases(), level=st.sampled_from([0.3, -7.7, 1e6 / 3, 0.0]))
def test_a_group_of_equals_has_exactly_zero_amid_others(spec: Advantage, case: Case, level: float) -> None:
    first = torch.tensor([group == case.groups[0] for group in case.groups])
    noise = torch.arange(len(case.groups), dtype=torch.float64) * 1e-10
    rewards = torch.where(first.unsqueeze(1), (level + noise).unsqueeze(1), rewards_of(case))
    assert bool((estimate(spec, case, rewards)[first] == 0).all())


@FAST
@given(case=cases(components=3), scale=st.sampled_from([0.25, 3.0, 1024.0]))
def test_the_scale_of_the_rewards_passes_through_or_cancels(case: Case, scale: float) -> None:
    scaled = rewards_of(case) * scale
    for spec in (DrGrpo(), Rloo(), Opo(), Mixed()):
        close(estimate(spec, case, scaled), scale * estimate(spec, case))
    for spec in (Gopo(), Grpo(epsilon=1e-12), BatchScaled(epsilon=1e-12), ReinforcePp(epsilon=1e-12)):
        close(estimate(spec, case, scaled), estimate(spec, case))


@FAST
@given(case=cases())
def test_gopo_sees_only_the_order_within_a_group(case: Case) -> None:
    rewards = rewards_of(case)
    offset = torch.tensor(case.groups, dtype=torch.float64).unsqueeze(1)
    bent = (rewards / 4).exp() * (1 + offset) + rewards.pow(3) - offset
    for spec in (Gopo(), Gopo(mapping="quantile")):
        close(estimate(spec, case, bent), estimate(spec, case))


@FAST
@given(case=cases(components=3), scale=st.tuples(*[st.sampled_from([0.25, 3.0, 64.0])] * 3))
def test_gdpo_ignores_scale_and_offset_of_each_component(case: Case, scale: tuple[float, ...]) -> None:
    changed = rewards_of(case) * torch.tensor(scale) + torch.tensor([3.0, -8.0, 0.5])
    spec = Gdpo(epsilon=1e-12, final_batch_norm=False)
    close(estimate(spec, case, changed), estimate(spec, case))


@FAST
@given(case=cases(withheld=False))
def test_gdpo_of_one_reward_is_grpo_whitened_over_the_batch(case: Case) -> None:
    grpo = estimate(Grpo(epsilon=1e-4), case)
    close(estimate(Gdpo(final_batch_norm=False), case), grpo)
    close(estimate(Gdpo(), case), whitened(grpo, 1e-4))


@FAST
@given(case=cases())
def test_rloo_is_dr_grpo_times_g_over_g_minus_one(case: Case) -> None:
    scored = group_sums((~rewards_of(case).isnan().any(dim=1)).double(), case)
    factor = scored / (scored - 1).clamp(min=1)
    index = torch.unique(torch.tensor(case.groups), return_inverse=True)[1]
    close(estimate(Rloo(), case), estimate(DrGrpo(), case) * factor[index])


@FAST
@given(case=cases(withheld=False), group_mean=st.booleans())
def test_reinforce_pp_has_batch_mean_zero_and_deviation_one(case: Case, group_mean: bool) -> None:
    result = estimate(ReinforcePp(group_mean=group_mean), case)
    flat = bool((result == 0).all())
    assert float(result.mean()) == pytest.approx(0, abs=1e-6)
    assert float(result.std(correction=1)) == pytest.approx(0 if flat else 1, abs=1e-4)


@FAST
@given(case=cases(withheld=False), group_mean=st.booleans())
def test_reinforce_pp_by_tokens_is_by_samples_when_each_completion_is_repeated(
    case: Case, group_mean: bool
) -> None:
    case = replace(case, lengths=[max(1.0, length) for length in case.lengths])
    value = estimate(DrGrpo(), case) if group_mean else rewards_of(case)[:, 0]
    expanded = whitened(value.repeat_interleave(torch.tensor(case.lengths).long()), 1e-6)
    result = estimate(ReinforcePp(group_mean=group_mean, weighting="token"), case)
    close(result.repeat_interleave(torch.tensor(case.lengths).long()), expanded)


@FAST
@given(case=cases())
def test_two_estimators_of_one_formula_agree(case: Case) -> None:
    """Group-centred rewards have batch mean 0, so whitening them is scaling them."""
    close(estimate(ReinforcePp(), case), estimate(BatchScaled(), case))
    close(estimate(Mixed(), case), estimate(Rloo(), case))
    close(estimate(Mixed(prior=1e-9), case), estimate(Rloo(), case))


@FAST
@given(case=cases(withheld=False))
def test_mixed_goes_from_ema_to_rloo_with_lam(case: Case) -> None:
    ema, rloo = estimate(Ema(), case), estimate(Rloo(), case)
    for lam in (0.0, 0.25, 1.0):
        close(estimate(Mixed(lam=lam), case), lam * rloo + (1 - lam) * ema)


@FAST
@given(low=st.integers(-40, 40), gap=st.integers(1, 40))
def test_a_pair_has_the_same_advantage_up_to_sign(low: int, gap: int) -> None:
    case = Case(rewards=[[low + gap], [low]], groups=[1, 1], weights=[1], lengths=[1, 1], baselines=[0, 0])
    expected = {Grpo(ddof=0): 1.0, Grpo(): math.sqrt(0.5), Gopo(): 2.0, Rloo(): float(gap), DrGrpo(): gap / 2}
    for spec, size in expected.items():
        close(estimate(spec, case), [size, -size])
